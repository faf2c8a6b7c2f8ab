"""How trials and searches end: by failures, divergence, stops and lost gangs."""

import math
import threading
from unittest.mock import Mock

import pytest
from optuna.trial import TrialState
from ray.tune.search import Searcher

from searchlight.search.analysis.best_trials import find_best
from searchlight.search.errors import StoreError
from searchlight.search.execution.stoppers import Stoppers
from searchlight.search.space.objectives import Objective
from searchlight.search.space.stop_condition import StopCondition
from searchlight.search.study.changes import find_changes
from searchlight.search.study.trial import get_reports
from searchlight.trainables.worker.messages import (
    Divergence,
    EpochReport,
)
from tests.search.execution.searcher_harness import end, hand_on, interrupt, lose, outcomes, report
from tests.search.objectives import VAL_LOSS


@pytest.mark.parametrize(("passed", "is_stopped"), [(True, False), (False, True), (None, True), (None, False)])
def test_trials_that_fail_before_the_audit_ends_count_only_if_it_finds_no_errors(passed, is_stopped, make_searcher):
    audit = Mock(return_value=None)
    searcher, study, watching = make_searcher(trials=3, passed_audit=audit)
    for turn, outcome in enumerate(["failed", "diverged", "interrupted"]):
        searcher.suggest(f"t{turn}")
        end(searcher, f"t{turn}", outcome, "KeyError: 'x'")
    assert searcher.suggest("t3")["segment"].trial == 2, "the others wait for the end of the audit"
    assert outcomes(study) == ["interrupted"] * 3
    audit.return_value = passed
    if is_stopped:
        searcher.limits.stopping.set()
    if passed is not None:
        searcher.suggest("t4")
    else:
        searcher.finish(prune=True)
    counted = ["failed", "diverged"] if passed or not is_stopped else ["interrupted", "interrupted"]
    assert outcomes(study)[:2] == counted
    assert [event[0] for event in watching.events if event[0] in ("failed", "diverged")] == counted[
        : 2 * (not is_stopped)
    ]
    if passed:
        end(searcher, "t3", "failed", "KeyError: 'x'")
        assert outcomes(study)[2] == "failed"


def test_confirmation_does_not_wait_for_an_audit_that_nobody_ends(make_searcher):
    searcher, study, _ = make_searcher(trials=1, passed_audit=lambda: None)
    searcher.suggest("t0")
    end(searcher, "t0", "failed", "KeyError: 'x'")
    assert (outcomes(study), study.live) == (["interrupted"], {0})
    assert searcher.suggest("t1") == Searcher.FINISHED
    assert (outcomes(study), study.live) == (["failed"], set())


def test_lost_gang_continues_its_trial_until_the_limit(make_searcher):
    searcher, study, _ = make_searcher(trials=1, rungs=(3,), max_losses=1)
    searcher.suggest("t0")
    lose(searcher, "t0")
    searcher.suggest("t1")
    report(searcher, "t1", 1, 0.3)  # which forgives the loss before
    lose(searcher, "t1")
    segment = searcher.suggest("t2")["segment"]
    assert (segment.trial, segment.epoch, segment.checkpoints[0]) == (0, 1, "/nowhere/t1-1.pt")
    lose(searcher, "t2")
    assert study.get_trial(0).user_attrs["reason"] == "its gang was lost 2 times: unknown"


def test_error_of_the_search_itself_ends_it_in_order(make_searcher, monkeypatch):
    searcher, study, _ = make_searcher()
    searcher.suggest("t0")
    searcher.suggest("t1")
    monkeypatch.setattr(study, "report", lambda *_: 1 / 0)
    report(searcher, "t0", 1, 0.3, done=True)
    assert isinstance(searcher.error, ZeroDivisionError)
    assert searcher.limits.stopping.is_set()
    assert searcher.suggest("t2") is None, "t1 still runs"
    interrupt(searcher, "t1")
    assert searcher.suggest("t3") == Searcher.FINISHED


def test_folder_that_a_worker_cannot_write_ends_the_search_but_no_trial(make_searcher):
    searcher, study, _ = make_searcher()
    searcher.suggest("t0")
    end(searcher, "t0", "interrupted", "a checkpoint cannot be written: [Errno 28]", unwritable=True)
    assert isinstance(searcher.error, StoreError)
    assert str(searcher.error) == "trial 0: a checkpoint cannot be written: [Errno 28]"
    assert searcher.suggest("t1") == Searcher.FINISHED
    assert not study.get_trial(0).state.is_finished(), "it can be resumed"


@pytest.mark.parametrize(
    ("prune", "last"),
    [(False, ("interrupted", 0, "the search was stopped")), (True, ("pruned", 0, "not among the best at epoch 1"))],
)
def test_stopped_search_begins_nothing_and_ends_waiting_trials(make_searcher, prune, last):
    stopping = threading.Event()
    searcher, study, watching = make_searcher(stopping=stopping)
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.3, done=True)
    stopping.set()
    assert searcher.suggest("t1") == Searcher.FINISHED
    searcher.finish(prune=prune)
    assert outcomes(study) == [last[0]]
    assert watching.events[-1] == last
    assert watching.ends == {0: get_reports(study.get_trial(0))[1]["time"]}, "it only waited since"


@pytest.mark.parametrize(("mode", "value"), [("min", -math.inf), ("max", math.inf), ("min", math.nan)])
def test_objective_that_is_not_finite_is_never_a_value(make_searcher, mode, value):
    searcher, study, watching = make_searcher(trials=2, mode=mode)
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.3)
    last = EpochReport(2, {"val/loss": value, "val/other": math.nan}, None, {"samples": 7.0})
    end(searcher, "t0", "diverged", "it did", divergence=Divergence("objective", 2), last=last)
    trial = study.get_trial(0)
    assert (trial.state, trial.intermediate_values) == (TrialState.PRUNED, {1: 0.3})
    assert trial.user_attrs["divergence"] == {"kind": "objective", "epoch": 2}
    stored = get_reports(trial)[2]
    assert str(stored["metrics"]["val/loss"]) == str(value)
    assert {*stored} == {"epoch", "metrics", "checkpoint", "samples", "time"}
    assert watching.events[-2:] == [("reported", 0, 2), ("diverged", 0, "it did")]
    assert find_best(study.get_trials(), Objective("val/loss", mode)) is None
    assert searcher.suggest("t1")["segment"].trial == 1, "the search goes on"


@pytest.mark.parametrize("others", [(), (Objective("other", "min"),)], ids=["one objective", "two objectives"])
@pytest.mark.parametrize(("epoch", "has_report"), [(2, False), (2, True), (3, True)])
def test_divergence_in_a_repeated_epoch_is_told_once(make_searcher, others, epoch, has_report):
    stopped = []
    stoppers = Stoppers(VAL_LOSS, target=StopCondition.from_text("other<0.1"), stop=stopped.append)
    searcher, study, watching = make_searcher(trials=1, rungs=(9,), others=others, stoppers=stoppers)
    searcher.suggest("t0")
    for number in (1, 2, 3):
        hand_on(searcher, "t0", EpochReport(number, {"val/loss": 0.3, "other": 1.0}, None, {}))
    lose(searcher, "t0")
    searcher.suggest("t1")
    last = EpochReport(epoch, {"val/loss": math.nan, "other": 0.0}, None, {}) if has_report else None
    end(searcher, "t1", "diverged", "it did", divergence=Divergence("loss", epoch), last=last)
    assert watching.find("reported") == [("reported", 0, n) for n in (1, 2, 3, epoch)[: 3 + has_report]]
    assert stopped == [], "a diverged epoch meets no target"
    anew = find_changes(study.get_trial(0))
    assert [number for number, _ in anew.reports] == [1, 2, 3]
    assert anew.seen == watching.seen[0]


@pytest.mark.parametrize("end_of_segment", ["at a rung", "interrupted", "completed"])
def test_target_or_task_completes_a_trial_before_its_end(make_searcher, end_of_segment):
    stopping = threading.Event()
    target = None if end_of_segment == "completed" else StopCondition.from_text("val/loss<0.2")
    stoppers = Stoppers(VAL_LOSS, target=target, stop=lambda reason: stopping.set())
    searcher, study, watching = make_searcher(trials=2, stopping=stopping, stoppers=stoppers)
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.3, done=True)
    searcher.suggest("t1")
    report(searcher, "t1", 1, 0.1, done=end_of_segment == "at a rung")
    assert stopping.is_set() == (target is not None)
    if end_of_segment != "at a rung":
        end(searcher, "t1", end_of_segment, "")
    assert searcher.suggest("t2") == Searcher.FINISHED, "a trial is complete: no other continues only for that"
    searcher.finish(prune=True)
    assert (outcomes(study), study.get_trial(1).value) == (["pruned", "completed"], 0.1)
    assert ("completed", 1, "reached val/loss<0.2" if target else "returned after 1 of 9 reports") in watching.events


def test_function_that_returns_early_is_told_once(make_searcher, caplog):
    searcher, study, _ = make_searcher(trials=3, rungs=(2,), fixed={"epochs": 2})
    for trial, reports in enumerate((1, 1, 2)):
        assert searcher.suggest(f"t{trial}")["segment"].is_last
        for epoch in range(1, reports + 1):
            report(searcher, f"t{trial}", epoch, 0.3)
        end(searcher, f"t{trial}", "completed", "")
    reasons = [trial.user_attrs["reason"] for trial in study.get_trials()]
    assert reasons == ["returned after 1 of 2 reports"] * 2 + [""]
    assert caplog.text.count("its function or program returned after 1 of 2 reports") == 1


def test_traceback_that_cannot_be_written_ends_no_search(make_searcher, tmp_path, caplog):
    (tmp_path / "errors").write_text("a file, where a folder is to be")
    searcher, study, _ = make_searcher(trials=2)
    searcher.suggest("t0")
    end(searcher, "t0", "failed", "KeyError: 'x'", "Traceback: here")
    assert (searcher.error, outcomes(study)) == (None, ["failed"])
    assert "trial 0: its traceback cannot be written: " in caplog.text
    assert "Traceback: here" in caplog.text
    assert searcher.suggest("t1") is not None


def test_gang_may_be_lost_for_a_reason_that_no_file_takes(make_searcher):
    searcher, study, _ = make_searcher(trials=1, max_losses=0)
    searcher.suggest("t0")
    searcher.reports.handle_gang_failure(0, "RuntimeError: \udc80")
    assert study.get_trial(0).user_attrs["reason"] == "its gang was lost 1 times: RuntimeError: \\udc80"


@pytest.mark.parametrize("again", [False, True])
def test_diverged_epoch_of_a_killed_driver_is_done_again(make_searcher, again):
    searcher, study, _ = make_searcher(trials=1, rungs=(2,))
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.3)
    # The driver is killed before it has written that the trial ends.
    study.record_report(0, 2, {"metrics": {"val/loss": math.nan}, "checkpoint": None, "time": 12.0})
    study.live.clear()
    searcher, study, _ = make_searcher(trials=1, rungs=(2,), onto=study)
    searcher.recover()
    assert searcher.suggest("t1")["segment"].epoch == 1
    if again:
        end(searcher, "t1", "diverged", "it did", last=EpochReport(2, {"val/loss": math.nan}, None, {}))
        assert outcomes(study) == ["diverged"]
        assert get_reports(study.get_trial(0))[2]["time"] == 12.0, "its time is what identifies it in MLflow"
    else:
        report(searcher, "t1", 2, 0.2, done=True)
        assert (study.get_trial(0).state, study.get_trial(0).value) == (TrialState.COMPLETE, 0.2)
