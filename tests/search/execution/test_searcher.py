"""The searcher, driven as Tune drives it: suggest, results, completions."""

import threading
import time
from unittest.mock import Mock

import pytest
from ray.tune.search import Searcher

from searchlight.search.execution.stoppers import GpuTimeMeter
from searchlight.search.schedulers.asha_stopping import ASHAStoppingScheduler
from searchlight.search.schedulers.median_stopping import MedianStoppingScheduler
from searchlight.search.study.trial import get_reports, get_segments, gpu_seconds_used
from searchlight.trainables.worker.messages import (
    EpochReport,
    GangResult,
    SegmentEnd,
    TrialRelease,
    to_json,
)
from tests.search.execution.searcher_harness import Config, end, hand_on, interrupt, lose, outcomes, report


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
