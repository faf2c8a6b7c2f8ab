"""Sharding: every sample once over all ranks, in one order; and the collectives of a single rank."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainables.context import Context


def shards(data, batch_size, world_size, shuffle=True, seed=0):
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
@settings(deadline=None, derandomize=True, max_examples=100)
def test_each_sample_comes_once_over_all_ranks(count, batch_size, world_size, shuffle, seed):  # B29
    ranks = shards(torch.arange(count), batch_size, world_size, shuffle, seed)
    seen = [int(sample) for batches in ranks for batch in batches for sample in batch]
    assert sorted(seen) == list(range(count))
    for batches in ranks:
        assert all(1 <= len(batch) <= batch_size for batch in batches)
        assert all(len(batch) == batch_size for batch in batches[:-1])
    sizes = [sum(map(len, batches)) for batches in ranks]
    assert max(sizes) - min(sizes) <= 1


def test_a_rank_without_samples_has_no_batches():
    assert [len(batches) for batches in shards(torch.arange(2), 4, 3)] == [1, 1, 0]


def test_samples_come_in_a_new_order_each_time_unless_told_otherwise():
    context = Context()
    orders = [torch.cat(list(context.shard(torch.arange(50), 7))).tolist() for _ in range(2)]
    plain = torch.cat(list(context.shard(torch.arange(50), 7, shuffle=False))).tolist()
    assert orders[0] != orders[1]
    assert plain == list(range(50))
    assert plain not in orders


def test_one_seed_gives_one_order():
    assert torch.equal(torch.cat(shards(torch.arange(30), 4, 1)[0]), torch.cat(shards(torch.arange(30), 4, 1)[0]))
    assert not torch.equal(
        torch.cat(shards(torch.arange(30), 4, 1, seed=1)[0]), torch.cat(shards(torch.arange(30), 4, 1, seed=2)[0])
    )


def test_parts_of_a_sample_stay_together():
    numbers = torch.arange(10)
    data = {"tensor": numbers * 2, "pair": (numbers.numpy() * 3, [f"item {n}" for n in range(10)])}
    batches = shards(data, 4, 1)[0]
    assert [len(batch["tensor"]) for batch in batches] == [4, 4, 2]
    for batch in batches:
        array, items = batch["pair"]
        chosen = batch["tensor"] // 2
        assert isinstance(array, np.ndarray)
        assert (array == 3 * chosen.numpy()).all()
        assert items == [f"item {n}" for n in chosen.tolist()]


def test_parts_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match=r"data must have parts of one length, but got lengths \[3, 4\]"):
        list(Context().shard((torch.zeros(4), torch.zeros(3)), 2))


@pytest.mark.parametrize("size", [0, -2])
def test_a_batch_must_hold_something(size):
    with pytest.raises(ValueError, match=f"batch_size must be at least 1, but got {size}"):
        list(Context().shard(torch.zeros(4), size))


def test_a_single_rank_is_its_own_world():
    context = Context()
    tensor = torch.ones(2)
    context.broadcast([tensor])
    assert tensor.tolist() == [1.0, 1.0]
    assert context.any(True, False) == [True, False]
    assert context.all_reduce_sums({"a": 1.5}) == {"a": 1.5}
    means = context.weighted_means({"mean": (6.0, 4.0), "nothing": (0.0, 0.0)})
    assert means["mean"] == 1.5
    assert math.isnan(means["nothing"])
