"""The tracker against the default store, SQLite in a file."""

import math
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mlflow.tracking import MlflowClient
from optuna.samplers import RandomSampler
from PIL import Image

from search.config import load_config
from search.config.objectives import Objective
from search.config.search_space import resolve_space
from search.study.study import create_study
from search.tracking import tracker as tracking
from search.tracking.errors import TrackingError
from search.tracking.runs import Runs
from search.tracking.tracker import MLflowCallback
from search.tracking.uri import resolve_tracking_uri
from tests.search.objectives import VAL_SCORE
from trainables.task import TaskConfig, images, searchable


class Config(TaskConfig):
    lr: float = searchable(0.5, low=0.0, high=1.0)


def config(tmp_path, name="one", **given):
    made = load_config({"task": "arc", "name": name, "storage": str(tmp_path), **given})
    made.local_path.mkdir(parents=True)
    (made.local_path / "search.yaml").write_text("task: arc\n")
    return made


def track(settings, environment=None, search_id=None, others=(), **more):
    objectives = (VAL_SCORE, *others)
    where = resolve_tracking_uri(settings, environment or {})
    return MLflowCallback(Runs(settings, *where, search_id or uuid.uuid4().hex, objectives), **more)


def play(tracker):
    """Two trials: one completed, one that diverged."""
    tracker.on_trial_start(0, {"lr": 0.1, "inner.depth": 2, "precision": "fp16"})
    tracker.on_trial_start(1, {"lr": 0.2, "inner.depth": 3, "precision": "fp32"})
    for epoch in (1, 2, 3):
        tracker.on_trial_report(0, epoch, {"val/score": epoch / 10, "train/loss": math.nan}, 1e9 + epoch)
    tracker.on_trial_end(1, "diverged", "val/score is nan")
    tracker.on_trial_end(0, "completed", "")


def finish(tracker, files=(), timeout_s=60.0):
    tracker.finish("FINISHED", "**Best**", {"best/val/score": 0.3}, list(files), timeout_s)


def test_of_several_objectives_a_run_has_those_of_its_best_report(tmp_path):
    tracker = track(config(tmp_path), others=[Objective("speed", "max")])
    tracker.on_trial_start(0, {"lr": 0.1})
    for epoch, (score, rate) in enumerate([(0.1, 9.0), (0.3, 5.0), (0.2, 7.0), (0.4, math.nan)], start=1):
        tracker.on_trial_report(0, epoch, {"val/score": score, "speed": rate}, 1e9 + epoch)
    tracker.on_trial_end(0, "diverged", "speed is nan")
    finish(tracker)
    metrics = runs_of(tracker)["0"].data.metrics
    assert (metrics["best/val/score"], metrics["best/speed"]) == (0.3, 5.0)


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


def test_values_that_are_not_finite_are_kept_as_far_as_a_store_can(tmp_path):
    tracker = track(config(tmp_path))
    tracker.on_trial_start(0, {"lr": 0.1})
    values = {"val/nan": math.nan, "val/inf": math.inf, "val/low": -math.inf}
    tracker.on_trial_report(0, 1, {"val/score": 0.5, **values}, 1e9 + 1)
    tracker.on_trial_report(0, 2, {"val/score": math.inf, **values}, 1e9 + 2)
    tracker.on_trial_end(0, "diverged", "val/score is inf after epoch 2")
    finish(tracker)
    metrics = runs_of(tracker)["0"].data.metrics
    assert math.isnan(metrics["val/nan"])
    assert metrics["val/inf"] > 1e308  # SQL knows no infinity
    assert metrics["val/low"] < -1e308
    assert metrics["best/val/score"] == 0.5, "an objective that is not finite is never the best"


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


def test_trials_are_there_before_their_first_report_however_long_an_epoch_is(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "LATEST_S", 0.1)
    tracker = track(config(tmp_path))
    tracker.on_trial_start(0, {"lr": 0.1})
    deadline = time.monotonic() + 60
    while not tracker.run_id or "0" not in runs_of(tracker):
        assert time.monotonic() < deadline, "it did not come within the time"
        time.sleep(0.1)
    assert runs_of(tracker)["0"].info.status == "RUNNING"
    finish(tracker)


def test_no_call_waits_for_the_store(tmp_path):
    tracker = track(config(tmp_path))
    start = time.monotonic()
    play(tracker)
    assert time.monotonic() - start < 0.1, "the database is not even there yet"
    finish(tracker)


def test_what_mlflow_refuses_does_not_hold_up_the_rest_and_is_kept(tmp_path):
    tracker = track(config(tmp_path))
    tracker.on_trial_start(0, {"lr": 0.1, "long": "x" * 7000})
    tracker.on_trial_report(0, 1, {"val/acc@1": 0.5, "val/score": 0.5}, 1e9)
    tracker.on_trial_start(1, {"lr": 0.2})
    tracker.on_trial_report(1, 2, {"val/score": math.nan, "val/" + "x" * 600: 0.5}, 1e9)
    tracker.on_trial_end(0, "failed", "because " * 2000)
    tracker.on_trial_end(1, "completed", "")
    with pytest.raises(TrackingError, match=r"but refused some of it: .*\. 1 events are kept in"):
        finish(tracker)
    runs = runs_of(tracker)
    assert runs["0"].data.metrics == {"val/acc_1": 0.5, "val/score": 0.5, "best/val/score": 0.5}
    assert [runs[name].info.status for name in ("0", "1", "parent")] == ["FAILED", "FINISHED", "FINISHED"]


def left_by_a_driver(tmp_path):
    """A study of three trials: one completed, one that diverged, one that still goes on."""
    study, journal = create_study(tmp_path, RandomSampler, [VAL_SCORE])
    space = resolve_space(Config, {"precision": "fp32"}, {})
    for number in range(3):
        study.ask(space)
        study.record_config(number, {"lr": 0.5})
        for epoch in (1, 2):
            report = {"metrics": {"val/score": number + epoch / 10}, "checkpoint": None, "time": 1e9 + epoch}
            study.report(number, epoch, report["metrics"]["val/score"], report)
    for number in (0, 1):
        study.end(number, ("completed", "diverged")[number], "")
    journal.close()
    return study.get_trials()


def everything(tracker):
    """All that MLflow shows of the children, by trial."""
    client = MlflowClient(tracker.tracking_uri)
    shown = {}
    for name, run in runs_of(tracker).items():
        metrics = {
            key: sorted((m.timestamp, m.step, m.value) for m in client.get_metric_history(run.info.run_id, key))
            for key in run.data.metrics
        }
        tags = {key: value for key, value in run.data.tags.items() if key in ("outcome", "reason", "search_id")}
        shown[name] = (run.info.run_id, run.info.status, run.data.params, metrics, tags)
    return shown


def draw(settings, number, epoch=1):
    """As the workers of trial `number` do."""
    path = settings.local_path / "checkpoints" / str(number) / f"epoch-{epoch}-a.pt"
    images.save({"one": np.full((2, 2, 3), 10 * number + epoch, np.uint8)}, path)


def drawn(tracker):
    """The one value that the one picture of each trial has, by trial."""
    shown = {}
    for name, run in runs_of(tracker).items():
        for file in Path(run.info.artifact_uri.removeprefix("file://")).glob("pictures/*"):
            assert (file.name, name in shown) == ("one.png", False)
            (shown[name],) = set(np.asarray(Image.open(file)).ravel().tolist())
    return shown


def test_a_search_that_is_taken_up_continues_its_runs_and_tells_what_its_driver_had_not_sent(tmp_path):
    settings, study = config(tmp_path), tmp_path / "study"
    study.mkdir()
    for number in (0, 2):
        draw(settings, number)
    dead = track(settings, search_id="abc")  # it sent a part, and died
    dead.on_trial_start(0, {"lr": 0.5})
    dead.on_trial_report(0, 1, {"val/score": 0.1}, 1e9 + 1)
    dead.on_trial_start(2, {"lr": 0.5})
    dead.on_trial_report(2, 1, {"val/score": 2.1}, 1e9 + 1)
    dead.on_trial_end(2, "interrupted", "the search was stopped")
    finish(dead)
    assert drawn(dead) == {"2": 21}, "an interrupted trial too, and one that has not ended not yet"
    draw(settings, 2, epoch=3)
    trials = left_by_a_driver(study)
    tracker = track(settings, search_id="abc", earlier=trials)
    tracker.on_trial_report(2, 3, {"val/score": 2.3}, 1e9 + 3)
    tracker.on_trial_end(2, "completed", "")
    finish(tracker)
    assert tracker.run_id == dead.run_id
    assert drawn(tracker) == {"0": 1, "2": 23}
    shown = everything(tracker)
    assert set(shown) == {"parent", "0", "1", "2"}
    assert [shown[name][1] for name in ("parent", "0", "1", "2")] == ["FINISHED", "FINISHED", "FAILED", "FINISHED"]
    assert shown["2"][4] == {"outcome": "completed", "reason": "", "search_id": "abc"}
    for number in range(3):
        epochs = (1, 2, 3) if number == 2 else (1, 2)
        expected = [(int((1e9 + epoch) * 1000), epoch, number + epoch / 10) for epoch in epochs]
        assert shown[str(number)][3]["val/score"] == expected, "each report once"
    again = track(settings, search_id="abc", earlier=trials)
    again.on_trial_report(2, 3, {"val/score": 2.3}, 1e9 + 3)
    finish(again)
    curves = {name: run[3]["val/score"] for name, run in shown.items() if name != "parent"}
    assert {name: run[3]["val/score"] for name, run in everything(again).items() if name != "parent"} == curves


def test_a_search_that_is_taken_up_and_spends_its_trials_has_not_been_stopped(tmp_path):
    settings, study = config(tmp_path), tmp_path / "study"
    study.mkdir()
    first = track(settings, search_id="abc")
    play(first)
    first.finish("FINISHED", "", {}, [], 60.0, "time budget")
    assert runs_of(first)["parent"].data.tags["stopped"] == "time budget"
    second = track(settings, search_id="abc", earlier=left_by_a_driver(study))
    finish(second)
    assert "stopped" not in runs_of(second)["parent"].data.tags


def test_what_was_never_sent_comes_when_the_search_is_taken_up_and_its_file_goes(tmp_path):
    settings, study = config(tmp_path), tmp_path / "study"
    study.mkdir()
    (settings.local_path / "mlflow-unsent.jsonl").write_text("{}\n")
    tracker = track(settings, search_id="abc", earlier=left_by_a_driver(study))
    tracker.on_trial_end(2, "pruned", "not among the best")
    finish(tracker)
    assert [run.info.status for _, run in sorted(runs_of(tracker).items())] == [
        "FINISHED",
        "FAILED",
        "KILLED",
        "FINISHED",
    ]
    assert not (settings.local_path / "mlflow-unsent.jsonl").exists()


def test_what_is_more_than_one_call_takes_is_told_in_several(tmp_path):
    tracker = track(config(tmp_path))
    tracker.on_trial_start(0, {f"p{number}": number for number in range(250)})
    for epoch in range(1, 61):
        tracker.on_trial_report(0, epoch, {f"val/m{number}": epoch / 100 for number in range(40)}, 1e9 + epoch)
    tracker.on_trial_end(0, "completed", "")
    finish(tracker)
    run = runs_of(tracker)["0"]
    assert len(run.data.params) == 250
    assert run.data.tags["outcome"] == "completed"
    for key in ("val/m0", "val/m39"):
        assert len(MlflowClient(tracker.tracking_uri).get_metric_history(run.info.run_id, key)) == 60


def test_the_artifacts_of_a_driver_that_died_before_it_sent_them_come_with_the_next_one(tmp_path):
    settings, study = config(tmp_path), tmp_path / "study"
    study.mkdir()
    dead = Runs(settings, *resolve_tracking_uri(settings, {}), "abc", [VAL_SCORE])
    dead.open()
    tracker = track(settings, search_id="abc", earlier=left_by_a_driver(study))
    tracker.on_trial_end(2, "pruned", "not among the best")
    finish(tracker)
    assert tracker.run_id == dead.run_id
    kept = MlflowClient(tracker.tracking_uri).list_artifacts(tracker.run_id)
    assert [file.path for file in kept] == ["search.yaml"]


def test_artifacts_that_cannot_be_kept_hold_up_nothing_else_and_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "RETRY_S", 0.1)
    (tmp_path / "mlartifacts").write_text("no folder")
    tracker = track(config(tmp_path))
    play(tracker)
    with pytest.raises(TrackingError, match=r"but has not taken search\.yaml: fails: .*Not a directory.* --replay"):
        finish(tracker)
    check_runs(tracker)


@pytest.fixture
def refusals(monkeypatch):
    """How often pictures are still refused, and those of which trials were to be sent."""
    monkeypatch.setattr(tracking, "RETRY_S", 0.1)
    send, found = Runs.send_pictures, SimpleNamespace(left=0, tried=[])

    def send_or_refuse(runs, number):
        found.tried.append(number)
        found.left -= 1
        if found.left >= 0:
            raise OSError("no room")
        send(runs, number)

    monkeypatch.setattr(Runs, "send_pictures", send_or_refuse)
    return found


def test_pictures_that_are_not_taken_hold_up_no_trial_and_are_tried_again_at_the_end_or_told(tmp_path, refusals):
    def tracked(name):
        settings = config(tmp_path, name, experiment=name)
        for number in (0, 1):
            draw(settings, number)
        tracker = track(settings)
        play(tracker)
        return tracker

    refusals.left = 2
    late = tracked("late")
    finish(late)
    check_runs(late)
    assert drawn(late) == {"0": 1, "1": 11}
    assert refusals.tried in ([0, 0, 0, 1], [1, 1, 1, 0]), "once one was refused, no other is tried before the end"
    refusals.left = 1000
    never = tracked("never")
    with pytest.raises(TrackingError, match=r"has not taken the pictures of trial \d: fails: no room\. .* --replay"):
        finish(never)
    check_runs(never)


def test_a_disk_that_is_full_hides_nothing_of_what_mlflow_lacks(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "RETRY_S", 0.1)
    said = []
    settings = config(tmp_path)
    tracker = track(settings, {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}, say=said.append)
    play(tracker)
    (settings.local_path / "mlflow-unsent.jsonl").mkdir()  # what cannot be written to
    with pytest.raises(TrackingError, match="Nothing is lost"):
        finish(tracker, timeout_s=2.0)
    assert said[-1].startswith("what MLflow has not taken cannot be kept: ")
