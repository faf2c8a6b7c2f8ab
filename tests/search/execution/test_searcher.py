"""The searcher, driven as Tune drives it: suggest, results, completions."""

import math
import threading
import time
from dataclasses import replace
from unittest.mock import Mock

import pytest
from optuna.trial import TrialState
from ray.tune.search import Searcher

from searchlight.search.analysis.best_trials import find_best
from searchlight.search.errors import StoreError, UsageError
from searchlight.search.execution.stoppers import ALONE_S, GpuTimeMeter, Stoppers
from searchlight.search.schedulers.asha_stopping import ASHAStoppingScheduler
from searchlight.search.schedulers.median_stopping import MedianStoppingScheduler
from searchlight.search.space.constraints import Constraint
from searchlight.search.space.objectives import Objective
from searchlight.search.space.stop_condition import StopCondition
from searchlight.search.study.changes import find_changes
from searchlight.search.study.trial import get_outcome, get_reports, get_segments, gpu_seconds_used
from searchlight.trainables.worker.messages import (
    Divergence,
    EpochReport,
    GangResult,
    Infeasibility,
    SegmentEnd,
    TrialRelease,
    to_json,
)
from tests.search.execution.searcher_harness import Config, end, hand_on, interrupt, lose, report
from tests.search.objectives import VAL_LOSS


def outcomes(study):
    return [get_outcome(trial) for trial in study.get_trials()]


def test_new_segment_carries_all_that_a_gang_needs(make_searcher, tmp_path):
    searcher, _, _ = make_searcher(trials=1)
    segment = searcher.suggest("t0")["segment"]
    assert (segment.trial, segment.epoch, segment.until, segment.checkpoints[0]) == (0, 0, 1, None)
    assert segment.folder == str(tmp_path / "checkpoints" / "0")
    assert Config.model_validate(segment.config).lr == segment.config["lr"]
    assert searcher.suggest("t1") is None, "nothing is finished while it runs"


def test_best_of_a_rung_continues_to_its_end(make_searcher):
    searcher, study, watching = make_searcher()
    for number, loss in enumerate([0.3, 0.1, 0.2]):
        searcher.suggest(f"t{number}")
        report(searcher, f"t{number}", 1, loss, done=True)
    segment = searcher.suggest("t3")["segment"]
    assert (segment.trial, segment.epoch, segment.until) == (1, 1, 3)
    assert segment.checkpoints[0] == "/nowhere/t1-1.pt"
    report(searcher, "t3", 2, 0.05)
    report(searcher, "t3", 3, 0.2, done=True)
    assert study.get_trial(1).value == 0.05
    assert watching.events[-1] == ("completed", 1, "")
    assert searcher.suggest("t4") == Searcher.FINISHED


@pytest.mark.parametrize("schedule", [MedianStoppingScheduler(3, 1, "min"), ASHAStoppingScheduler((1, 2, 3), 3, "min")])
def test_gang_goes_on_with_its_trial_beside_idle_ones(schedule, make_searcher):
    """Otherwise a program would start again in the gang whose trial has ended."""
    searcher, study, _ = make_searcher(trials=2)
    searcher.schedule = schedule
    trials = {name: searcher.suggest(name)["segment"].trial for name in ("t0", "t1")}
    end(searcher, "t1", "failed", "KeyError: 'x'")
    assert searcher.suggest("t2") is None, "nothing is left for the idle gang"
    for epoch in (1, 2):
        following = report(searcher, "t0", epoch, 0.5, done=True)
        assert (following.trial, following.epoch, following.until) == (trials["t0"], epoch, epoch + 1)
        assert searcher.suggest("t3") is None, "it runs"
    report(searcher, "t0", 3, 0.5)
    end(searcher, "t0", "completed", "")
    assert outcomes(study) == ["completed", "failed"]
    assert len(get_segments(study.get_trial(0))) == 3
    assert searcher.suggest("t4") == Searcher.FINISHED


def test_gang_goes_on_with_its_trial_before_a_lost_one(make_searcher):
    searcher, _, _ = make_searcher()
    searcher.schedule = MedianStoppingScheduler(epochs=3, grace_period=1, mode="min")
    lost, other = searcher.suggest("t0")["segment"].trial, searcher.suggest("t1")["segment"].trial
    lose(searcher, "t0")
    assert report(searcher, "t1", 1, 0.5, done=True).trial == other
    assert searcher.suggest("t2")["segment"].trial == lost, "the gang that asks gets it"


def test_gang_of_a_pruned_or_stopped_trial_does_not_go_on(make_searcher):
    stopping = threading.Event()
    searcher, study, _ = make_searcher(trials=5, stopping=stopping)
    searcher.schedule = MedianStoppingScheduler(epochs=3, grace_period=1, mode="min")
    for turn, loss in enumerate((0.1, 0.2, 0.3, 0.9)):
        searcher.suggest(f"t{turn}")
        assert (report(searcher, f"t{turn}", 1, loss, done=True) is None) == (loss == 0.9)
    assert outcomes(study)[3] == "pruned"
    stopping.set()
    assert report(searcher, "t0", 2, 0.1, done=True) is None
    for name in ("t1", "t2"):
        interrupt(searcher, name)
    assert searcher.suggest("t9") == Searcher.FINISHED
    searcher.finish(prune=False)
    assert outcomes(study)[:3] == ["interrupted"] * 3


def test_refused_combinations_are_infeasible_and_not_alike(make_searcher):
    """They cost no gang, and five trials that fail in a gang end the search all the same."""
    stopping = threading.Event()
    stoppers = Stoppers(VAL_LOSS, trials=99, stop=lambda reason: stopping.set())
    searcher, study, watching = make_searcher(
        trials=99, rungs=(1,), fixed={"limit": "0.5"}, stopping=stopping, stoppers=stoppers
    )
    for turn in range(5):
        assert not stopping.is_set()
        assert searcher.suggest(f"t{turn}")["segment"].config["lr"] <= 0.5
        end(searcher, f"t{turn}", "failed", "KeyError: 'x'")
    assert stopping.is_set()
    refused = {event[2] for event in watching.find("infeasible")}
    assert refused == {"lr must be at most 0.5."}
    assert outcomes(study).count("failed") == 5
    assert {trial.constraints.get("build") for trial in study.get_trials()} == {None, 1.0}


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
    assert caplog.text.count("returned after 1 of 2 reports") == 1


def test_no_duration_is_negative_if_the_clock_is_set_back(make_searcher, monkeypatch):
    searcher, study, watching = make_searcher(trials=1, rungs=(2, 9))
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.3)
    monkeypatch.setattr("time.time", lambda wall=time.time: wall() - 3600.0)
    report(searcher, "t0", 2, 0.3, done=True)
    searcher.suggest("t1")
    hand_on(searcher, "t1", EpochReport(3, {"val/loss": 0.3}, "3.pt", {}))
    result = GangResult("gang-1", [SegmentEnd("failed", "it was to")], taken=time.time())
    searcher.on_trial_complete("t1", {"reports": to_json(result)})
    trial = study.get_trial(0)
    start = trial.datetime_start.timestamp()
    times = [segment[key] for segment in get_segments(trial) for key in ("began", "taken", "ended") if key in segment]
    assert len(times) == 5
    assert times == sorted(times)
    reported = [each["time"] for each in get_reports(trial).values()]
    assert start <= reported[0] <= times[1] <= times[2] <= reported[2] <= times[-1]
    assert watching.ends[0] == times[-1] >= start


def test_gpu_time_is_kept_unless_a_trial_found_no_room(make_searcher, tmp_path):
    clock = [100.0]
    searcher, study, _ = make_searcher(trials=1, rungs=(9,), max_losses=0)
    searcher.limits.stoppers.meter = GpuTimeMeter(clock=lambda: clock[0])
    for turn, (begun, held) in enumerate([(False, 0), (True, 20), (True, 40)]):
        assert searcher.suggest(f"t{turn}")["segment"].trial == 0, "a gang that must move has not lost it"
        clock[0] += 20
        hand_on(searcher, f"t{turn}", TrialRelease("its own node is going away", begun=begun))
        lose(searcher, f"t{turn}")
        assert gpu_seconds_used(study.get_trial(0)) == searcher.limits.stoppers.meter.total == held
    assert len(get_segments(study.get_trial(0))) == 2
    searcher.suggest("t3")
    clock[0] += 20
    report(searcher, "t3", 1, 0.3)
    assert gpu_seconds_used(study.get_trial(0)) == 60
    clock[0] += 30
    end(searcher, "t3", "failed", "KeyError: 'x'", "Traceback: here", location="task.py, line 7, in loss")
    assert gpu_seconds_used(study.get_trial(0)) == 90
    reason = "KeyError: 'x', at task.py, line 7, in loss"
    assert (outcomes(study), study.get_trial(0).user_attrs["reason"]) == (["failed"], reason)
    assert (tmp_path / "errors" / "trial-0.txt").read_text() == "Traceback: here"


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


def test_as_many_segments_run_as_there_is_room_for(make_searcher):
    room = 2
    searcher, _, _ = make_searcher(trials=9, room=lambda: room)
    begun = [searcher.suggest(f"t{turn}") for turn in range(4)]
    assert [stretch is not None for stretch in begun] == [True, True, False, False]
    room = 3
    assert searcher.suggest("t4") is not None
    room = 1
    report(searcher, "t0", 1, 0.3, done=True)
    assert searcher.suggest("t5") is None


def test_gang_that_waits_for_the_last_trial_reads_no_trials(make_searcher, monkeypatch):
    searcher, study, _ = make_searcher(trials=1)
    searcher.suggest("t0")
    searcher.confirmation, read = Mock(), Mock()
    monkeypatch.setattr(study, "get_trials", read)
    assert searcher.suggest("t1") is None
    read.assert_not_called()


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


def test_others_begin_once_the_first_trial_of_a_function_has_reported(make_searcher):
    searcher, _, _ = make_searcher(tries_first=True, trials=3, rungs=(3,))
    assert searcher.suggest("t0")["segment"].trial == 0
    assert searcher.suggest("t1") is None
    report(searcher, "t0", 1, 0.3)
    assert searcher.suggest("t1")["segment"].trial == 1
    end(searcher, "t0", "failed", "KeyError: 'x'")
    assert searcher.error is None, "the function works in general"


def test_others_begin_if_the_first_trial_of_a_function_takes_long(make_searcher):
    searcher, _, _ = make_searcher(tries_first=True)
    searcher.suggest("t0")
    now = time.monotonic()
    searcher.reports.first_trial._clock = lambda: now + ALONE_S + 60
    assert searcher.suggest("t1")["segment"].trial == 1


@pytest.mark.parametrize("is_late", [False, True])
def test_function_that_fails_at_once_ends_its_search_and_is_trained_again(make_searcher, tmp_path, is_late):
    searcher, study, _ = make_searcher(tries_first=True)
    searcher.suggest("t0")
    if is_late:  # others have begun, and still run
        searcher.reports.first_trial._clock = lambda: math.inf
        searcher.suggest("t1")
    end(searcher, "t0", "failed", "KeyError: 'x'", "Traceback ...", location="train.py, line 3")
    first, second, third = searcher.error.problems
    assert first == "trial 0 failed before its first report: KeyError: 'x', at train.py, line 3."
    assert second == f"Its traceback is in {tmp_path / 'errors' / 'trial-0.txt'}."
    assert f"resume {tmp_path.name}" in third
    assert (tmp_path / "errors" / "trial-0.txt").read_text() == "Traceback ..."
    assert searcher.suggest("t2") == (None if is_late else Searcher.FINISHED)
    searcher.finish(prune=False)
    assert find_changes(study.get_trial(0), is_over=True)[3:5] == ("interrupted", "it failed")
    corrected, _, _ = make_searcher(study, tries_first=True)
    study.live.clear()
    segment = corrected.suggest("t0")["segment"]
    assert (segment.trial, segment.config) == (0, study.get_trial(0).user_attrs["config"])
    interrupt(corrected, "t0")
    assert find_changes(study.get_trial(0), is_over=True).reason == "the search was stopped"


def test_first_trial_without_memory_fails_alone(make_searcher):
    searcher, study, _ = make_searcher(tries_first=True)
    searcher.suggest("t0")
    end(searcher, "t0", "failed", "out of memory: CUDA out of memory")
    assert outcomes(study) == ["failed"]
    assert searcher.suggest("t1")["segment"].trial == 1
    end(searcher, "t1", "failed", "KeyError: 'x'")
    assert isinstance(searcher.error, UsageError), "the next one was tried instead"


def lack_memory(searcher, name, violation=0.5, in_window=False):
    infeasibility = Infeasibility("memory", violation, in_window)
    end(searcher, name, "failed", "out of memory: CUDA out of memory", infeasibility=infeasibility)


def test_trial_without_memory_is_infeasible_and_not_repeated(make_searcher):
    searcher, study, watching = make_searcher(trials=2)
    searcher.suggest("t0")
    lack_memory(searcher, "t0", in_window=True)  # its config names no micro-batches
    trial = study.get_trial(0)
    assert (trial.state, get_outcome(trial), trial.constraints) == (TrialState.PRUNED, "infeasible", {"memory": 0.5})
    assert watching.find("infeasible") == [("infeasible", 0, "out of memory: CUDA out of memory")]
    assert searcher.suggest("t1")["segment"].trial == 1


def test_first_trials_that_all_lack_memory_end_the_search(make_searcher):
    stop = Mock()
    searcher, _, _ = make_searcher(trials=5, stoppers=Stoppers(VAL_LOSS, 5, stop=stop))
    for turn in range(5):
        searcher.suggest(f"t{turn}")
        lack_memory(searcher, f"t{turn}")
    stop.assert_called_once()


class SplitConfig(Config):
    micro_batch_field = "batch_size"
    batch_size: int = 4


def test_trial_without_memory_continues_with_smaller_micro_batches(make_searcher, caplog):
    searcher, study, _ = make_searcher(trials=1, rungs=(3,))
    searcher.space = replace(searcher.space, config_class=SplitConfig)
    first = searcher.suggest("t0")["segment"]
    report(searcher, "t0", 1, 0.3)
    lack_memory(searcher, "t0", in_window=True)
    assert "It continues with batch_size=2, accumulation=2, which gives the same updates" in caplog.text
    again, resumed = searcher.suggest("t1")["segment"], None
    assert (again.trial, again.epoch, again.checkpoints[0]) == (0, 1, "/nowhere/t0-1.pt")
    assert again.config == {**first.config, "batch_size": 2, "accumulation": 2}
    assert study.get_trial(0).user_attrs["config"] == first.config, "it means what was proposed"
    interrupt(searcher, "t1")
    resumed, _, _ = make_searcher(study, trials=1, rungs=(3,))
    resumed.space = searcher.space
    resumed.recover()
    assert resumed.suggest("t2")["segment"].config == again.config
    lack_memory(resumed, "t2", in_window=True)
    assert resumed.suggest("t3")["segment"].config["batch_size"] == 1
    lack_memory(resumed, "t3", in_window=True)
    assert outcomes(study) == ["infeasible"]


def test_evaluation_without_memory_is_not_split(make_searcher):
    searcher, study, _ = make_searcher(trials=1)
    searcher.space = replace(searcher.space, config_class=SplitConfig)
    searcher.suggest("t0")
    lack_memory(searcher, "t0")
    assert outcomes(study) == ["infeasible"]


BOUND = Constraint("latency", "<=", 20.0)


def report_latency(searcher, name, epoch, loss, latency, done=False):
    content = {"val/loss": loss, "latency": latency}
    hand_on(searcher, name, EpochReport(epoch, content, f"/nowhere/{name}-{epoch}.pt", {}, done=done))


def test_best_report_is_one_that_meets_the_constraint(make_searcher):
    searcher, study, _ = make_searcher(trials=1, rungs=(3,), constraints=[BOUND])
    searcher.suggest("t0")
    for epoch, (loss, latency) in enumerate([(0.1, 25.0), (0.3, 20.0), (0.2, 21.0)], start=1):
        report_latency(searcher, "t0", epoch, loss, latency, done=epoch == 3)
    trial = study.get_trial(0)
    assert (get_outcome(trial), trial.value, trial.constraints) == ("completed", 0.3, {"latency<=20": 0.0})
    assert find_best([trial], VAL_LOSS).checkpoint == "/nowhere/t0-2.pt"


def test_trial_that_misses_the_constraint_is_infeasible(make_searcher):
    stoppers = Stoppers(VAL_LOSS, 3, target=StopCondition("val/loss", "<=", 0.15), stop=Mock())
    searcher, study, _ = make_searcher(trials=3, rungs=(1,), constraints=[BOUND], stoppers=stoppers)
    for number, (loss, latency) in enumerate([(0.1, 25.0), (0.3, 10.0), (0.2, 30.0)]):
        searcher.suggest(f"t{number}")
        report_latency(searcher, f"t{number}", 1, loss, latency, done=True)
    assert outcomes(study) == ["infeasible", "completed", "infeasible"]
    assert [trial.constraints["latency<=20"] for trial in study.get_trials()] == [5.0, -10.0, 10.0]
    assert study.get_trial(0).user_attrs["reason"] == "its best report misses latency<=20 by 5"
    assert find_best(study.get_trials(), VAL_LOSS).trial_id == 1
    stoppers.stop.assert_not_called()


def test_feasible_trial_is_promoted_before_a_better_infeasible_one(make_searcher):
    searcher, _, _ = make_searcher(trials=3, rungs=(1, 3), constraints=[BOUND])
    for number, (loss, latency) in enumerate([(0.1, 25.0), (0.3, 10.0), (0.2, 22.0)]):
        searcher.suggest(f"t{number}")
        report_latency(searcher, f"t{number}", 1, loss, latency, done=True)
    assert searcher.suggest("t3")["segment"].trial == 1


def test_resumed_search_of_a_function_that_has_reported_tries_none(make_searcher):
    searcher, study, _ = make_searcher(rungs=(3,))
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.3)
    interrupt(searcher, "t0")
    resumed, _, _ = make_searcher(study, tries_first=True, rungs=(3,))
    assert [resumed.suggest(f"t{turn}")["segment"].trial for turn in range(2)] == [0, 1]
