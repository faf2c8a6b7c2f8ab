from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.liquid.data import bits_per_byte, load


def plain(train: bytes, history: bytes, order: int) -> np.ndarray:
    """The probabilities of all bytes after `history`, counted one by one."""
    if order == 0:
        return np.full(256, 1 / 256)
    context = history[len(history) - order + 1 :]
    counts = np.zeros(256)
    for place in range(len(train) - order + 1):
        if train[place : place + order - 1] == context:
            counts[train[place + order - 1]] += 1
    lower = plain(train, history, order - 1)
    if not counts.any():
        return lower
    different = np.count_nonzero(counts)
    return (counts + different * lower) / (counts.sum() + different)


def as_array(content: bytes) -> np.ndarray:
    return np.frombuffer(content, dtype=np.uint8)


few_symbols = st.lists(st.sampled_from(b"abc"), min_size=4, max_size=30).map(bytes)


@settings(max_examples=25, deadline=None)
@given(train=few_symbols, test=few_symbols)
def test_bits_are_those_of_counting_one_by_one(train: bytes, test: bytes) -> None:
    expected = []
    for order in range(1, 5):
        chances = [plain(train, test[:place], order) for place in range(3, len(test))]
        assert np.allclose([chance.sum() for chance in chances], 1)
        expected.append(-np.mean([np.log2(chance[test[3 + place]]) for place, chance in enumerate(chances)]))
    assert bits_per_byte(as_array(train), as_array(test)) == pytest.approx(expected)


def test_noise_costs_eight_bits() -> None:
    noise = np.random.default_rng(0).integers(0, 256, size=200_000, dtype=np.uint8)
    bits = bits_per_byte(noise[:180_000], noise[180_000:])
    assert bits[0] == pytest.approx(8, abs=0.01)
    assert bits[1] == pytest.approx(8, abs=0.2)
    assert min(bits) > 8


def test_what_alternates_costs_one_bit_without_and_none_with_its_past() -> None:
    data = as_array(b"ab" * 50_000)
    alone, *with_past = bits_per_byte(data[:90_000], data[90_000:])
    assert alone == pytest.approx(1, abs=0.001)
    assert max(with_past) < 0.001


def test_a_byte_that_was_never_seen_has_a_price() -> None:
    assert np.isfinite(bits_per_byte(as_array(b"aaaa" * 10), as_array(b"zzzz" * 10))).all()


def test_english_costs_what_it_should(corpus: Path) -> None:
    baselines = load("text", folder=corpus).baselines["english"]
    assert list(baselines) == ["1-gram", "2-gram", "3-gram", "4-gram"]
    assert list(baselines.values()) == pytest.approx([4.68, 3.34, 2.47, 2.02], abs=0.3)
    assert sorted(baselines.values(), reverse=True) == list(baselines.values())


def test_too_few_bytes_and_too_long_ngrams_are_refused() -> None:
    data = as_array(b"abcdefgh")
    with pytest.raises(ValueError, match=r"orders must lie in 1\.\.7, but got 8"):
        bits_per_byte(data, data, orders=8)
    with pytest.raises(ValueError, match="test must have at least 4 bytes, but got 3"):
        bits_per_byte(data, data[:3])
