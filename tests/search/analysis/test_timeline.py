"""Where the time of the gangs went, from what the study keeps of reports and stretches."""

import pytest
from optuna.samplers import RandomSampler

from search.analysis.timeline import Span, build_timeline
from search.config.search_space import resolve_space
from search.study.study import create_study
from tests.search.conftest import Config
from tests.search.objectives import VAL_LOSS


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


def test_a_gang_starts_trains_and_waits(played):
    reports = [("a", 115.0, 3.0), ("a", 119.0, 3.5)]
    assert played((reports, [stretch("a", 100.0, 111.0, 119.0)])) == [
        Span("a", 0, "start-up", 100.0, 112.0),
        Span("a", 0, "training", 112.0, 115.0),
        Span("a", 0, "waiting", 115.0, 115.5),
        Span("a", 0, "training", 115.5, 119.0),
    ]


def test_between_stretches_a_gang_waits_for_no_trial(played):
    first = [("a", 20.0, 5.0)], [stretch("a", 10.0, 14.0, 20.0)]
    second = [("a", 33.0, 2.0)], [stretch("a", 30.0, 30.5, 33.0)]
    assert Span("a", None, "waiting", 20.0, 30.0) in played(first, second)


def test_an_epoch_that_broke_off_was_trained(played):
    assert played(([], [stretch("a", 0.0, 12.0, 40.0)])) == [
        Span("a", 0, "start-up", 0.0, 12.0),
        Span("a", 0, "training", 12.0, 40.0),
    ]


def test_a_driver_that_was_killed_leaves_the_epochs_that_it_knew_of(played):
    assert played(([("a", 20.0, 5.0), ("a", 30.0, 10.0)], [])) == [
        Span("a", 0, "training", 15.0, 20.0),
        Span("a", 0, "training", 20.0, 30.0),
    ]


def test_a_trial_that_goes_on_in_another_gang_is_with_both(played):
    reports = [("a", 10.0, 8.0), ("b", 30.0, 8.0)]
    spans = played((reports, [stretch("a", 0.0, 1.0, 10.0), stretch("b", 20.0, 21.0, 30.0)]))
    assert [(span.gang, span.kind, span.start, span.end) for span in spans] == [
        ("a", "start-up", 0.0, 2.0),
        ("a", "training", 2.0, 10.0),
        ("b", "start-up", 20.0, 22.0),
        ("b", "training", 22.0, 30.0),
    ]


def test_nothing_is_told_of_a_stretch_whose_gang_is_unknown(played):
    assert played(([], [{"began": 1.0, "ended": 2.0, "held_gpu_s": 1.0}])) == []
