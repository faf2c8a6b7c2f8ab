"""A search on a cluster, from `ray job submit` to its end: machines join it, are taken away, and share no disk."""

import time

import ray  # noqa: F401

from trainables.files import place

TRIALS, EPOCHS = 5, 10


def test_a_submitted_search_outlives_its_nodes_and_its_job(
    cluster, submit, bucket, database, mlflow_server, monkeypatch
):
    server, uri = bucket
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    storage = ["--storage", f"{uri}/team"]
    options = ["--trials", str(TRIALS), "--scheduler", "none", "--placement", "spread", "--name", "far"]
    fixed = ["--set", f"epochs={EPOCHS}", "pause_s=0.25", "precision=fp32"]
    first = submit("first", "toy.py:Toy", *options, *storage, "--study", database.database("studies"), *fixed)
    first.wait_for("2 at a time: 1 x 1 CPU + 1 GPU each")
    first.wait_for("trial   1  epoch 1")
    joined = time.monotonic()
    cluster.join()
    first.wait_for("a node joined: 3 at a time")
    first.wait_for("trial   2  epoch 1")
    assert time.monotonic() - joined < 40
    leaving = cluster.workers[0]
    cluster.drain(leaving, seconds=60)
    first.wait_for(f"{leaving.ip} is going away")
    leaving.unplug()
    first.wait_for("epoch 3")
    cluster.ray("job", "stop", "first")
    told = first.wait()
    assert "interrupted the search was stopped" in told
    print(told)
    second = submit("second", "--resume", "far", *storage)
    print(second.wait())
    assert second.succeeded
    folder = place(f"{uri}/team/far")
    print([str(x) for x in folder.iterdir()])
