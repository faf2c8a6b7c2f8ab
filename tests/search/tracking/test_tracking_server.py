"""Tests the tracker and the replay against a real MLflow server: with PostgreSQL, gone for a while, with a login."""

import queue
import shutil

import numpy as np
import pytest
from mlflow.tracking import MlflowClient

from searchlight.search.formatting import format_command
from searchlight.search.study.study import create_study
from searchlight.search.tracking import tracker as tracking
from searchlight.search.tracking.errors import TrackingError
from searchlight.trainables.checkpoint import images
from searchlight.trainables.ports import find_free_ports
from tests.search.stored_studies import Search, always_random, replayed
from tests.search.tracking import trackers
from tests.search.tracking.trackers import curve_of, finish, track_stored
from tests.servers.mlflow import ADMIN, MlflowServer

pytestmark = pytest.mark.slow
USER, PASSWORD = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"


@pytest.fixture(scope="module")
def postgres_backed(server, tmp_path_factory):
    store = server.database("mlflow").replace("postgresql:", "postgresql+psycopg:")
    made = MlflowServer(tmp_path_factory.mktemp("server"), store).start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, empty_mlflow_db):
    folder = tmp_path_factory.mktemp("guarded")
    shutil.copy(empty_mlflow_db, folder / "server.db")
    made = MlflowServer(folder, auth=True).start()
    yield made
    made.stop()


@pytest.fixture
def said():
    """What a tracker says to the user."""
    return queue.SimpleQueue()


def play(search, epochs=3):
    """Two trials: one completed, one that diverged."""
    first, second = search.begin(), search.begin()
    for epoch in range(1, epochs + 1):
        search.report(first, epoch, epoch / 100, **{"train/loss": 1 / epoch})
    search.report(second, 1, 0.5)
    search.end(second, "diverged", "val/score is nan")
    search.end(first, "completed")
    return first, second


def runs_in(uri, search):
    experiment = MlflowClient(uri).get_experiment_by_name(search.config.experiment)
    return trackers.runs_in(uri, experiment.experiment_id, f"tags.search = '{search.config.name}'")


def check(uri, search, epochs=3):
    runs = runs_in(uri, search)
    assert {name: run.info.status for name, run in runs.items()} == {
        "parent": "FINISHED",
        "0": "FINISHED",
        "1": "FAILED",
    }
    curve = curve_of(uri, runs["0"])
    assert sorted(curve) == search.curve(0)
    assert len(curve) == epochs
    assert runs["0"].data.params["inner.depth"] == "2"
    assert "MLflow" not in runs["parent"].data.tags["mlflow.note.content"]
    return runs


def test_server_with_postgresql_has_runs_and_artifacts(tmp_path, postgres_backed):
    search, client = Search(tmp_path), MlflowClient(postgres_backed.url)
    checkpoint = search.config.local_path / "checkpoints" / "0" / "epoch-3-a.pt"
    images.save({"one": np.zeros((2, 2, 3), np.uint8)}, checkpoint)
    tracker = track_stored(search, postgres_backed.url)
    play(search)
    finish(tracker)
    runs = check(postgres_backed.url, search)
    kept = client.list_artifacts(runs["parent"].info.run_id)
    assert [file.path for file in kept] == ["search.yaml"]
    drawn = [client.list_artifacts(runs[name].info.run_id, "pictures") for name in ("0", "1")]
    assert [[file.path for file in files] for files in drawn] == [["pictures/one.png"], []]


def test_server_that_goes_away_and_returns_lacks_nothing(tmp_path, postgres_backed, monkeypatch, said, sent):
    monkeypatch.setattr(tracking, "RETRY_S", 0.5)
    search = Search(tmp_path, "gone")
    tracker = track_stored(search, postgres_backed.url, said.put)
    first = search.begin()
    search.report(first, 1, 0.1)
    assert sent.get(timeout=120) == first
    postgres_backed.stop()
    try:
        search.report(first, 2, 0.2)
        line = f"MLflow at {postgres_backed.url} does not answer: Connection refused. "
        assert said.get(timeout=120) == f"{line}The search continues, and sends it later"
        second = search.begin()
        for epoch in range(3, 41):
            search.report(first, epoch, epoch / 100)
        search.end(second, "diverged", "val/score is nan")
    finally:
        postgres_backed.start()
    search.end(first, "completed")
    finish(tracker)
    check(postgres_backed.url, search, epochs=40)
    assert said.get(timeout=120) == f"MLflow at {postgres_backed.url} is back, and gets the missed events"
    assert said.empty()
    assert not (search.config.local_path / "mlflow-unsent.jsonl").exists()


def test_replay_tells_what_an_absent_server_lacks(tmp_path, postgres_backed, monkeypatch):
    away = f"http://127.0.0.1:{find_free_ports()[0]}"
    search = Search(tmp_path, "away", tracking_uri=away)
    tracker = track_stored(search, away)
    play(search)
    with pytest.raises(TrackingError) as error:
        finish(tracker, timeout_s=3.0, stopped="time budget")
    assert str(error.value) == (
        f"MLflow at {away} must take every trial, but does not answer: Connection refused. Nothing is lost: "
        f"`{format_command('report')} away --storage {tmp_path} --replay` sends what is missing."
    )
    refused = replayed(search)
    assert refused.exit_code == 1
    assert refused.stderr.splitlines() == [
        f"MLflow at {away} must take the events of away, but does not answer: Connection refused. "
        "Nothing is lost: try again when it can."
    ]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", postgres_backed.url)
    done = replayed(search)
    assert done.exit_code == 0, done.stderr
    assert "now has the missing events of 2 of 2 trials" in done.stdout
    runs = check(postgres_backed.url, search)
    assert runs["parent"].data.tags["stopped"] == "time budget"
    assert "Best val/score" in runs["parent"].data.tags["mlflow.note.content"]
    files = [file.path for file in MlflowClient(postgres_backed.url).list_artifacts(runs["parent"].info.run_id)]
    assert {"search.yaml", "trials.parquet"} <= {*files}
    assert not (search.config.local_path / "mlflow-unsent.jsonl").exists()
    assert "had all trials" in replayed(search).stdout
    again = check(postgres_backed.url, search)
    assert again["parent"].data.tags["stopped"] == "time budget"
    assert again["parent"].info.end_time == runs["parent"].info.end_time


def test_killed_trials_are_interrupted_until_resumed(tmp_path, postgres_backed, sent):
    search = Search(tmp_path, "killed", tracking_uri=postgres_backed.url)
    play(search)
    third = search.begin()
    search.report(third, 1, 0.1)
    assert replayed(search).exit_code == 0
    runs = runs_in(postgres_backed.url, search)
    assert [runs[name].info.status for name in ("parent", "0", "1", "2")] == ["KILLED", "FINISHED", "FAILED", "KILLED"]
    assert runs["2"].data.tags["outcome"] == "interrupted"
    assert "searchlight resume killed" in runs["parent"].data.tags["mlflow.note.content"]
    while not sent.empty():
        sent.get()
    search.study, search.store = create_study(search.config.local_path, always_random, [search.objective])
    tracker = track_stored(search, postgres_backed.url)
    tracker.request_connection()
    assert sent.get(timeout=120) == third
    resumed = runs_in(postgres_backed.url, search)["2"]
    assert resumed.info.status == "RUNNING"
    assert "outcome" not in resumed.data.tags
    search.end(third, "pruned", "not among the best")
    finish(tracker)
    assert runs_in(postgres_backed.url, search)["2"].info.status == "FINISHED"


def test_wrong_password_is_told_and_the_right_one_sends_all(tmp_path, guarded, monkeypatch, said):
    monkeypatch.setattr(tracking, "RETRY_S", 0.2)
    monkeypatch.setenv(USER, ADMIN[0])
    monkeypatch.setenv(PASSWORD, "wrong")
    search = Search(tmp_path, "locked", tracking_uri=guarded.url)
    tracker = track_stored(search, guarded.url, said.put)
    play(search)
    told = f"does not accept the login: {USER} and {PASSWORD} must be those of an account there"
    assert said.get(timeout=120) == f"MLflow at {guarded.url} {told}. The search continues, and sends it later"
    with pytest.raises(TrackingError, match=r"locked .* --replay` sends what is missing"):
        finish(tracker, timeout_s=3600.0)  # it does not wait for that: waiting would change nothing
    assert told in replayed(search).stderr
    monkeypatch.setenv(PASSWORD, ADMIN[1])
    done = replayed(search)
    assert done.exit_code == 0, done.stderr
    check(guarded.url, search)


def test_password_in_the_uri_is_used_and_written_nowhere(tmp_path, guarded, monkeypatch):
    for name in (USER, PASSWORD):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{ADMIN[0]}:{ADMIN[1]}@127.0.0.1:{guarded.port}")
    search = Search(tmp_path, "inside")
    play(search)
    done = replayed(search)
    assert done.exit_code == 0, done.stderr
    assert ADMIN[1] not in done.output
    check(guarded.url, search)
