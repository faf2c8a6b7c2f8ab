import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.config.objectives import Objective
from search.formatting import format_change, format_numbers, format_percent, join_words, pluralize
from search.reporting.html.axes import robust_range


def test_numbers_read_as_a_person_would_write_them():
    assert [pluralize(1, "trial"), pluralize(0, "trial"), pluralize(3, "trial")] == ["1 trial", "0 trials", "3 trials"]
    assert [join_words([]), join_words(["a"]), join_words(["a", "b"]), join_words(["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]
    assert format_numbers([4, 5, 6], most=2) == "4, 5 and 1 more"


def test_little_is_not_told_as_nothing_nor_nearly_all_as_all():
    shares = [0, 0.00001, 0.0004, 0.004, 0.126, 0.996, 1]
    assert list(map(format_percent, shares)) == ["0 %", "under 0.01 %", "0.04 %", "0.4 %", "13 %", "over 99 %", "100 %"]


def test_a_change_has_percents_where_they_mean_something():
    assert format_change(0.75, 0.5) == "0.25 (50 %)"
    assert format_change(-0.25, 0.5) == "0.75"
    assert format_change(0.5, 0.0) == "0.5"


@given(st.lists(st.floats(-1e6, 1e6), min_size=5), st.sampled_from(["min", "max"]))
def test_an_axis_always_shows_the_best_value_and_most_of_the_others(values, mode):
    shown = robust_range(values, Objective("x", mode))
    if shown is not None:
        assert shown[0] <= (min if mode == "min" else max)(values) <= shown[1]
        assert sum(shown[0] <= value <= shown[1] for value in values) >= 0.8 * len(values)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_loss_that_ran_away_does_not_flatten_the_others(mode):
    sign = 1 if mode == "min" else -1
    values = [sign * value for value in [0.2, 0.3, 0.4, 0.5, 0.35, 0.25, 0.3, 0.45, 0.5, 0.4, 1e9, math.inf]]
    low, high = robust_range(values, Objective("x", mode))
    assert high - low < 1
    assert robust_range([0.1, 0.2, 0.3, 0.4, 0.5], Objective("x", mode)) is None
