import json
import math
import re
import resource
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mlflow.tracking import MlflowClient
from optuna.distributions import FloatDistribution, distribution_to_json
from PIL import Image

from searchlight.search.config import load_config
from searchlight.search.libraries import configure_libraries
from searchlight.search.space.objectives import Objective
from searchlight.search.tracking import tracker as tracking
from searchlight.search.tracking.errors import TrackingError
from searchlight.search.tracking.events import make_search_end
from searchlight.search.tracking.runs import Runs
from searchlight.trainables import checkpoint
from searchlight.trainables.checkpoint import images
from tests.search.objectives import VAL_SCORE
from tests.search.tracking.trackers import curve_of, finish, runs_for, runs_in, runs_of, track
from tests.search.trial_states import TrialStates

OF_THE_OBJECTIVE = ("Objective/val/score", "val/score", "best/val/score")
pytestmark = pytest.mark.usefixtures("mlflow_db")


def config(tmp_path, name="one", **given):
    made = load_config({"task": "arc", "name": name, "storage": str(tmp_path), **given})
    made.local_path.mkdir(parents=True)
    (made.local_path / "search.yaml").write_text("task: arc\n")
    return made


def play(tracker):
    """Two trials: one completed, one that diverged."""
    tracker.trials.start(0, {"lr": 0.1, "inner.depth": 2, "precision": "fp16"})
    tracker.trials.start(1, {"lr": 0.2, "inner.depth": 3, "precision": "fp32"})
    for epoch in (1, 2, 3):
        tracker.trials.report(0, epoch, {"val/score": epoch / 10, "train/loss": math.nan}, 1e9 + epoch)
    tracker.trials.end(1, "diverged", "val/score is nan")
    tracker.trials.end(0, "completed")


def check_runs(tracker):
    runs = runs_of(tracker)
    assert set(runs) == {"parent", "0", "1"}
    assert runs["parent"].info.status == "FINISHED"
    assert runs["0"].data.params == {"lr": "0.1", "inner.depth": "2", "precision": "fp16"}
    assert (runs["0"].info.status, runs["0"].data.tags["outcome"]) == ("FINISHED", "completed")
    assert (runs["1"].info.status, runs["1"].data.tags["reason"]) == ("FAILED", "val/score is nan")
    assert runs["0"].data.tags["mlflow.parentRunId"] == tracker.run_id
    assert curve_of(tracker.tracking_uri, runs["0"]) == [(1, 0.1), (2, 0.2), (3, 0.3)]


def test_search_is_a_parent_run_with_a_child_per_trial(tmp_path, monkeypatch):
    played, open_runs = threading.Event(), Runs.open
    with monkeypatch.context() as patch:
        patch.setattr(Runs, "open", lambda runs: played.wait(60) and open_runs(runs))
        tracker = track(config(tmp_path))
        play(tracker)  # which does not wait for the store
        played.set()
        artifact = tmp_path / "trials.parquet"
        artifact.write_bytes(b"rows")
        finish(tracker, [artifact])
    check_runs(tracker)
    kept = sorted(path.name for path in (tmp_path / "mlartifacts").rglob("*") if path.is_file())
    assert kept == ["search.yaml", "trials.parquet"]


def test_runs_have_the_times_of_search_and_trials(tmp_path, left_by_a_driver):
    settings = config(tmp_path)
    tracker = track(settings, search_id="abc", start_time=4e9)
    tracker.trials.start(0, {"lr": 0.5})
    tracker.trials.report(0, 1, {"val/score": 0.1}, 4e9 + 1)
    tracker.trials.end(0, "pruned", "not among the best")  # long after that
    finish(tracker)  # by this clock, which was set back since then
    parent, trial = (runs_of(tracker)[name].info for name in ("parent", "0"))
    assert (parent.start_time, trial.end_time, parent.end_time) == (4e12, 4e12 + 1e3, 4e12)
    again = track(settings, search_id="abc", earlier=left_by_a_driver.get_all())
    finish(again)
    assert runs_of(again)["1"].info.end_time == 4e12 + 2e3, "of its last report, as the study has it"


def test_confirming_run_is_a_tagged_child_without_a_best_value(tmp_path):
    tracker = track(config(tmp_path))
    tracker.trials.start(0, {"lr": 0.5})
    tracker.trials.report(0, 1, {"val/score": 0.5}, 1e9)
    tracker.trials.end(0, "completed")
    tracker.trials.start(1, {"lr": 0.5, "seed": 17}, confirms={"trial": 0, "round": 0, "seed": 17})
    tracker.trials.report(1, 1, {"val/score": 0.25}, 1e9)
    tracker.trials.end(1, "completed")
    end = make_search_end("FINISHED", "", {"confirmed/val/score": 0.25}, confirmed="trial 0 beats the defaults")
    tracker.finish(end, [], 120.0)
    runs = runs_of(tracker)
    tags = runs["1"].data.tags
    assert (tags["purpose"], tags["confirms"], tags["seed"]) == ("confirm", "trial 0", "17")
    assert runs["1"].info.run_name == "confirm-001"
    assert runs["1"].data.metrics["confirmed/val/score"] == 0.25
    assert "best/val/score" not in runs["1"].data.metrics, "it would stand among the trials, which are sorted by it"
    assert runs["0"].data.tags["purpose"] == "search"
    assert runs["0"].data.metrics["best/val/score"] == 0.5
    assert runs["parent"].data.tags["confirmed"] == "trial 0 beats the defaults"
    assert runs["parent"].data.metrics["confirmed/val/score"] == 0.25


def test_trial_without_reason_or_precision_has_no_empty_tag(tmp_path):
    tracker = track(config(tmp_path))
    for number in (0, 1):
        tracker.trials.start(number, {"lr": 0.1})
    tracker.trials.attributes[1]["micro_batches"] = {"batch_size": 8, "accumulation": 4}
    for number in (0, 1):
        tracker.trials.end(number, "completed")
    finish(tracker)
    tags, others = (runs_of(tracker)[name].data.tags for name in "01")
    assert tags["outcome"] == "completed"
    assert all(tags.values())
    assert (tags.get("micro_batches"), others["micro_batches"]) == (None, "batch_size=8, accumulation=4")


def test_parent_has_the_space_and_the_options_it_began_with(tmp_path):
    lr = distribution_to_json(FloatDistribution(1e-4, 0.1, log=True))
    settings = config(tmp_path, trials=8, seed=3)
    options = settings.model_dump(mode="json", by_alias=True)
    about = {"config": options, "searched": {"inner.lr": lr}, "fixed": {"epochs": 9, "lr": 0.5}}
    began = track(settings, search_id="abc", about=about)
    finish(began)
    run = runs_of(began)["parent"]
    assert run.data.params == {
        "space/inner.lr": "0.0001..0.1:log", "epochs": "9", "trials": "8", "scheduler": "hyperband",
        "reduction_factor": "3", "fidelity": "epochs", "sampler": "tpe", "seed": "3",
    }  # fmt: skip
    longer = settings.model_copy(update={"trials": 16, "time_budget": 60.0})
    resumed = track(longer, search_id="abc", about=about)
    finish(resumed)
    again = runs_of(resumed)["parent"].data
    assert (again.params, again.tags["resumed_with"]) == (run.data.params, "trials=16, time_budget=60.0")
    back = track(settings, search_id="abc", about=about)
    finish(back)
    assert "resumed_with" not in runs_of(back)["parent"].data.tags


def test_best_report_and_infinite_values_are_kept(tmp_path):
    tracker = track(config(tmp_path), objectives=(VAL_SCORE, Objective("speed", "max")))
    tracker.trials.start(0, {"lr": 0.1})
    for epoch, (score, rate) in enumerate([(0.1, 9.0), (0.3, 5.0), (0.2, 7.0), (0.4, math.nan)], start=1):
        tracker.trials.report(0, epoch, {"val/score": score, "speed": rate}, 1e9 + epoch)
    tracker.trials.end(0, "diverged", "speed is nan")
    tracker.trials.start(1, {"lr": 0.1})
    values = {"val/nan": math.nan, "val/inf": math.inf, "val/low": -math.inf, "speed": 1.0}
    tracker.trials.report(1, 1, {"val/score": 0.5, **values}, 1e9 + 1)
    tracker.trials.report(1, 2, {"val/score": math.inf, **values}, 1e9 + 2)
    tracker.trials.end(1, "diverged", "val/score is inf after epoch 2")
    finish(tracker)
    runs = runs_of(tracker)
    metrics = runs["0"].data.metrics
    assert (metrics["best/val/score"], metrics["best/speed"]) == (0.3, 5.0)
    metrics = runs["1"].data.metrics
    assert math.isnan(metrics["val/nan"])
    assert metrics["val/inf"] > 1e308  # SQL knows no infinity
    assert metrics["val/low"] < -1e308
    assert metrics["best/val/score"] == 0.5, "an objective that is not finite is never the best"


@pytest.mark.slow
def test_two_searches_create_and_share_a_store(tmp_path, mlflow_db):
    mlflow_db.unlink()
    trackers = [track(config(tmp_path, name)) for name in ("one", "two")]
    for tracker in trackers:
        play(tracker)
    for tracker, name in zip(trackers, ("one", "two"), strict=True):
        finish(tracker)
        children = f"tags.mlflow.parentRunId = '{tracker.run_id}'"
        runs = runs_in(tracker.tracking_uri, trackers[0].experiment_id, children)
        assert {number: run.data.tags["search"] for number, run in runs.items()} == {"0": name, "1": name}


def test_trials_are_sent_before_their_first_report(tmp_path, monkeypatch, sent):
    monkeypatch.setattr(tracking, "LATEST_S", 0.1)
    tracker = track(config(tmp_path))
    tracker.trials.start(0, {"lr": 0.1})
    assert sent.get(timeout=60) == 0
    assert runs_of(tracker)["0"].info.status == "RUNNING"
    finish(tracker)


def test_refused_events_are_kept_and_do_not_hold_up_others(tmp_path):
    tracker = track(config(tmp_path))
    tracker.trials.start(0, {"lr": 0.1, "long": "x" * 7000})
    tracker.trials.report(0, 1, {"val/acc@1": 0.5, "val/score": 0.5}, 1e9)
    tracker.trials.start(1, {"lr": 0.2})
    tracker.trials.report(1, 2, {"val/score": math.nan, "val/" + "x" * 600: 0.5}, 1e9)
    names = ["", "line\n", "nul\0", "val/" + "x" * 600, "y" * 10_000, "../up"]
    for epoch in (3, 4):
        tracker.trials.report(1, epoch, {"val/score": 0.25, **dict.fromkeys(names, 0.5), "val/other": 0.75}, 1e9)
    tracker.trials.end(0, "failed", "because " * 2000)
    tracker.trials.end(1, "completed")
    with pytest.raises(TrackingError, match=r"but refused some of it: .*\. 3 events are kept in"):
        finish(tracker)
    runs = runs_of(tracker)
    assert {key: runs["1"].data.metrics[key] for key in ("val/score", "val/other")} == {
        "val/score": 0.25,
        "val/other": 0.75,
    }
    assert curve_of(tracker.tracking_uri, runs["1"], "val/other") == [(3, 0.75), (4, 0.75)]
    kept = [json.loads(line) for line in (tmp_path / "one" / "mlflow-unsent.jsonl").read_text().splitlines()]
    assert all("val/score" not in event["metrics"] for event in kept)
    assert {name for event in kept for name in event["metrics"]} <= {*names}
    assert runs["0"].data.metrics == {"val/acc_1": 0.5, **dict.fromkeys(OF_THE_OBJECTIVE, 0.5)}
    assert [runs[name].info.status for name in ("0", "1", "parent")] == ["FAILED", "FINISHED", "FINISHED"]


def test_large_events_are_sent_in_several_calls(tmp_path):
    tracker = track(config(tmp_path))
    tracker.trials.start(0, {f"p{number}": number for number in range(250)})
    for epoch in range(1, 31):
        tracker.trials.report(0, epoch, {f"val/m{number}": epoch / 100 for number in range(40)}, 1e9 + epoch)
    tracker.trials.end(0, "completed")
    finish(tracker)
    run = runs_of(tracker)["0"]
    assert len(run.data.params) == 250
    assert run.data.tags["outcome"] == "completed"
    for key in ("val/m0", "val/m39"):
        assert len(curve_of(tracker.tracking_uri, run, key)) == 30


@pytest.fixture
def left_by_a_driver():
    """The trials of a study: one completed, one that diverged, one that still goes on."""
    trials = TrialStates()
    for number in range(3):
        trials.start(number, {"lr": 0.5})
        for epoch in (1, 2):
            trials.report(number, epoch, {"val/score": number + epoch / 10}, 4e9 + epoch)
    trials.end(0, "completed")
    trials.end(1, "diverged")
    return trials


def curves(tracker):
    """Return the times, epochs and scores of each trial."""
    client = MlflowClient(tracker.tracking_uri)
    histories = {
        name: client.get_metric_history(run.info.run_id, "val/score")
        for name, run in runs_of(tracker).items()
        if name != "parent"
    }
    return {name: sorted((m.timestamp, m.step, m.value) for m in history) for name, history in histories.items()}


def draw(settings, number, epoch=1):
    """Save a picture and its checkpoint as the workers of trial `number` do."""
    path = settings.local_path / "checkpoints" / str(number) / f"epoch-{epoch}-a.pt"
    images.save({"one": np.full((2, 2, 3), 10 * number + epoch, np.uint8)}, path)
    checkpoint.save({}, path)


def drawn(tracker):
    """Return the one value that the one picture of each trial has."""
    shown = {}
    for name, run in runs_of(tracker).items():
        for file in Path(run.info.artifact_uri.removeprefix("file://")).glob("pictures/*"):
            assert (file.name, name in shown) == ("one.png", False)
            (shown[name],) = set(np.asarray(Image.open(file)).ravel().tolist())
    return shown


def test_resumed_search_sends_what_its_driver_had_not(tmp_path, left_by_a_driver):
    settings = config(tmp_path)
    for number in (0, 2):
        draw(settings, number)
    dead = track(settings, search_id="abc")  # it sent a part, and died
    dead.trials.start(0, {"lr": 0.5})
    dead.trials.report(0, 1, {"val/score": 0.1}, 4e9 + 1)
    dead.trials.start(2, {"lr": 0.5})
    dead.trials.report(2, 1, {"val/score": 2.1}, 4e9 + 1)
    dead.trials.tell(2, is_over=True)
    finish(dead, stopped="time budget")
    assert runs_of(dead)["parent"].data.tags["stopped"] == "time budget"
    assert drawn(dead) == {"2": 21}, "an interrupted trial too, and one that has not ended not yet"
    draw(settings, 2, epoch=3)
    tracker = track(settings, search_id="abc", earlier=left_by_a_driver.get_all())
    left_by_a_driver.observers = [tracker]
    left_by_a_driver.report(2, 3, {"val/score": 2.3}, 4e9 + 3)
    left_by_a_driver.end(2, "completed")
    finish(tracker)
    assert tracker.run_id == dead.run_id
    assert drawn(tracker) == {"0": 1, "2": 23}
    runs, sent = runs_of(tracker), curves(tracker)
    assert {name: run.info.status for name, run in runs.items()} == {
        "parent": "FINISHED", "0": "FINISHED", "1": "FAILED", "2": "FINISHED",
    }  # fmt: skip
    assert "stopped" not in runs["parent"].data.tags, "it has spent its trials now"
    tags = runs["2"].data.tags
    assert (tags["outcome"], tags.get("reason"), tags["search_id"]) == ("completed", None, "abc")
    for number in range(3):
        epochs = (1, 2, 3) if number == 2 else (1, 2)
        expected = [(int((4e9 + epoch) * 1000), epoch, number + epoch / 10) for epoch in epochs]
        assert sent[str(number)] == expected, "each report once"
    again = track(settings, search_id="abc", earlier=left_by_a_driver.get_all())
    left_by_a_driver.observers = [again]
    left_by_a_driver.tell(2)
    finish(again)
    assert curves(again) == sent


def test_resumed_search_sends_unsent_events_and_artifacts(tmp_path, left_by_a_driver):
    settings = config(tmp_path)
    unsent = settings.local_path / "mlflow-unsent.jsonl"
    unsent.write_text("{}\n")
    dead = runs_for(settings, search_id="abc")
    dead.open()  # and died before it sent anything
    tracker = track(settings, search_id="abc", earlier=left_by_a_driver.get_all())
    left_by_a_driver.observers = [tracker]
    left_by_a_driver.end(2, "pruned", "not among the best")
    finish(tracker)
    assert tracker.run_id == dead.run_id
    runs = runs_of(tracker)
    assert [runs[name].info.status for name in ("0", "1", "2", "parent")] == [
        "FINISHED", "FAILED", "FINISHED", "FINISHED",
    ]  # fmt: skip
    assert not unsent.exists()
    kept = MlflowClient(tracker.tracking_uri).list_artifacts(tracker.run_id)
    assert [file.path for file in kept] == ["search.yaml"]


def test_refused_artifacts_hold_up_nothing_else(tmp_path, monkeypatch):
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


def test_refused_pictures_are_tried_again_at_the_end(tmp_path, refusals):
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


def test_store_that_is_back_is_told_what_it_missed(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "RETRY_S", 0.1)
    left, said, send = [3], [], Runs.send_events

    def send_or_fail(runs, number, events):
        left[0] -= 1
        if left[0] >= 0:
            raise OSError("no route to host")
        return send(runs, number, events)

    monkeypatch.setattr(Runs, "send_events", send_or_fail)
    tracker = track(config(tmp_path), say=said.append, prepare=lambda: [].pop())

    def break_off():
        with tracker:
            play(tracker)
            raise KeyError

    with pytest.raises(KeyError):
        break_off()
    runs = runs_of(tracker)
    assert [runs[name].info.status for name in ("0", "1", "parent")] == ["FINISHED", "FAILED", "FAILED"]
    unkept, lost, back = said
    assert unkept.startswith("the environment of the search cannot be stored: ")
    assert "no route to host. The search continues, and sends it later" in lost
    assert back.endswith(" is back, and gets the missed events")


def test_database_on_a_full_disk_is_one_line_and_loses_nothing(tmp_path, monkeypatch, capfd):
    configure_libraries()
    monkeypatch.setattr(tracking, "RETRY_S", 0.1)
    settings, said, before = config(tmp_path), [], resource.getrlimit(resource.RLIMIT_FSIZE)

    def say(line):
        said.append(line)
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        tracker = track(settings, say=say)
        play(tracker)
        finish(tracker)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    check_runs(tracker)
    lost, back = said
    assert re.fullmatch(r"MLflow at sqlite:\S+ fails: [^:\n]+\. The search continues, and sends it later", lost)
    assert back.endswith(" is back, and gets the missed events")
    assert "Traceback" not in capfd.readouterr().err


def test_full_disk_hides_nothing_that_mlflow_lacks(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "RETRY_S", 0.1)
    said = []
    settings = config(tmp_path)
    tracker = track(settings, "http://127.0.0.1:9", say=said.append)
    play(tracker)
    (settings.local_path / "mlflow-unsent.jsonl").mkdir()  # what cannot be written to
    with pytest.raises(TrackingError, match="Nothing is lost"):
        finish(tracker, timeout_s=2.0)
    assert said[-1].startswith("the events that MLflow has missed cannot be stored: ")
