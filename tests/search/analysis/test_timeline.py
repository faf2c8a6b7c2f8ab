"""Where the time of the gangs went, and for how long the search ran, by the reports and stretches of a study."""

from dataclasses import replace

import pytest
from optuna.samplers import RandomSampler

from searchlight.search.analysis.timeline import Span, build_timeline, running_time
from searchlight.search.space.search_space import resolve_space
from searchlight.search.study.study import create_study
from tests.search.conftest import Config
from tests.search.objectives import VAL_LOSS
from tests.search.reporting.html.page_studies import START, search, trial


@pytest.fixture
def played(tmp_path):
    """Plays trials, each a list of reports (gang, time, seconds) and of stretches; returns what the gangs did."""
    study, store = create_study(tmp_path, RandomSampler, [VAL_LOSS])
    space = resolve_space(Config, {"precision": "fp32"}, {})

    def play(*trials):
        for reports, stretches in trials:
            number, _ = study.ask(space)
            for epoch, (gang, at, seconds) in enumerate(reports, start=1):
                kept = {"metrics": {"val/loss": 1.0}, "checkpoint": None, "gang": gang, "time": at, "seconds": seconds}
                study.report(number, epoch, 1.0, kept)
            for stretch in stretches:
                study.record_segment(number, stretch)
        return build_timeline(study.get_trials())

    yield play
    store.close()


def stretch(gang, began, taken, ended):
    return {"gang": gang, "began": began, "taken": taken, "ended": ended, "held_gpu_s": 0.0}


@pytest.mark.parametrize(
    ("reports", "stretches", "expected"),
    [
        (
            [("a", 115.0, 3.0), ("a", 119.0, 3.5)],
            [stretch("a", 100.0, 111.0, 119.0)],
            "a start-up 100 112, a training 112 115, a waiting 115 115.5, a training 115.5 119",
        ),
        ([], [stretch("a", 0.0, 12.0, 40.0)], "a start-up 0 12, a training 12 40"),
        ([("a", 20.0, 5.0), ("a", 30.0, 10.0)], [], "a training 15 20, a training 20 30"),
        (
            [("a", 10.0, 8.0), ("b", 30.0, 8.0)],
            [stretch("a", 0.0, 1.0, 10.0), stretch("b", 20.0, 21.0, 30.0)],
            "a start-up 0 2, a training 2 10, b start-up 20 22, b training 22 30",
        ),
        ([], [{"began": 1.0, "ended": 2.0, "held_gpu_s": 1.0}], ""),
    ],
    ids=["two epochs", "epoch that broke off", "driver that was killed", "trial in two gangs", "unknown gang"],
)
def test_timeline_has_start_up_training_and_waiting(played, reports, stretches, expected):
    spans = played((reports, stretches))
    assert ", ".join(f"{span.gang} {span.kind} {span.start:g} {span.end:g}" for span in spans) == expected
    assert {span.trial for span in spans} <= {0}


def test_gang_waits_for_no_trial_between_stretches(played):
    first = [("a", 20.0, 5.0)], [stretch("a", 10.0, 14.0, 20.0)]
    second = [("a", 33.0, 2.0)], [stretch("a", 30.0, 30.5, 33.0)]
    assert Span("a", None, "waiting", 20.0, 30.0) in played(first, second)


def drivers(*times):
    at = START.timestamp()
    return [(at + start, None if end is None else at + end) for start, end in times]


def test_running_time_is_that_of_all_drivers():
    trials = [trial(0, scores=[0.1, 0.2], gang="a"), trial(1, scores=[0.1, 0.2, 0.3], began=1000.0, gang="b")]
    clocked = running_time(search(trials, drivers=drivers((-8, 25), (995, 1032))))
    assert (clocked.total, clocked.pauses) == (70, [(33, 970)])
    at = START.timestamp()
    assert [clocked.at(at - 9), clocked.at(at + 2), clocked.at(at + 500), clocked.at(at + 1000)] == [0, 10, 33, 38]
    assert (clocked.start, clocked.end) == (at - 8, at + 1032)


@pytest.mark.parametrize(
    ("times", "total"),
    [([(-8, None), (995, 1032)], 65), ([(-8, 25), (995, None)], 68), ([(995, 1032)], 57), ([], 1030)],
    ids=["first was killed", "second still runs", "first recorded nothing", "none recorded anything"],
)
def test_driver_without_an_end_ran_until_its_last_report(times, total):
    trials = [trial(0, scores=[0.1, 0.2], gang="a"), trial(1, scores=[0.1, 0.2, 0.3], began=1000.0, gang="b")]
    assert running_time(search(trials, drivers=drivers(*times))).total == total


def test_clock_that_was_set_back_gives_no_negative_time():
    clocked = running_time(search([], drivers=drivers((0, 10), (-3600, -3590), (-3580, -7200))))
    assert (clocked.total, [length for _, length in clocked.pauses]) == (20, [0, 10])


def test_killed_driver_ran_until_its_last_confirming_run():
    confirming = [trial(1, scores=[0.1], began=40.0)]
    record = replace(search([trial(0, scores=[0.1])], drivers=drivers((0, None))), confirming_runs=confirming)
    assert running_time(record).total == 50


def test_search_without_trials_and_drivers_has_no_duration():
    clocked = running_time(search([]))
    assert (clocked.total, clocked.start, clocked.end, clocked.pauses) == (0, None, None, [])
