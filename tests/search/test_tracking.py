"""The tracker against real stores: SQLite in a file, and an MLflow server on loopback."""

import json
import math
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from mlflow.tracking import MlflowClient

from search.config import load_config
from search.tracking import Tracker, TrackingError, store_of


def config(tmp_path, name="one", **given):
    made = load_config({"task": "arc", "name": name, "storage": str(tmp_path), **given})
    made.folder.mkdir(parents=True)
    return made


def track(settings, environment=None):
    return Tracker(
        settings, *store_of(settings, environment or {}), resolved="task: arc\n", objective="val/score", mode="max"
    )


def play(tracker):
    """Two trials: one completed, one that diverged."""
    tracker.trial_started(0, {"lr": 0.1, "inner.depth": 2, "precision": "fp16"})
    tracker.trial_started(1, {"lr": 0.2, "inner.depth": 3, "precision": "fp32"})
    for epoch in (1, 2, 3):
        tracker.trial_reported(0, epoch, {"val/score": epoch / 10, "train/loss": math.nan})
    tracker.trial_ended(1, "diverged", "val/score is nan")
    tracker.trial_ended(0, "completed", "")


def finish(tracker, files=(), timeout_s=60.0):
    tracker.finish("FINISHED", "**Best**", {"best/val/score": 0.3}, list(files), timeout_s)


def runs_of(tracker):
    runs = MlflowClient(tracker.tracking_uri).search_runs([tracker.experiment_id])
    return {run.data.tags.get("trial_id", "parent"): run for run in runs}


def check_runs(tracker):
    runs = runs_of(tracker)
    assert set(runs) == {"parent", "0", "1"}
    assert runs["parent"].info.status == "FINISHED"
    assert runs["0"].data.params == {"lr": "0.1", "inner.depth": "2", "precision": "fp16"}
    assert (runs["0"].info.status, runs["0"].data.tags["outcome"]) == ("FINISHED", "completed")
    assert (runs["1"].info.status, runs["1"].data.tags["reason"]) == ("FAILED", "val/score is nan")
    assert runs["0"].data.tags["mlflow.parentRunId"] == tracker.run_id
    curve = MlflowClient(tracker.tracking_uri).get_metric_history(runs["0"].info.run_id, "val/score")
    assert [(point.step, point.value) for point in curve] == [(1, 0.1), (2, 0.2), (3, 0.3)]


def test_a_search_is_a_parent_run_with_a_child_per_trial(tmp_path):
    tracker = track(config(tmp_path))
    play(tracker)
    artifact = tmp_path / "trials.parquet"
    artifact.write_bytes(b"rows")
    finish(tracker, [artifact])
    check_runs(tracker)
    kept = sorted(path.name for path in (tmp_path / "mlartifacts").rglob("*") if path.is_file())
    assert kept == ["search.yaml", "trials.parquet"]


def test_two_searches_share_a_store_without_mixing(tmp_path):
    trackers = [track(config(tmp_path, name)) for name in ("one", "two")]
    for tracker in trackers:
        play(tracker)
    for tracker in trackers:
        finish(tracker)
    assert trackers[0].experiment_id == trackers[1].experiment_id
    runs = MlflowClient(trackers[0].tracking_uri).search_runs([trackers[0].experiment_id])
    for tracker, name in zip(trackers, ("one", "two"), strict=True):
        children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == tracker.run_id]
        assert len(children) == 2
        assert {run.data.tags["search"] for run in children} == {name}


def test_no_call_waits_for_the_store(tmp_path):
    tracker = track(config(tmp_path))
    start = time.monotonic()
    play(tracker)
    assert time.monotonic() - start < 0.1, "the database is not even there yet"
    finish(tracker)


def test_what_mlflow_refuses_does_not_hold_up_the_rest_and_is_kept(tmp_path):
    tracker = track(config(tmp_path))
    tracker.trial_started(0, {"lr": 0.1, "long": "x" * 7000})
    tracker.trial_reported(0, 1, {"val/acc@1": 0.5, "val/score": 0.5})
    tracker.trial_started(1, {"lr": 0.2})
    tracker.trial_reported(1, 2, {"val/score": math.nan, "val/" + "x" * 600: 0.5})
    tracker.trial_ended(0, "failed", "because " * 2000)
    tracker.trial_ended(1, "completed", "")
    with pytest.raises(TrackingError, match=r"but refused some of it: .*\. 1 events are kept in"):
        finish(tracker)
    runs = runs_of(tracker)
    assert runs["0"].data.metrics == {"val/acc_1": 0.5, "val/score": 0.5, "best/val/score": 0.5}
    assert [runs[name].info.status for name in ("0", "1", "parent")] == ["FAILED", "FINISHED", "FINISHED"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_server(folder, port):
    """A real MLflow server on loopback; returns once it answers."""
    store = ["--backend-store-uri", f"sqlite:///{folder / 'server.db'}", "--artifacts-destination", str(folder / "a")]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    server = subprocess.Popen([*command, *store], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
            return server
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    server.kill()
    raise TimeoutError("the MLflow server did not answer within 90 s")


def stop_server(server):
    server.terminate()
    server.wait(timeout=20)


def test_a_server_that_comes_up_late_gets_everything(tmp_path):
    port = free_port()
    tracker = track(config(tmp_path), {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}"})
    play(tracker)
    server = start_server(tmp_path, port)
    try:
        finish(tracker)
        check_runs(tracker)
    finally:
        stop_server(server)
    assert not (tmp_path / "one" / "mlflow-unsent.jsonl").exists()


def test_what_a_server_that_never_answers_lacks_is_kept_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    uri = f"http://127.0.0.1:{free_port()}"
    tracker = track(config(tmp_path), {"MLFLOW_TRACKING_URI": uri})
    play(tracker)
    with pytest.raises(
        TrackingError, match=f"MLflow at {uri} must take every trial, but is not reachable: .* 8 events are kept in"
    ):
        finish(tracker, timeout_s=3)
    lines = (tmp_path / "one" / "mlflow-unsent.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == [
        *["started"] * 2,
        *["reported"] * 3,
        *["ended"] * 2,
        "finished",
    ]
