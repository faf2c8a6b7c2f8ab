from dataclasses import replace

import pytest

from searchlight.search.schedulers.asha import ASHAScheduler
from searchlight.search.schedulers.base import Segment
from searchlight.search.schedulers.hyperband import HyperBandScheduler
from tests.search.schedulers.simulator import standing

NINE = HyperBandScheduler.from_config(9, 3, 1, "min")


def numbers_in(place):
    """The numbers of the first trials that get into the bracket at `place`."""
    return [number for number in range(20) if NINE.get_bracket(number) is NINE.brackets[place]]


def test_each_bracket_leaves_out_one_more_rung_at_the_bottom():
    rungs = [bracket.rungs for bracket in HyperBandScheduler.from_config(27, 3, 1, "min").brackets]
    assert rungs == [(1, 3, 9, 27), (3, 9, 27), (9, 27), (27,)]


def test_brackets_are_filled_in_turn_with_the_trials_of_the_paper():
    """Algorithm 1 with R = 81 and a factor of 3 starts 81, 34, 15, 8 and 5 trials (Li et al. 2018, table 1)."""
    schedule = HyperBandScheduler.from_config(81, 3, 1, "min")
    in_turn = [schedule.get_bracket(number) for number in range(2 * 143)]
    expected = [
        bracket for bracket, size in zip(schedule.brackets, (81, 34, 15, 8, 5), strict=True) for _ in range(size)
    ]
    assert in_turn == expected + expected


def test_new_trial_starts_and_rests_at_the_rungs_of_its_bracket():
    for number in range(10):
        trials = [standing(n, state="running") for n in range(number)]
        rungs = NINE.get_bracket(number).rungs
        assert NINE.next_action(trials, may_start=True) == Segment("new", None, 0, rungs[0])
        assert NINE.is_paused_at_rung(standing(number, 0.1)) == (1 in rungs)


def test_confirming_runs_do_not_move_trials_to_other_brackets():
    for index in range(10):
        trial = standing(index + 5, 0.1, confirmed_before=5)
        assert NINE.is_paused_at_rung(trial) == (1 in NINE.get_bracket(index).rungs)


def test_trials_are_compared_within_their_bracket():
    first, others = numbers_in(0)[:3], [*numbers_in(1), *numbers_in(2)][:6]
    trials = [standing(n, 0.9 - n / 100) for n in first] + [standing(n, 0.1, state="running") for n in others]
    assert NINE.next_action(trials, may_start=True) == Segment("promoted", first[-1], 1, 3)


def test_best_of_each_bracket_runs_to_its_end():
    low, high = numbers_in(0)[0], numbers_in(1)[0]
    trials = [standing(low, 0.1), standing(high, 0.5, 0.5, 0.5)]
    assert NINE.next_action(trials, may_start=False) == Segment("promoted", low, 1, 3)
    trials[0] = standing(low, *[0.1] * 9, state="ended", finished=True)
    assert NINE.next_action(trials, may_start=False) == Segment("promoted", high, 3, 9)
    trials[1] = standing(high, *[0.5] * 9, state="ended", finished=True)
    assert NINE.next_action(trials, may_start=False) is None


def test_best_of_all_brackets_at_a_rung_runs_to_its_end():
    low, high = numbers_in(0)[:2], numbers_in(1)[0]
    completed = [standing(low[0], *[0.3] * 9, state="ended"), standing(high, *[0.4] * 9, state="ended")]
    trials = [*completed, standing(low[1], 0.2)]
    assert NINE.next_action(trials, may_start=False) == Segment("promoted", low[1], 1, 3)
    trials = [*completed, standing(low[1], 0.2, 0.2, 0.45)]  # another one is better at the rung
    assert NINE.next_action(trials, may_start=False) is None


def test_expected_cost_is_that_of_all_brackets_together():
    counts = [sum(NINE.get_bracket(n) is bracket for n in range(17)) for bracket in NINE.brackets]
    costs = [bracket.expected_cost(count) for bracket, count in zip(NINE.brackets, counts, strict=True)]
    assert NINE.expected_cost(17) == sum(costs)
    whole = ASHAScheduler.without_stopping(1, "min").expected_cost(4)
    assert HyperBandScheduler.from_config(1, 3, 1, "min").expected_cost(4) == whole


def defaults_and(others, defaults=(0.3,), state="waiting"):
    """The defaults as trial 0, and other trials with the given values, which wait."""
    return [standing(0, *defaults, state=state), *(standing(n, *values) for n, values in enumerate(others, 1))]


WITH_DEFAULTS = replace(NINE, starts_with_defaults=True)
WORSE, BETTER, FURTHER = (0.4,), (0.2,), (0.5, 0.4, 0.4)


def is_continued(trials):
    segment = WITH_DEFAULTS.next_action(trials, may_start=True)
    return segment is not None and segment.number == 0


@pytest.mark.parametrize(
    ("others", "continues"),
    [
        ([BETTER, WORSE, WORSE], False),  # too few to compare them with
        ([BETTER, WORSE, WORSE, WORSE], True),
        ([WORSE, WORSE, WORSE, FURTHER], True),
        ([BETTER, WORSE, BETTER, WORSE], True),
        ([BETTER, WORSE, BETTER, BETTER], False),
    ],
)
def test_defaults_continue_in_the_better_half_of_all_brackets(others, continues):
    assert is_continued(defaults_and(others)) == continues
    assert not is_continued(defaults_and(others, state="running"))


def test_first_trial_without_defaults_is_compared_in_its_bracket():
    trials = defaults_and([BETTER, BETTER, WORSE, WORSE])
    assert WITH_DEFAULTS.next_action(trials, may_start=True).number == 0
    assert NINE.next_action(trials, may_start=True).number != 0


@pytest.mark.parametrize(
    ("above", "continues"), [([0.1], True), ([0.1, 0.1], False), ([0.1, 0.9], True), ([0.1, 0.1, 0.9, 0.9], True)]
)
def test_defaults_are_compared_at_the_highest_rung_that_two_others_reached(above, continues):
    others = [*[WORSE] * 4, *((0.9, 0.9, value) for value in above)]
    assert is_continued(defaults_and(others, defaults=(0.3, 0.3, 0.3))) == continues


def test_defaults_continue_to_their_end_and_no_further():
    assert WITH_DEFAULTS.next_action(defaults_and([WORSE] * 4), may_start=True) == Segment("promoted", 0, 1, 3)
    later = defaults_and([WORSE] * 4, defaults=[0.3] * 3)
    assert WITH_DEFAULTS.next_action(later, may_start=True) == Segment("promoted", 0, 3, 9)
    assert not is_continued(defaults_and([WORSE] * 4, defaults=[0.3] * 9))


def test_trials_that_broke_off_count_as_worse_than_the_defaults():
    diverged = [standing(n, 0.1, 0.1, state="ended", broke_off=True) for n in range(1, 5)]
    assert is_continued([standing(0, 0.3), *diverged])
