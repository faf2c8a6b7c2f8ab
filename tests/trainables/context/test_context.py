"""Shard data over ranks: every sample once, in one order; and reduce on a single rank."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from searchlight.trainables.context import Context


def make_shards(data, batch_size, world_size, shuffle=True, seed=0):
    """The batches of each rank."""
    ranks = []
    for rank in range(world_size):
        context = Context(rank=rank, world_size=world_size)
        context.generator.manual_seed(seed)
        ranks.append(list(context.shard(data, batch_size, shuffle)))
    return ranks


@given(
    count=st.integers(0, 40),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 5),
    shuffle=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=100)
def test_each_sample_comes_once_over_all_ranks(count, batch_size, world_size, shuffle, seed):
    ranks = make_shards(torch.arange(count), batch_size, world_size, shuffle, seed)
    seen = [int(sample) for batches in ranks for batch in batches for sample in batch]
    assert sorted(seen) == list(range(count))
    for batches in ranks:
        assert all(1 <= len(batch) <= batch_size for batch in batches)
        assert all(len(batch) == batch_size for batch in batches[:-1])
    sizes = [sum(map(len, batches)) for batches in ranks]
    assert max(sizes) - min(sizes) <= 1
    assert Context(world_size=world_size).micro_batches(count, batch_size) == max(map(len, ranks))


def test_order_is_new_each_time_and_follows_from_the_seed():
    def draw(context, shuffle=True):
        return torch.cat(list(context.shard(torch.arange(50), 7, shuffle))).tolist()

    contexts = [Context() for _ in range(3)]
    for context, seed in zip(contexts, (0, 0, 1), strict=True):
        context.generator.manual_seed(seed)
    plain = list(range(50))
    first, again, other = map(draw, contexts)
    assert first == again
    assert first != other
    assert draw(contexts[0]) not in (first, plain)
    assert draw(contexts[0], shuffle=False) == plain


def test_parts_of_a_sample_stay_together():
    numbers = torch.arange(10)
    data = {"tensor": numbers * 2, "pair": (numbers.numpy() * 3, [f"item {n}" for n in range(10)])}
    batches = make_shards(data, 4, 1)[0]
    assert [len(batch["tensor"]) for batch in batches] == [4, 4, 2]
    for batch in batches:
        array, items = batch["pair"]
        chosen = batch["tensor"] // 2
        assert isinstance(array, np.ndarray)
        assert (array == 3 * chosen.numpy()).all()
        assert items == [f"item {n}" for n in chosen.tolist()]


def test_rows_of_a_data_frame_are_taken_by_position():
    frame = pd.DataFrame({"x": range(10), "y": range(0, 20, 2)}, index=list("abcdefghij"))
    batches = make_shards(frame, 4, 1)[0]
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert pd.concat(batches).sort_index().equals(frame)


@pytest.mark.parametrize(
    ("data", "size", "message"),
    [
        ((torch.zeros(4), torch.zeros(3)), 2, r"data must have parts of one length, but got lengths \[3, 4\]"),
        (torch.zeros(4), 0, "batch_size must be at least 1, but got 0"),
    ],
)
def test_data_that_cannot_be_sharded_raises_value_error(data, size, message):
    with pytest.raises(ValueError, match=message):
        list(Context().shard(data, size))


def test_single_rank_reduces_over_itself():
    context = Context()
    tensor = torch.ones(2)
    context.broadcast([tensor])
    assert tensor.tolist() == [1.0, 1.0]
    assert context.any(True, False) == [True, False]
    assert context.all_reduce_sums({"a": 1.5}) == {"a": 1.5}
    means = context.weighted_means({"mean": (6.0, 4.0), "nothing": (0.0, 0.0)})
    assert means["mean"] == 1.5
    assert math.isnan(means["nothing"])
