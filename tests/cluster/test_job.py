"""Searches on a cluster, from `ray job submit` to their end.

Machines join the cluster, are taken away, and share no disk. One process after the other is killed.
"""

import io
import time
from collections import Counter

import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient

from searchlight.search.storage.bucket_journal import read_records
from searchlight.search.study.record import load_search
from searchlight.search.study.trial import get_reports
from searchlight.trainables.filesystem.paths import list_files, parse_path
from tests.cluster.conftest import LONGEST_S, SECRETS

TRIALS, EPOCHS = 3, 20
pytestmark = pytest.mark.slow


class Study:
    """The study of the search in a bucket, of which each look must find all reports of the looks before."""

    def __init__(self, place):
        self.place = place
        self.reports = {}

    def look(self):
        """The loss of each report, by trial and epoch."""
        reports = {
            (trial.number, epoch): report["metrics"]["val/loss"]
            for trial in load_search(self.place).trials
            for epoch, report in get_reports(trial).items()
        }
        assert self.reports.items() <= reports.items(), "no report is lost, and none is made again"
        self.reports = reports
        return reports

    def wait_for(self, count, job):
        """Wait until `job` has made so many further reports."""
        job.wait_until(lambda: any(b"report/" in record for record in read_records(self.place)), "report")
        wanted = len(self.look()) + count
        job.wait_until(lambda: len(self.look()) >= wanted, f"{wanted} reports")


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
    assert parent(mlflow_server, "far").info.status == "KILLED"
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
    assert parent(mlflow_server, "far").info.status == "FINISHED"
    left = cluster.head.run("sh", "-c", "find . -path ./ray -prune -o -path ./user -prune -o -type f -print")
    assert left.split() == ["./token"]
    assert sent_mb(cluster) <= 3  # of the 300 MB in the user's folder
    assert leaks(cluster, storage / "far") == []


def test_killed_jobs_lose_no_report_and_double_none(cluster, submit, mlflow_server, storage):
    study, place = Study(storage / "killed"), ["--storage", str(storage)]
    options = ["--trials", "4", "--scheduler", "none", "--no-preflight"]
    options += ["--set", "epochs=15", "pause_s=0.25", "precision=fp32"]
    first = submit("first-killed", "toy.py:Toy", "--name", "killed", *place, *options)
    study.wait_for(6, first)
    kill(cluster.workers[0], "ray::RayTrainWorker")
    study.wait_for(6, first)
    kill(cluster.head, "search/run.py")
    first.wait()
    assert not first.succeeded

    second = submit("second-killed", "--resume", "killed", *place)
    study.wait_for(6, second)
    kill(cluster.head, "gcs_server")
    kill(cluster.head, "raylet/raylet")
    second.wait()
    cluster.head.unplug()

    cluster.replace_head()
    third = submit("third-killed", "--resume", "killed", *place)
    study.wait_for(6, third)
    cluster.ray("job", "stop", "third-killed")
    third.wait()
    study.look()

    last = submit("last-killed", "--resume", "killed", *place)
    assert "4 completed" in last.wait()
    every = Counter((trial, epoch) for trial in range(4) for epoch in range(1, 16))
    assert Counter(study.look().keys()) == every
    rows = pq.read_table(io.BytesIO((study.place / "trials.parquet").read_bytes())).to_pylist()
    assert Counter((row["trial_id"], row["epoch"]) for row in rows) == every
    assert Counter(read_mlflow(mlflow_server, "killed")) == every


def test_search_that_a_cluster_refuses_ends_with_the_remedy(cluster, storage):
    refused = refusal(cluster, ["--storage", str(storage)], RAY_AUTH_TOKEN="of-another-cluster-1234567890")
    assert "must be given its token, but refused ours. Set RAY_AUTH_MODE=token" in refused
    refused = refusal(cluster, ["--storage", f"{cluster.network.disk}/runs"])
    assert "--storage must be seen by every node, but on node 10." in refused
    assert "Use a bucket, s3://bucket/path" in refused
    cluster.head.run("sh", "-c", "test ! -e runs/refused")


def kill(machine, word):
    found = machine.find_processes(word)
    assert found, f"no process of {word}"
    for process in found:
        process.kill()


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


def read_mlflow(server, name):
    """The trial and epoch of each report, from all runs of the search `name`."""
    client = MlflowClient(server.url)
    for run in runs_of(client, f"tags.mlflow.parentRunId = '{parent(server, name).info.run_id}'"):
        assert run.info.status == "FINISHED"
        for metric in client.get_metric_history(run.info.run_id, "val/loss"):
            yield int(run.data.tags["trial_id"]), metric.step


def runs_of(client, condition):
    return client.search_runs([experiment.experiment_id for experiment in client.search_experiments()], condition)


def parent(server, name):
    (run,) = runs_of(MlflowClient(server.url), f"attributes.run_name = '{name}'")
    return run


def rows_of(folder):
    return pq.read_table(io.BytesIO((folder / "trials.parquet").read_bytes())).to_pylist()
