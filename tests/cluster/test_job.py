"""A search on a cluster, from `ray job submit` to its end: machines join it and are taken away, and share no disk."""

import io
import time
from collections import Counter

import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient

from tests.cluster.conftest import SECRETS
from trainables.files import place

TRIALS, EPOCHS = 3, 40


@pytest.fixture
def storage(bucket, monkeypatch):
    server, uri = bucket
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    return place(f"{uri}/team")


def test_a_submitted_search_outlives_its_nodes_and_its_job(cluster, submit, storage, database, mlflow_server):
    name = ["--name", "far", "--storage", str(storage), "--study", database.database("studies")]
    options = ["--trials", str(TRIALS), "--scheduler", "none", "--placement", "spread", "--max-failures", "0"]
    fixed = ["--set", f"epochs={EPOCHS}", "pause_s=0.25", "precision=fp32"]
    first = submit("first", "toy.py:Toy", *name, *options, *fixed)
    first.wait_for("2 at a time: 1 x 1 CPU + 1 GPU each")
    first.wait_for("trial   1  epoch 1")  # streamed, as it comes

    leaving, joined = cluster.join(), time.monotonic()
    first.wait_for("a node joined: 3 at a time")
    assert time.monotonic() - joined < 10
    first.wait_for("trial   2  epoch 1")

    cluster.drain(leaving, seconds=60)
    first.wait_for(f"node {leaving.ip} is going away")
    first.wait_for("goes on elsewhere")
    leaving.unplug()

    cluster.ray("job", "stop", "first")
    told = first.wait()
    assert "stopping: trials end at their next window" in told
    assert "interrupted the search was stopped" in told
    assert f"python search/run.py --resume far --storage {storage}" in told
    assert "SIGTERM received" not in told
    assert parent(mlflow_server).info.status == "KILLED"
    assert rows_of(storage / "far"), "the report of a search that was stopped is in the bucket"

    second = submit("second", "--resume", "far", "--storage", str(storage))
    assert f"{TRIALS} completed" in second.wait()
    assert second.succeeded
    done = Counter((row["trial_id"], row["epoch"]) for row in rows_of(storage / "far"))
    assert done == Counter((trial, epoch) for trial in range(TRIALS) for epoch in range(1, EPOCHS + 1))
    assert (storage / "far" / "report.html").is_file()
    assert parent(mlflow_server).info.status == "FINISHED"
    left = cluster.head.run("sh", "-c", "find . -path ./ray -prune -o -path ./user -prune -o -type f -print")
    assert left.split() == ["./token"]


def test_what_travels_with_a_job_is_small(cluster):
    sizes = "du -sm --exclude __pycache__ ray/session_latest/runtime_resources/working_dir_files/*/"
    assert [int(line.split()[0]) <= 3 for line in cluster.head.run("sh", "-c", sizes).splitlines()] == [True]
    assert "checkpoint.pt" not in cluster.head.run("find", "ray/session_latest/runtime_resources")


def test_no_password_is_in_a_log_or_in_the_bucket(cluster, storage, mlflow_server):
    kept = b"".join(file.read_bytes() for file in map((storage / "far").__truediv__, (storage / "far").names()))
    for secret in (*SECRETS.values(), cluster.token):
        assert secret.encode() not in kept
        for machine in (cluster.head, cluster.workers[0]):
            grep = ["sh", "-c", f"grep -rlF {secret} ray/session_latest/logs; true"]
            assert machine.run(*grep) == ""


def parent(server):
    client = MlflowClient(server.url)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments, "tags.search_id != ''")
    return next(run for run in runs if "mlflow.parentRunId" not in run.data.tags)


def rows_of(folder):
    return pq.read_table(io.BytesIO((folder / "trials.parquet").read_bytes())).to_pylist()
