"""Successive halving that promotes: which trial continues in which state of a search."""

from dataclasses import replace

import pytest

from search.schedulers.asha import ASHAScheduler
from search.schedulers.base import Segment
from tests.search.schedulers.simulator import standing

NEW = Segment("new", None, 0, 1)
ENDED_EARLY = replace(standing(0, *[0.1] * 5, state="ended"), finished=True)
DIVERGED = replace(standing(0, *[0.1] * 4, state="ended"), broke_off=True)
TWO = [standing(1, 0.2), standing(2, 0.3)]


@pytest.mark.parametrize(
    ("epochs", "factor", "grace", "rungs"),
    [
        (27, 3, 1, (1, 3, 9, 27)),
        (27, 3, 3, (3, 9, 27)),
        (10, 3, 1, (1, 3, 10)),
        (8, 2, 1, (1, 2, 4, 8)),
        (1, 3, 1, (1,)),
        (5, 3, 4, (5,)),
    ],
)
def test_rungs_are_counted_down_from_the_full_length(epochs, factor, grace, rungs):
    assert ASHAScheduler.from_config(epochs, factor, grace, "min").rungs == rungs


def continues(number, start):
    return Segment("promoted", number, start, {1: 3, 3: 9}[start])


@pytest.mark.parametrize(
    ("trials", "may_start", "expected"),
    [
        pytest.param([], True, NEW, id="first trial"),
        pytest.param([standing(0, 0.5), standing(1, 0.1), standing(2, 0.9)], True, continues(1, 1), id="best third"),
        pytest.param(
            [*(standing(n, n) for n in range(3)), *(standing(n, n, n, n) for n in range(3, 6))],
            True,
            continues(3, 3),
            id="higher rung first",
        ),
        pytest.param([standing(0, 0.1, state="ended"), *TWO], True, NEW, id="pruned trial keeps its place"),
        pytest.param([standing(0, *[0.1] * 9, state="ended"), *TWO], True, NEW, id="complete trial keeps its place"),
        pytest.param([ENDED_EARLY, *TWO], True, NEW, id="trial that finished early keeps its place"),
        pytest.param([DIVERGED, *TWO], True, continues(1, 1), id="diverged trial counts and leaves its place"),
        pytest.param(
            [standing(0, 1.0, 1.0), *(standing(n, 0.1) for n in range(1, 7))],
            True,
            Segment("continued", 0, 2, 3),
            id="interrupted between rungs",
        ),
        pytest.param([standing(0)], True, Segment("continued", 0, 0, 1), id="interrupted before the first report"),
        pytest.param([standing(0, 0.2), standing(1, 0.1)], False, continues(1, 1), id="last: best continues"),
        pytest.param([standing(0, 0.2), standing(1, 0.1, 0.1, 0.1)], False, continues(1, 3), id="last: highest rung"),
        pytest.param([standing(0, 0.1, state="ended"), *TWO], False, continues(1, 1), id="last: next best continues"),
        pytest.param([standing(0, *[0.1] * 9, state="ended"), *TWO], False, None, id="last: one is complete"),
        pytest.param([ENDED_EARLY, *TWO], False, None, id="last: one finished early"),
        pytest.param([standing(0, 0.2), standing(1, state="running")], False, None, id="last: another still runs"),
    ],
)
def test_next_action_promotes_continues_or_starts(trials, may_start, expected):
    assert ASHAScheduler.from_config(9, 3, 1, "min").next_action(trials, may_start) == expected


def test_mode_max_promotes_the_highest_value():
    trials = [standing(0, 0.5), standing(1, 0.1), standing(2, 0.9)]
    assert ASHAScheduler.from_config(9, 3, 1, "max").next_action(trials, may_start=True) == continues(2, 1)


def test_expected_cost_adds_up_the_rungs():
    assert ASHAScheduler.without_stopping(9, "min").expected_cost(4) == 36
    assert ASHAScheduler.from_config(9, 3, 1, "min").expected_cost(9) == 9 + 3 * 2 + 1 * 6
