"""The tracker and the replay against a real MLflow server: with PostgreSQL, gone for a while, behind a password."""

import os
import time

import numpy as np
import pytest
from mlflow.tracking import MlflowClient

from search.config.libraries import SETTINGS
from search.tracking import tracker as tracking
from search.tracking.errors import TrackingError
from search.tracking.runs import Runs
from search.tracking.tracker import MLflowCallback
from search.tracking.uri import resolve_tracking_uri
from tests.search.stored_studies import Search, replayed
from tests.servers.mlflow import ADMIN, MlflowServer
from tests.servers.process import free_port
from trainables.task import images

LOGIN = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in (*LOGIN, "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def postgres_backed(server, tmp_path_factory):
    store = server.database("mlflow").replace("postgresql:", "postgresql+psycopg:")
    made = MlflowServer(tmp_path_factory.mktemp("server"), store).start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    made = MlflowServer(tmp_path_factory.mktemp("guarded"), auth=True).start()
    yield made
    made.stop()


def track(search, uri, said=None):
    """A tracker of `search`; what it says to the user goes to `said`."""
    where = resolve_tracking_uri(search.config, {"MLFLOW_TRACKING_URI": uri})
    runs = Runs(search.config, *where, search.study.metadata["id"], search.study.objectives)
    tracker = MLflowCallback(runs, search.study.get_trials(), (said if said is not None else []).append)
    search.observers = [tracker]
    return tracker


def play(search, epochs=3):
    """Two trials: one completed, one that diverged."""
    first, second = search.begin(), search.begin()
    for epoch in range(1, epochs + 1):
        search.report(first, epoch, epoch / 100, **{"train/loss": 1 / epoch})
    search.report(second, 1, 0.5)
    search.end(second, "diverged", "val/score is nan")
    search.end(first, "completed")
    return first, second


def finish(tracker, timeout_s=120.0):
    tracker.finish("FINISHED", "**Best**", {"best/val/score": 0.3}, [], timeout_s)


def runs_in(uri, search):
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(search.config.experiment)
    found = client.search_runs([experiment.experiment_id], f"tags.search = '{search.config.name}'")
    assert len(found) == len({run.data.tags.get("trial_id") for run in found}), "no run twice"
    return {run.data.tags.get("trial_id", "parent"): run for run in found}


def check(uri, search, epochs=3):
    runs = runs_in(uri, search)
    assert {name: run.info.status for name, run in runs.items()} == {
        "parent": "FINISHED",
        "0": "FINISHED",
        "1": "FAILED",
    }
    history = MlflowClient(uri).get_metric_history(runs["0"].info.run_id, "val/score")
    assert sorted((point.step, point.value) for point in history) == search.curve(0)
    assert len(history) == epochs
    assert runs["0"].data.params["inner.depth"] == "2"
    assert "MLflow" not in runs["parent"].data.tags["mlflow.note.content"]
    return runs


def wait_until(condition, timeout_s=120):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come within the time"
        time.sleep(0.1)


def test_a_server_with_postgresql_has_the_runs_and_their_artifacts(tmp_path, postgres_backed):
    search, client = Search(tmp_path), MlflowClient(postgres_backed.url)
    checkpoint = search.config.local_path / "checkpoints" / "0" / "epoch-3-a.pt"
    images.save({"one": np.zeros((2, 2, 3), np.uint8)}, checkpoint)
    tracker = track(search, postgres_backed.url)
    play(search)
    finish(tracker)
    runs = check(postgres_backed.url, search)
    kept = client.list_artifacts(runs["parent"].info.run_id)
    assert [file.path for file in kept] == ["search.yaml"]
    drawn = [client.list_artifacts(runs[name].info.run_id, "pictures") for name in ("0", "1")]
    assert [[file.path for file in files] for files in drawn] == [["pictures/one.png"], []]


def test_runs_lie_in_a_postgresql_database_itself(tmp_path, server):
    uri = server.database("runs").replace("postgresql:", "postgresql+psycopg:")
    search = Search(tmp_path)
    tracker = track(search, uri)
    play(search)
    finish(tracker)
    runs = check(uri, search)
    assert runs["parent"].info.artifact_uri.startswith((tmp_path / "mlartifacts").as_uri())


def test_a_server_that_goes_away_and_comes_back_lacks_nothing_however_long_that_was(
    tmp_path, postgres_backed, monkeypatch
):
    monkeypatch.setattr(tracking, "MOST", 10)
    monkeypatch.setattr(tracking, "RETRY_S", 0.5)
    said = []
    search = Search(tmp_path, "gone")
    tracker = track(search, postgres_backed.url, said)
    first = search.begin()
    search.report(first, 1, 0.1)
    wait_until(lambda: "0" in (runs_in(postgres_backed.url, search) if tracker.run_id else {}))
    postgres_backed.stop()
    try:
        search.report(first, 2, 0.2)
        wait_until(lambda: said)
        assert said == [
            f"MLflow at {postgres_backed.url} does not answer: Connection refused. "
            "The search goes on, and it is told later"
        ]
        second = search.begin()
        for epoch in range(3, 41):
            search.report(first, epoch, epoch / 100)
        assert tracker._events.qsize() <= 10, "the study has the rest"
        search.end(second, "diverged", "val/score is nan")
    finally:
        postgres_backed.start()
    search.end(first, "completed")
    finish(tracker)
    check(postgres_backed.url, search, epochs=40)
    assert said[1:] == [f"MLflow at {postgres_backed.url} is back, and is told what it missed"]
    assert not (search.config.local_path / "mlflow-unsent.jsonl").exists()


def test_what_a_server_that_never_answered_lacks_is_told_by_a_replay(tmp_path, postgres_backed):
    away = f"http://127.0.0.1:{free_port()}"
    search = Search(tmp_path, "away", tracking_uri=away)
    tracker = track(search, away)
    play(search)
    with pytest.raises(TrackingError) as error:
        tracker.finish("FINISHED", "", {}, [], 3.0, "time budget")
    assert str(error.value) == (
        f"MLflow at {away} must take every trial, but does not answer: Connection refused. Nothing is lost: "
        f"`python search/report.py away --storage {tmp_path} --replay` tells it what it lacks."
    )
    refused = replayed(search)
    assert refused.exit_code == 1
    assert refused.stderr.splitlines() == [
        f"MLflow at {away} must take what it lacks of away, but does not answer: Connection refused. "
        "Nothing is lost: try again when it can."
    ]
    os.environ["MLFLOW_TRACKING_URI"] = postgres_backed.url
    done = replayed(search)
    assert done.exit_code == 0, done.stderr
    assert "lacked something of 2 of 2 trials, and has it now" in done.stdout
    runs = check(postgres_backed.url, search)
    assert runs["parent"].data.tags["stopped"] == "time budget"
    assert "Best val/score" in runs["parent"].data.tags["mlflow.note.content"]
    files = [file.path for file in MlflowClient(postgres_backed.url).list_artifacts(runs["parent"].info.run_id)]
    assert {"search.yaml", "trials.parquet"} <= {*files}
    assert not (search.config.local_path / "mlflow-unsent.jsonl").exists()
    assert "lacked no trial" in replayed(search).stdout
    again = check(postgres_backed.url, search)
    assert again["parent"].data.tags["stopped"] == "time budget"
    assert again["parent"].info.end_time == runs["parent"].info.end_time


def test_the_trials_of_a_search_that_was_killed_are_interrupted_until_it_is_taken_up(tmp_path, postgres_backed):
    search = Search(tmp_path, "killed", tracking_uri=postgres_backed.url)
    play(search)
    third = search.begin()
    search.report(third, 1, 0.1)
    assert replayed(search).exit_code == 0
    runs = runs_in(postgres_backed.url, search)
    assert [runs[name].info.status for name in ("parent", "0", "1", "2")] == ["KILLED", "FINISHED", "FAILED", "KILLED"]
    assert runs["2"].data.tags["outcome"] == "interrupted"
    assert "--resume killed" in runs["parent"].data.tags["mlflow.note.content"]
    tracker = track(search, postgres_backed.url)
    tracker.request_connection()
    wait_until(lambda: runs_in(postgres_backed.url, search)["2"].info.status == "RUNNING")
    assert "outcome" not in runs_in(postgres_backed.url, search)["2"].data.tags
    tracker.on_trial_end(2, "pruned", "not among the best")
    finish(tracker)
    assert runs_in(postgres_backed.url, search)["2"].info.status == "KILLED"


def test_a_wrong_password_is_told_in_a_line_and_the_right_one_brings_everything(tmp_path, guarded, monkeypatch):
    monkeypatch.setattr(tracking, "RETRY_S", 0.2)
    monkeypatch.setenv(LOGIN[0], ADMIN[0])
    monkeypatch.setenv(LOGIN[1], "wrong")
    said = []
    search = Search(tmp_path, "locked", tracking_uri=guarded.url)
    tracker = track(search, guarded.url, said)
    play(search)
    wait_until(lambda: said)
    told = (
        "does not accept the login: MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD must be those of an account "
        "there"
    )
    assert said == [f"MLflow at {guarded.url} {told}. The search goes on, and it is told later"]
    start = time.monotonic()
    with pytest.raises(TrackingError, match=r"locked .* --replay` tells it"):
        finish(tracker)
    assert time.monotonic() - start < 20, "waiting would change nothing"
    assert told in replayed(search).stderr
    monkeypatch.setenv(LOGIN[1], ADMIN[1])
    done = replayed(search)
    assert done.exit_code == 0, done.stderr
    check(guarded.url, search)


def test_a_password_in_the_uri_opens_the_server_and_is_written_nowhere(tmp_path, guarded, monkeypatch):
    for name in LOGIN:
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{ADMIN[0]}:{ADMIN[1]}@127.0.0.1:{guarded.port}")
    search = Search(tmp_path, "inside")
    play(search)
    done = replayed(search)
    assert done.exit_code == 0, done.stderr
    assert ADMIN[1] not in done.output
    check(guarded.url, search)
