"""Test a learning rate that rises: it begins above 0, and is at its peak when it should be."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from searchlight.trainables.update.lr_schedules import linear_warmup, warmup_cosine

updates = st.integers(1, 200)
shares = st.floats(0, 1)
bounded = settings(max_examples=50)


@given(rising=st.integers(0, 100))
@bounded
def test_warmup_rises_in_equal_steps_and_stays(rising: int) -> None:
    peak = max(1, rising)
    factors = [linear_warmup(update, rising) for update in range(peak + 10)]
    assert factors == pytest.approx([*((n + 1) / peak for n in range(peak)), *[1.0] * 10])
    assert factors[peak - 1 :] == [1.0] * 11


@given(updates, shares)
@bounded
def test_warmup_cosine_is_positive_and_peaks_after_its_share(count: int, share: float) -> None:
    factors = [warmup_cosine(update, count, share) for update in range(count + 3)]  # and beyond the end
    assert min(factors) > 0
    assert max(factors) == 1
    peak = factors.index(1.0)
    assert peak == max(1, round(count * share)) - 1
    assert factors[:peak] == sorted(factors[:peak])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)
    if peak + 1 < count:
        assert warmup_cosine(count, count, share, lowest=0.1) == pytest.approx(0.1)
        assert warmup_cosine(count + 7, count, share, lowest=0.1) == pytest.approx(0.1)


def test_cosine_is_in_the_middle_half_way_down() -> None:
    assert warmup_cosine(60, 100, 0.2, lowest=0.1) == pytest.approx(0.55)
