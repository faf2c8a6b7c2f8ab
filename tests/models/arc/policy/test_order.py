"""The score of an order of programs, and the orders that it is compared with."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from searchlight.models.arc.policy import (
    BUDGETS,
    apply_order,
    compute_anytime_reward,
    compute_uniform_reward,
    order_by_cover,
)


def test_anytime_reward_is_the_mean_of_the_best_by_budget():
    rewards = torch.zeros(1, 100)
    rewards[0, [7, 9, 99]] = torch.tensor([0.5, 0.8, 1.5])
    order = torch.tensor([[7, 1, 2, 9, *(set(range(100)) - {7, 1, 2, 9})]])  # 99 is the last: no budget reaches it
    assert BUDGETS == (2, 4, 8, 16, 32, 64)
    torch.testing.assert_close(compute_anytime_reward(order, rewards), torch.tensor([(0.5 + 5 * 0.8) / 6]))


rows = st.lists(st.tuples(st.floats(0, 1.5, width=32), st.booleans()), min_size=3, max_size=6)


@settings(max_examples=30)
@given(rows.filter(lambda row: any(valid for _, valid in row)))
def test_uniform_reward_is_the_mean_over_all_orders(row):
    rewards = torch.tensor([[reward if valid else 0.0 for reward, valid in row]])
    is_valid = torch.tensor([[valid for _, valid in row]])
    valid = is_valid[0].nonzero().flatten().tolist()
    rest = [index for index in range(len(row)) if index not in valid]
    orders = torch.tensor([[*order, *rest] for order in itertools.permutations(valid)])
    expected = compute_anytime_reward(orders, rewards.expand(len(orders), -1)).mean()
    assert float(compute_uniform_reward(is_valid, rewards)) == pytest.approx(float(expected), abs=1e-5)


def test_uniform_reward_without_a_valid_operation_is_0():
    assert compute_uniform_reward(torch.zeros(1, 3, dtype=torch.bool), torch.zeros(1, 3)).tolist() == [0.0]


def test_cover_begins_with_what_adds_most_to_what_is_covered():
    rewards = torch.tensor([[1.0, 0.9, 0.0, 0.0], [1.0, 0.9, 0.0, 0.0], [0.0, 0.0, 0.6, 0.0]])
    order = order_by_cover(rewards)
    assert order[:2].tolist() == [0, 2], "1 is nearly as good as 0, but for the same puzzles"
    assert sorted(order.tolist()) == [0, 1, 2, 3]


def test_order_is_applied_with_the_valid_operations_first():
    is_valid = torch.tensor([[True, True, True], [True, False, True], [False, False, False]])
    assert apply_order(torch.tensor([1, 2, 0]), is_valid).tolist() == [[1, 2, 0], [2, 0, 1], [1, 2, 0]]
