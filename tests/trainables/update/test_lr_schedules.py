"""A learning rate that rises: it begins above 0, and is at its peak when it should be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainables.update.lr_schedules import linear_warmup, warmup_cosine

updates = st.integers(1, 500)
shares = st.floats(0, 1)


@given(rising=st.integers(0, 200))
def test_it_rises_in_equal_steps_and_stays(rising: int) -> None:
    factors = [linear_warmup(update, rising) for update in range(rising + 10)]
    assert factors[: max(1, rising)] == pytest.approx([(n + 1) / max(1, rising) for n in range(max(1, rising))])
    assert factors[max(1, rising) - 1 :] == [1.0] * (len(factors) - max(1, rising) + 1)


@given(updates, shares)
def test_no_update_has_a_rate_of_0_and_the_peak_comes_after_the_share_that_rises(count: int, share: float) -> None:
    factors = [warmup_cosine(update, count, share) for update in range(count + 3)]  # and beyond the end
    assert min(factors) > 0
    assert max(factors) == 1
    peak = factors.index(1.0)
    assert peak == max(1, round(count * share)) - 1
    assert factors[:peak] == sorted(factors[:peak])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)


@given(updates, shares)
def test_a_cosine_ends_at_its_lowest_and_stays_there(count: int, share: float) -> None:
    if max(1, round(count * share)) < count:
        assert warmup_cosine(count, count, share, lowest=0.1) == pytest.approx(0.1)
        assert warmup_cosine(count + 7, count, share, lowest=0.1) == pytest.approx(0.1)


def test_half_way_down_a_cosine_is_in_the_middle() -> None:
    assert warmup_cosine(60, 100, 0.2, lowest=0.1) == pytest.approx(0.55)
