import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmarks.search.comparison import (
    FLOOR,
    MEASURES,
    Pair,
    bootstrap,
    choose_on_halves,
    choose_side,
    correct_by_holm,
    count_wins,
    get_final_ratio,
    get_p_value,
    get_relative_time,
    get_time_to,
    get_win_share,
)

REGRETS = arrays(float, (5, 8), elements=st.floats(0, 1, width=32))
PAIRS = st.builds(Pair, REGRETS, REGRETS)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_keeps_order_and_lies_between_p_and_bonferroni(p_values):
    corrected = correct_by_holm(p_values)
    for p, holm in zip(p_values, corrected, strict=True):
        assert p <= holm <= min(1.0, len(p_values) * p)
    in_order = [corrected[index] for index in np.argsort(p_values, kind="stable")]
    assert in_order == sorted(in_order)


def test_holm_corrects_the_smallest_p_most():
    assert correct_by_holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])


@given(REGRETS, st.floats(0, 1))
def test_time_to_a_target_is_that_from_which_it_holds(regrets, target):
    share, median = get_time_to(target, regrets), np.median(regrets, axis=0)
    if math.isinf(share):
        assert median[-1] > target
    else:
        first = round(share * len(median)) - 1
        assert (median[first:] <= target).all()
        assert first == 0 or median[first - 1] > target


@given(PAIRS)
def test_exchanged_sides_have_the_inverse_ratio_and_wins(pair):
    exchanged = Pair(pair.theirs, pair.ours)
    assert get_final_ratio(pair) * get_final_ratio(exchanged) == pytest.approx(1.0)
    assert count_wins(pair) == count_wins(exchanged)[::-1]
    assert get_win_share(pair) + get_win_share(exchanged) == pytest.approx(1.0)


@given(REGRETS)
def test_side_against_itself_is_neither_better_nor_worse(regrets):
    pair = Pair(regrets, regrets)
    assert (get_final_ratio(pair), get_relative_time(pair), get_p_value(pair)) == (1.0, 1.0, 1.0)
    assert get_win_share(pair) == 0.5


def test_regrets_below_the_floor_are_equally_good():
    ours, theirs = np.zeros((3, 2)), np.full((3, 2), FLOOR / 2)
    assert get_final_ratio(Pair(ours, theirs)) == 1.0


@given(PAIRS, PAIRS)
def test_stacked_pairs_have_the_numbers_of_each(first, second):
    both = Pair(np.stack([first.ours, second.ours]), np.stack([first.theirs, second.theirs]))
    for compute in (get_final_ratio, get_win_share, get_relative_time):
        assert compute(both).tolist() == [compute(first), compute(second)]


@settings(max_examples=20)
@given(st.lists(PAIRS, min_size=1, max_size=4))
def test_bootstrap_intervals_are_ordered_and_repeatable(pairs):
    for measure in MEASURES.values():
        interval = bootstrap(measure, pairs, resamples=20)
        assert interval.seeds[0] <= interval.seeds[1]
        assert interval.both[0] <= interval.both[1]
        assert interval == bootstrap(measure, pairs, resamples=20)


def test_bootstrap_over_problems_is_wider_where_problems_differ():
    draw = np.random.default_rng(0)
    theirs = 0.5 + 0.01 * draw.random((20, 4))
    pairs = [Pair(theirs * ratio, theirs) for ratio in (0.2, 0.5, 1.0, 2.0)]
    interval = bootstrap(MEASURES["final_ratio"], pairs, resamples=200)
    assert interval.value == pytest.approx(0.2**0.25 * 0.5**0.25 * 2**0.25)
    assert interval.seeds[1] / interval.seeds[0] < 1.1
    assert interval.both[1] / interval.both[0] > 2


def test_infinite_times_stay_in_the_interval():
    never = Pair(np.ones((4, 3)), np.zeros((4, 3)))
    interval = bootstrap(MEASURES["time"], [never], resamples=10)
    assert interval == (math.inf, (math.inf, math.inf), (math.inf, math.inf))


def test_side_is_chosen_by_some_problems_and_judged_on_the_others():
    ratios = np.array([[0.5, 0.125, 4.0], [1.0, 1.0, 1.0]])
    found = choose_side(ratios, np.array([True, True, False]))
    assert found.chosen == 0
    assert (found.on_these.tolist(), found.on_others.tolist()) == ([0.25, 1.0], [4.0, 1.0])


@pytest.mark.parametrize("problems", [2, 5, 6])
def test_choices_on_halves_are_based_on_half_of_the_problems(problems):
    ratios = 2.0 ** np.stack([2 ** np.arange(problems), np.zeros(problems)])  # so that a product tells its factors
    for found in choose_on_halves(ratios, halves=5):
        chosen_on = round(np.log2(found.on_these[0]) * (problems // 2))
        others = round(np.log2(found.on_others[0]) * (problems - problems // 2))
        assert chosen_on.bit_count() == problems // 2
        assert chosen_on + others == 2**problems - 1
