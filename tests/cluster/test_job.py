"""A search on a cluster, from `ray job submit` to its end: machines join it and are taken away, and share no disk."""

import io
import time
from collections import Counter

import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient

from searchlight.trainables.filesystem.paths import list_files, parse_path
from tests.cluster.conftest import LONGEST_S, SECRETS

TRIALS, EPOCHS = 3, 20
pytestmark = pytest.mark.slow


@pytest.fixture
def storage(bucket, monkeypatch):
    server, uri = bucket
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    return parse_path(f"{uri}/team")


def test_submitted_search_outlives_its_nodes_and_its_job(cluster, submit, storage, database, mlflow_server):
    name = ["--name", "far", "--storage", str(storage), "--study", database.database("studies")]
    options = ["--trials", str(TRIALS), "--scheduler", "none", "--placement", "spread", "--max-failures", "0"]
    options += ["--no-preflight"]
    gate = cluster.network.disk / "go"  # a trial of two epochs waits until its machine has this file
    fixed = ["--set", f"epochs={EPOCHS}", "pause_s=0.25", "precision=fp32", "how=held", f"marker={gate}"]
    first = submit("first", "toy.py:Toy", *name, *options, *fixed)
    first.wait_for("2 trials at a time, each with 1 worker of 1 CPU + 1 GPU")
    first.wait_for("trial   1  epoch 1")  # streamed, as it comes

    leaving, joined = cluster.join(), time.monotonic()
    first.wait_for("a node joined: 3 trials at a time")
    assert time.monotonic() - joined < 10
    first.wait_for("trial   2  epoch 1")

    cluster.drain(leaving, seconds=60)
    first.wait_for("a node left: 2 trials at a time")
    leaving.run("touch", gate)
    first.wait_for(f"node {leaving.ip} is going away")
    first.wait_for("continues elsewhere")
    leaving.unplug()

    stopping = cluster.head.start("ray", "job", "stop", "first", env=cluster.env)
    first.wait_for("stopping: trials end at their next window")
    for staying in cluster.workers[:2]:
        staying.run("touch", gate)
    told = first.wait()
    stopping.communicate(timeout=LONGEST_S)
    assert stopping.returncode == 0
    assert "interrupted the search was stopped" in told
    assert f"python search/run.py --resume far --storage {storage}" in told
    assert "SIGTERM received" not in told
    assert parent(mlflow_server).info.status == "KILLED"
    assert rows_of(storage / "far"), "the report of a search that was stopped is in the bucket"

    cluster.head.run("sh", "-c", f"echo '# corrected' >> {cluster.folder}/toy.py")
    second = submit("second", "--resume", "far", "--storage", str(storage))
    told = second.wait()
    assert f"{TRIALS} completed" in told
    assert "toy.py changed since far last ran, and the new code is used" in told, (
        "Ray keeps the first job's folder, too"
    )
    assert second.succeeded
    done = Counter((row["trial_id"], row["epoch"]) for row in rows_of(storage / "far"))
    assert done == Counter((trial, epoch) for trial in range(TRIALS) for epoch in range(1, EPOCHS + 1))
    assert (storage / "far" / "report.html").is_file()
    assert parent(mlflow_server).info.status == "FINISHED"
    left = cluster.head.run("sh", "-c", "find . -path ./ray -prune -o -path ./user -prune -o -type f -print")
    assert left.split() == ["./token"]
    assert sent_mb(cluster) <= 3  # of the 300 MB in the user's folder
    assert leaks(cluster, storage / "far") == []


def test_search_that_a_cluster_refuses_ends_with_the_remedy(cluster, storage):
    refused = refusal(cluster, ["--storage", str(storage)], RAY_AUTH_TOKEN="of-another-cluster-1234567890")
    assert "must be given its token, but refused ours. Set RAY_AUTH_MODE=token" in refused
    refused = refusal(cluster, ["--storage", f"{cluster.network.disk}/runs"])
    assert "--storage must be seen by every node, but on node 10." in refused
    assert "Use a bucket, s3://bucket/path" in refused
    cluster.head.run("sh", "-c", "test ! -e runs/refused")


def refusal(cluster, options, **env):
    """What a search says that cannot be, started on the head."""
    command = ["python", "search/run.py", "toy.py:Toy", "--name", "refused", "--trials", "1", *options]
    env = {**cluster.env, "RAY_ADDRESS": f"{cluster.head.ip}:6379", "PYTHONPATH": str(cluster.folder), **env}
    process = cluster.head.start("sh", "-c", f'cd {cluster.folder} && exec "$@"', "sh", *command, env=env)
    _, told = process.communicate(timeout=100)
    assert process.returncode == 2, told
    return told


def sent_mb(cluster):
    """What traveled with the larger of the jobs."""
    sent = "ray/session_latest/runtime_resources/working_dir_files/*/"
    sizes = f"du -sm --apparent-size --exclude __pycache__ {sent} | cut -f1"
    return max(map(int, cluster.head.run("sh", "-c", sizes).split()))


def leaks(cluster, storage):
    """Passwords that are in a log of Ray's, or in the bucket."""
    kept = b"".join((storage / name).read_bytes() for name in list_files(storage))
    found = []
    for secret in (*SECRETS.values(), cluster.token):
        grep = ["sh", "-c", f"grep -rlF {secret} ray/session_latest/logs; true"]
        logs = [machine.run(*grep) for machine in (cluster.head, cluster.workers[0])]
        found += [secret] if secret.encode() in kept or any(logs) else []
    return found


def parent(server):
    client = MlflowClient(server.url)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments, "tags.search_id != ''")
    return next(run for run in runs if "mlflow.parentRunId" not in run.data.tags)


def rows_of(folder):
    return pq.read_table(io.BytesIO((folder / "trials.parquet").read_bytes())).to_pylist()
