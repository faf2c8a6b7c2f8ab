"""Successive halving that promotes: which trial continues in which state of a search."""

from dataclasses import replace

import pytest

from searchlight.search.schedulers.asha import ASHAScheduler
from searchlight.search.schedulers.base import Segment
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
        (8, 3, 1, (1, 3, 8)),
        (50, 3, 1, (2, 6, 17, 50)),
        (5, 3, 1, (2, 5)),
        (2, 3, 1, (1, 2)),
        (3, 2, 1, (1, 2, 3)),
        (1, 3, 1, (1,)),
        (5, 3, 4, (5,)),
    ],
)
def test_rungs_are_counted_down_from_the_full_length(epochs, factor, grace, rungs):
    assert ASHAScheduler.from_config(epochs, factor, grace, "min").rungs == rungs


def continues(number, start):
    return Segment("promoted", number, start, {1: 3, 3: 9}[start])


CASES = {
    "first trial": ([], True, NEW),
    "best third": ([standing(0, 0.5), standing(1, 0.1), standing(2, 0.9)], True, continues(1, 1)),
    "higher rung first": (
        [*(standing(n, n) for n in range(3)), *(standing(n, n, n, n) for n in range(3, 6))],
        True,
        continues(3, 3),
    ),
    "pruned trial keeps its place": ([standing(0, 0.1, state="ended"), *TWO], True, NEW),
    "trial that finished early keeps its place": ([ENDED_EARLY, *TWO], True, NEW),
    "diverged trial counts and leaves its place": ([DIVERGED, *TWO], True, continues(1, 1)),
    "interrupted first": ([standing(0, 1.0, 1.0), *TWO, standing(3, 0.1)], True, Segment("continued", 0, 2, 3)),
    "interrupted before the first report": ([standing(0)], True, Segment("continued", 0, 0, 1)),
    "last: highest rung": ([standing(0, 0.2), standing(1, 0.1, 0.1, 0.1)], False, continues(1, 3)),
    "last: next best continues": ([standing(0, 0.1, state="ended"), *TWO], False, continues(1, 1)),
    "last: one is complete": ([standing(0, *[0.1] * 9, state="ended"), *TWO], False, None),
    "last: the best at a rung": ([standing(0, *[0.25] * 9, state="ended"), *TWO], False, continues(1, 1)),
    "last: it waits for those that run": (
        [standing(0, *[0.25] * 9, state="ended"), standing(1, 0.2), standing(2, state="running")],
        False,
        None,
    ),
    "last: one finished early": ([ENDED_EARLY, *TWO], False, None),
    "last: another still runs": ([standing(0, 0.2), standing(1, state="running")], False, None),
}


@pytest.mark.parametrize(("trials", "may_start", "expected"), CASES.values(), ids=CASES)
def test_next_action_promotes_continues_or_starts(trials, may_start, expected):
    assert ASHAScheduler.from_config(9, 3, 1, "min").next_action(trials, may_start) == expected


def test_mode_max_promotes_the_highest_value():
    trials = [standing(0, 0.5), standing(1, 0.1), standing(2, 0.9)]
    assert ASHAScheduler.from_config(9, 3, 1, "max").next_action(trials, may_start=True) == continues(2, 1)


def test_expected_cost_adds_up_the_rungs():
    assert ASHAScheduler.without_stopping(9, "min").expected_cost(4) == 36
    assert ASHAScheduler.from_config(9, 3, 1, "min").expected_cost(9) == 9 + 3 * 2 + 1 * 6
