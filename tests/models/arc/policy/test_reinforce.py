"""The estimated gradient of the policy: its direction, its scale, and what it does not depend on."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from searchlight.models.arc.policy import compute_advantages, compute_entropy, compute_reinforce_loss, has_spread

REWARDS = torch.tensor([[0.0, 0.3, 1.2, 0.1]])


def compute_gradient(reward_scale: float = 1.0) -> torch.Tensor:
    """Return the mean of the estimated gradients over all pairs of samples, each by its probability."""
    logits = torch.tensor([[0.1, -0.4, 0.3, 0.0]], dtype=torch.float64, requires_grad=True)
    probs = logits.detach().softmax(-1)[0]
    total = torch.zeros(())
    for pair in itertools.product(range(4), repeat=2):
        actions = torch.tensor([pair])
        advantages = compute_advantages(REWARDS.double().gather(1, actions), reward_scale)
        loss = compute_reinforce_loss(logits.log_softmax(-1), actions, advantages)
        total = total + probs[list(pair)].prod() * loss
    (gradient,) = torch.autograd.grad(total, logits)
    return gradient


def test_estimated_gradient_is_that_of_the_expected_reward():
    logits = torch.tensor([[0.1, -0.4, 0.3, 0.0]], dtype=torch.float64, requires_grad=True)
    expected = -(logits.softmax(-1) * REWARDS.double()).sum()
    (gradient,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(compute_gradient(), gradient)


def test_reward_scale_multiplies_the_gradient():  # C72
    torch.testing.assert_close(compute_gradient(5.0), 5 * compute_gradient())
    torch.testing.assert_close(compute_gradient(-1.0), -compute_gradient())  # C70


@given(st.lists(st.floats(0, 1.5, width=32), min_size=2, max_size=8))
def test_advantages_are_against_the_mean_of_the_others(rewards):
    found = compute_advantages(torch.tensor([rewards], dtype=torch.float64), 2.0)[0].tolist()
    for index, value in enumerate(found):
        others = rewards[:index] + rewards[index + 1 :]
        assert value == pytest.approx(2.0 * (rewards[index] - sum(others) / len(others)), abs=1e-9)
    assert sum(found) == pytest.approx(0, abs=1e-9)


def test_equal_rewards_give_no_gradient():  # C73
    rewards = torch.tensor([[0.5, 0.5, 0.5], [0.0, 0.5, 0.0]])
    assert (compute_advantages(rewards, 5.0)[0] == 0).all()
    assert has_spread(rewards).tolist() == [False, True]


def test_entropy_counts_what_is_not_valid_as_0():
    logits = torch.tensor([[0.0, 0.0, torch.finfo(torch.float32).min], [0.0, 30.0, -30.0]], requires_grad=True)
    entropy = compute_entropy(logits.log_softmax(-1))
    torch.testing.assert_close(entropy, torch.tensor([2.0, 1.0]).log(), atol=1e-5, rtol=0)
    entropy.sum().backward()
    assert logits.grad.isfinite().all()
