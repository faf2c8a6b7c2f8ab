"""Where the time of the gangs went, and for how long the search ran, by the reports and stretches of a study."""

import pytest
from optuna.samplers import RandomSampler

from search.analysis.timeline import Span, build_timeline, running_time
from search.config.search_space import resolve_space
from search.study.study import create_study
from tests.search.conftest import Config
from tests.search.objectives import VAL_LOSS
from tests.search.reporting.html.page_studies import START, trial


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


TWO_EPOCHS = [("a", 115.0, 3.0), ("a", 119.0, 3.5)]


@pytest.mark.parametrize(
    ("reports", "stretches", "expected"),
    [
        pytest.param(
            TWO_EPOCHS,
            [stretch("a", 100.0, 111.0, 119.0)],
            [
                Span("a", 0, "start-up", 100.0, 112.0),
                Span("a", 0, "training", 112.0, 115.0),
                Span("a", 0, "waiting", 115.0, 115.5),
                Span("a", 0, "training", 115.5, 119.0),
            ],
            id="two epochs",
        ),
        pytest.param(
            [],
            [stretch("a", 0.0, 12.0, 40.0)],
            [Span("a", 0, "start-up", 0.0, 12.0), Span("a", 0, "training", 12.0, 40.0)],
            id="an epoch that broke off was trained",
        ),
        pytest.param(
            [("a", 20.0, 5.0), ("a", 30.0, 10.0)],
            [],
            [Span("a", 0, "training", 15.0, 20.0), Span("a", 0, "training", 20.0, 30.0)],
            id="the driver was killed",
        ),
        pytest.param(
            [("a", 10.0, 8.0), ("b", 30.0, 8.0)],
            [stretch("a", 0.0, 1.0, 10.0), stretch("b", 20.0, 21.0, 30.0)],
            [
                Span("a", 0, "start-up", 0.0, 2.0),
                Span("a", 0, "training", 2.0, 10.0),
                Span("b", 0, "start-up", 20.0, 22.0),
                Span("b", 0, "training", 22.0, 30.0),
            ],
            id="a trial in two gangs",
        ),
        pytest.param([], [{"began": 1.0, "ended": 2.0, "held_gpu_s": 1.0}], [], id="unknown gang"),
    ],
)
def test_timeline_has_start_up_training_and_waiting(played, reports, stretches, expected):
    assert played((reports, stretches)) == expected


def test_gang_waits_for_no_trial_between_stretches(played):
    first = [("a", 20.0, 5.0)], [stretch("a", 10.0, 14.0, 20.0)]
    second = [("a", 33.0, 2.0)], [stretch("a", 30.0, 30.5, 33.0)]
    assert Span("a", None, "waiting", 20.0, 30.0) in played(first, second)


def test_running_time_leaves_out_the_pause_between_drivers():
    trials = [trial(0, scores=[0.1, 0.2], gang="a"), trial(1, scores=[0.1, 0.2, 0.3], began=1000.0, gang="b")]
    clocked = running_time(trials)
    assert (clocked.total, clocked.pauses) == (50, [(20, 980)])
    at = START.timestamp()
    assert [clocked.at(at - 5), clocked.at(at + 10), clocked.at(at + 500), clocked.at(at + 1010)] == [0, 10, 20, 30]


@pytest.mark.parametrize(
    ("began", "gang", "total"), [(35.0, "a", 45), (1000.0, None, 1010)], ids=["half a minute", "unknown gangs"]
)
def test_running_time_without_a_pause_is_the_whole_time(began, gang, total):
    clocked = running_time([trial(0, scores=[0.1], gang=gang), trial(1, scores=[0.1], began=began, gang=gang)])
    assert (clocked.total, clocked.pauses) == (total, [])
    assert running_time([]).total == 0
