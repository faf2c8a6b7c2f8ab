"""The searcher, driven as Tune drives it: suggest, results, completions."""

import math
import threading
import time

import pytest
from optuna.trial import TrialState
from ray.tune.search import Searcher

from search.analysis.best_trials import find_best
from search.config.objectives import Objective
from search.config.stop_condition import StopCondition
from search.execution.stoppers import Stoppers
from search.study.trial import get_outcome, get_reports, get_segments, gpu_seconds_used
from tests.search.execution.searcher_harness import Config, end, hand_on, interrupt, report
from tests.search.objectives import VAL_LOSS
from trainables.worker.messages import Divergence, EpochReport, TrialRelease


def test_a_stretch_carries_all_that_a_gang_needs(make_searcher, tmp_path):
    searcher, _, _ = make_searcher()
    segment = searcher.suggest("t0")["segment"]
    assert (segment.trial, segment.epoch, segment.until, segment.checkpoints[0]) == (0, 0, 1, None)
    assert segment.folder == str(tmp_path / "checkpoints" / "0")
    assert Config.model_validate(segment.config).lr == segment.config["lr"]


def test_the_best_of_a_rung_goes_on_from_its_checkpoint(make_searcher):
    searcher, _, _ = make_searcher()
    for number, loss in enumerate([0.3, 0.1, 0.2]):
        searcher.suggest(f"t{number}")
        report(searcher, f"t{number}", 1, loss, done=True)
    segment = searcher.suggest("t3")["segment"]
    assert (segment.trial, segment.epoch, segment.until) == (1, 1, 3)
    assert segment.checkpoints[0] == "/nowhere/t1-1.pt"


def test_a_trial_that_reaches_its_last_epoch_is_completed_with_its_best_value(make_searcher):
    searcher, study, watching = make_searcher(trials=1, rungs=(3,))
    searcher.suggest("t0")
    for epoch, loss in enumerate([0.3, 0.1], start=1):
        report(searcher, "t0", epoch, loss)
    report(searcher, "t0", 3, 0.2, done=True)
    assert study.get_trial(0).value == 0.1
    assert watching.events[-1] == ("completed", 0, "")
    assert searcher.suggest("t1") == Searcher.FINISHED


def test_nothing_is_finished_while_a_stretch_runs(make_searcher):
    searcher, _, _ = make_searcher(trials=1)
    searcher.suggest("t0")
    assert searcher.suggest("t1") is None


def test_a_combination_that_the_task_refuses_fails_without_costing_a_gang(make_searcher):
    searcher, study, watching = make_searcher(trials=20, rungs=(1,), fixed={"limit": "0.5"})
    for turn in range(20):
        if (stretch := searcher.suggest(f"t{turn}")) in (None, Searcher.FINISHED):
            break
        assert stretch["segment"].config["lr"] <= 0.5
        report(searcher, f"t{turn}", 1, 0.5, done=True)
    outcomes = [get_outcome(trial) for trial in study.get_trials()]
    assert set(outcomes) == {"completed", "failed"}
    assert len(outcomes) == 20
    assert {event[2] for event in watching.events if event[0] == "failed"} == {"lr must be at most 0.5."}


def test_a_failure_keeps_its_reason_and_its_traceback(make_searcher, tmp_path):
    searcher, study, _ = make_searcher()
    searcher.suggest("t0")
    end(searcher, "t0", "failed", "KeyError: 'x'", "Traceback: here")
    assert get_outcome(study.get_trial(0)) == "failed"
    assert study.get_trial(0).user_attrs["reason"] == "KeyError: 'x'"
    assert (tmp_path / "errors" / "trial-0.txt").read_text() == "Traceback: here"


def test_a_trial_whose_gang_was_lost_goes_on_from_its_last_report_and_fails_at_the_limit(make_searcher):
    searcher, study, _ = make_searcher(trials=1, rungs=(3,), max_losses=1)
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.3)
    searcher.on_trial_complete("t0", None, error=True)
    segment = searcher.suggest("t1")["segment"]
    assert (segment.trial, segment.epoch, segment.checkpoints[0]) == (0, 1, "/nowhere/t0-1.pt")
    searcher.on_trial_complete("t1", None, error=True)
    assert study.get_trial(0).user_attrs["reason"] == "its gang was lost 2 times: unknown"


def test_an_error_of_the_search_itself_is_kept_and_ends_it_in_good_order(make_searcher, monkeypatch):
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


def test_a_stopped_search_begins_nothing_and_leaves_its_trials_to_be_taken_up_again(make_searcher):
    stopping = threading.Event()
    searcher, study, watching = make_searcher(stopping=stopping)
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.3, done=True)
    stopping.set()
    assert searcher.suggest("t1") == Searcher.FINISHED
    searcher.finish(prune=False)
    assert get_outcome(study.get_trial(0)) == "interrupted"
    assert watching.events[-1] == ("interrupted", 0, "the search was stopped")


def test_at_the_end_what_waits_at_a_rung_is_pruned(make_searcher):
    searcher, study, watching = make_searcher()
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.3, done=True)
    searcher.finish(prune=True)
    assert get_outcome(study.get_trial(0)) == "pruned"
    assert watching.events[-1] == ("pruned", 0, "not among the best at epoch 1")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_an_objective_that_is_not_finite_ends_a_trial_and_is_never_its_value(make_searcher, mode, value):
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


def test_a_trial_that_says_it_is_completed_is_so_before_its_last_epoch(make_searcher):
    searcher, study, _ = make_searcher(trials=2)
    for tune_id in ("t0", "t1"):
        searcher.suggest(tune_id)
    report(searcher, "t0", 1, 0.3)
    end(searcher, "t0", "completed", "")
    assert (get_outcome(study.get_trial(0)), study.get_trial(0).value) == ("completed", 0.3)
    report(searcher, "t1", 1, 0.4, done=True)
    assert searcher.suggest("t2") == Searcher.FINISHED, "a trial has come to its end: none goes on only for that"


def test_the_trial_that_meets_the_target_is_completed_and_the_others_end_as_they_stand(make_searcher):
    stopping = threading.Event()
    stoppers = Stoppers(VAL_LOSS, target=StopCondition.from_text("val/loss<0.2"), stop=lambda reason: stopping.set())
    searcher, study, watching = make_searcher(rungs=(1, 3), stopping=stopping, stoppers=stoppers)
    for number, loss in enumerate([0.3, 0.1]):
        searcher.suggest(f"t{number}")
        report(searcher, f"t{number}", 1, loss, done=True)
    assert searcher.suggest("t2") == Searcher.FINISHED
    searcher.finish(prune=True)
    assert [get_outcome(trial) for trial in study.get_trials()] == ["pruned", "completed"]
    assert ("completed", 1, "reached val/loss<0.2") in watching.events


def test_the_target_may_be_met_in_the_middle_of_a_stretch(make_searcher):
    stopping = threading.Event()
    stoppers = Stoppers(VAL_LOSS, target=StopCondition.from_text("val/loss<0.2"), stop=lambda reason: stopping.set())
    searcher, study, _ = make_searcher(rungs=(9,), stopping=stopping, stoppers=stoppers)
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.1)
    assert stopping.is_set()
    interrupt(searcher, "t0")
    searcher.finish(prune=True)
    assert (get_outcome(study.get_trial(0)), study.get_trial(0).value) == ("completed", 0.1)


def test_what_trials_hold_is_kept_with_each_report_and_at_the_end_of_a_stretch(make_searcher):
    searcher, study, _ = make_searcher(trials=1, rungs=(9,))
    searcher.suggest("t0")
    time.sleep(0.02)
    report(searcher, "t0", 1, 0.3)
    reported = gpu_seconds_used(study.get_trial(0))
    assert reported >= 0.02
    time.sleep(0.02)
    end(searcher, "t0", "failed", "KeyError: 'x'")
    assert gpu_seconds_used(study.get_trial(0)) >= reported + 0.02


def test_a_trial_that_found_no_room_held_nothing(make_searcher):
    searcher, study, _ = make_searcher(trials=1)
    searcher.suggest("t0")
    hand_on(searcher, "t0", TrialRelease("no room for 1 x 1 CPU", begun=False))
    searcher.on_trial_complete("t0", None, error=True)
    assert gpu_seconds_used(study.get_trial(0)) == searcher.limits.stoppers.meter.total == 0


def test_a_trial_whose_gang_must_move_goes_on_and_has_lost_nothing(make_searcher):
    searcher, study, _ = make_searcher(trials=1, max_losses=0)
    for turn in range(3):
        assert searcher.suggest(f"t{turn}")["segment"].trial == 0
        hand_on(searcher, f"t{turn}", TrialRelease("its own node is going away", begun=True))
        searcher.on_trial_complete(f"t{turn}", None, error=True)
    assert len(get_segments(study.get_trial(0))) == 3
    assert gpu_seconds_used(study.get_trial(0)) > 0


def test_as_many_stretches_run_as_there_is_room_for_just_now(make_searcher):
    room = 2
    searcher, _, _ = make_searcher(trials=9, room=lambda: room)
    begun = [searcher.suggest(f"t{turn}") for turn in range(4)]
    assert [stretch is not None for stretch in begun] == [True, True, False, False]
    room = 3
    assert searcher.suggest("t4") is not None
    room = 1
    report(searcher, "t0", 1, 0.3, done=True)
    assert searcher.suggest("t5") is None


def test_five_trials_that_fail_alike_end_a_search_and_those_that_the_task_refuses_do_not(make_searcher):
    stopping = threading.Event()
    stoppers = Stoppers(VAL_LOSS, trials=99, stop=lambda reason: stopping.set())
    searcher, study, _ = make_searcher(
        trials=99, rungs=(1,), fixed={"limit": "0.5"}, stopping=stopping, stoppers=stoppers
    )
    for turn in range(5):
        assert not stopping.is_set()
        searcher.suggest(f"t{turn}")
        end(searcher, f"t{turn}", "failed", "KeyError: 'x'")
    assert stopping.is_set()
    reasons = [trial.user_attrs["reason"] for trial in study.get_trials()]
    assert reasons.count("KeyError: 'x'") == 5
    assert reasons.count("lr must be at most 0.5.") > 0


def test_an_epoch_that_had_diverged_when_the_search_died_counts_if_it_does_not_diverge_again(make_searcher):
    searcher, study, _ = make_searcher(trials=1, rungs=(2,))
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.3)
    lost = {"metrics": {"val/loss": math.nan}, "checkpoint": None, "time": 0.0}
    study.record_report(0, 2, lost)  # and the driver is killed before it has written that the trial ends
    study.live.clear()
    searcher, study, _ = make_searcher(trials=1, rungs=(2,), onto=study)
    searcher.recover()
    assert searcher.suggest("t1")["segment"].epoch == 1
    report(searcher, "t1", 2, 0.2, done=True)
    assert (study.get_trial(0).state, study.get_trial(0).value) == (TrialState.COMPLETE, 0.2)


def test_an_epoch_that_diverges_again_after_the_search_died_is_told_as_the_same_report(make_searcher):
    searcher, study, _ = make_searcher(trials=1, rungs=(2,))
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.3)
    study.record_report(0, 2, {"metrics": {"val/loss": math.nan}, "checkpoint": None, "time": 12.0})
    study.live.clear()
    searcher, study, _ = make_searcher(trials=1, rungs=(2,), onto=study)
    searcher.recover()
    searcher.suggest("t1")
    end(searcher, "t1", "diverged", "it did", last=EpochReport(2, {"val/loss": math.nan}, None, {}))
    assert get_outcome(study.get_trial(0)) == "diverged"
    assert get_reports(study.get_trial(0))[2]["time"] == 12.0, "its time is what identifies it in MLflow"
