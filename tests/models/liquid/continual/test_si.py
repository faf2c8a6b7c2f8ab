"""Synaptic intelligence: the importance that is gathered along the way."""

import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from models.liquid.continual import SI

SLOPES = torch.tensor([1.0, 4.0, 0.0])
GOAL = torch.tensor([1.0, -0.5, 2.0])


def quadratic(weights: Tensor) -> Tensor:
    """The loss of a task: one weight matters little, one much, and one not at all."""
    return 0.5 * (SLOPES * (weights - GOAL).square()).sum()


def learn(si: SI, weights: nn.Parameter, loss: Callable[[Tensor], Tensor], steps: int, lr: float) -> None:
    for _ in range(steps):
        weights.grad = None
        (loss(weights) + si.penalty()).backward()
        si.before_step()
        with torch.no_grad():
            assert weights.grad is not None
            weights -= lr * weights.grad
        si.after_step()


def path(si: SI) -> Tensor:
    return si.state_dict()["path"]["w"]


def importance(si: SI) -> Tensor:
    return si.state_dict()["importance"]["w"]


def of(weights: nn.Parameter, strength: float = 1.0, damping: float = 0.1) -> SI:
    return SI({"w": weights}, strength, damping)


def test_small_steps_add_up_to_the_fall_of_the_loss() -> None:
    weights = nn.Parameter(torch.zeros(3))
    si = of(weights)
    start = 0.5 * SLOPES * (weights.detach() - GOAL).square()
    learn(si, weights, quadratic, 1500, 0.002)
    falls = start - 0.5 * SLOPES * (weights.detach() - GOAL).square()
    torch.testing.assert_close(path(si), falls, rtol=1e-2, atol=1e-6)


def test_what_matters_is_the_fall_over_the_square_of_the_way() -> None:
    weights = nn.Parameter(torch.zeros(3))
    si = of(weights, damping=0.5)
    learn(si, weights, quadratic, 200, 0.02)
    gathered = path(si).clone()
    si.consolidate()
    torch.testing.assert_close(importance(si), gathered / (weights.detach().square() + 0.5))
    assert importance(si)[2] == 0


def test_a_way_that_raised_the_loss_does_not_matter() -> None:
    weights = nn.Parameter(torch.zeros(3))
    si = of(weights)
    learn(si, weights, quadratic, 10, -0.01)
    assert (path(si)[:2] < 0).all()
    si.consolidate()
    assert (importance(si) == 0).all()


def test_the_pull_of_the_penalty_does_not_count_as_the_tasks() -> None:
    """Held fast by a strong penalty, the weights move as a task without a gradient would move them: not at all."""
    weights = nn.Parameter(torch.zeros(3))
    si = of(weights, strength=5.0)
    learn(si, weights, quadratic, 200, 0.02)
    si.consolidate()
    with torch.no_grad():
        weights += 0.3
    before = weights.detach().clone()
    learn(si, weights, lambda w: (0.0 * w).sum(), 5, 0.02)
    assert (weights != before)[:2].all()
    torch.testing.assert_close(path(si), torch.zeros(3), rtol=0, atol=1e-6)


def test_the_task_counts_as_it_would_without_the_penalty() -> None:
    weights = nn.Parameter(torch.zeros(3))
    si = of(weights, strength=2.0)
    learn(si, weights, quadratic, 200, 0.02)
    si.consolidate()
    with torch.no_grad():
        weights += 0.3
    before, pull = weights.detach().clone(), torch.tensor([1.0, -2.0, 0.5])
    learn(si, weights, lambda w: (pull * w).sum(), 1, 0.02)
    torch.testing.assert_close(path(si), pull * (before - weights.detach()), rtol=1e-4, atol=1e-6)


def test_the_penalty_is_c_omega_times_the_square_of_the_way() -> None:
    weights = nn.Parameter(torch.zeros(3))
    si = of(weights, strength=7.0)
    assert si.penalty().item() == 0
    assert not si.penalty().requires_grad
    learn(si, weights, quadratic, 50, 0.02)
    assert si.penalty().item() == 0
    si.consolidate()
    weights.grad = None
    si.penalty().backward()
    assert (si.penalty().item(), weights.grad.abs().sum().item()) == (0, 0)
    with torch.no_grad():
        weights += 0.2
    si.penalty().backward()
    torch.testing.assert_close(si.penalty().detach(), 7 * 0.04 * importance(si).sum())
    torch.testing.assert_close(weights.grad, 14 * 0.2 * importance(si))


def test_a_window_that_was_skipped_leaves_nothing() -> None:
    paths = []
    for skips in (False, True):
        weights = nn.Parameter(torch.zeros(3))
        si = of(weights)
        for _ in range(4):
            learn(si, weights, quadratic, 1, 0.1)
            if skips:
                weights.grad = torch.full((3,), float("nan"))
                si.before_step()
                si.forget_step()
        paths.append(path(si))
    assert torch.equal(*paths)
    with pytest.raises(RuntimeError, match="must follow before_step"):
        si.after_step()


def test_a_weight_without_a_gradient_and_a_task_without_an_update_matter_nothing() -> None:
    weights = nn.Parameter(torch.zeros(3))
    si = of(weights)
    si.consolidate()
    si.before_step()
    with torch.no_grad():
        weights += 1
    si.after_step()
    si.consolidate()
    assert (importance(si) == 0).all()


def test_the_importance_of_tasks_adds_up_and_each_has_its_own_way() -> None:
    weights = nn.Parameter(torch.zeros(3))
    si = of(weights, strength=0.0)
    learn(si, weights, quadratic, 100, 0.02)
    si.consolidate()
    first, begun = importance(si).clone(), weights.detach().clone()
    learn(si, weights, lambda w: quadratic(-w), 100, 0.02)
    gathered = path(si).clone()
    si.consolidate()
    way = weights.detach() - begun
    torch.testing.assert_close(importance(si), first + gathered.relu() / (way.square() + 0.1))
    assert (importance(si)[:2] > first[:2]).all()


def test_the_way_begins_where_training_does_and_not_where_the_weights_were_made() -> None:
    weights = nn.Parameter(torch.zeros(3))
    si = of(weights)
    with torch.no_grad():
        weights += 100  # as when ranks are made equal, or weights are loaded
    learn(si, weights, lambda w: w.sum(), 1, 0.1)
    si.consolidate()
    torch.testing.assert_close(importance(si), torch.full((3,), 0.1 / (0.01 + 0.1)), rtol=1e-3, atol=0)


def test_a_state_goes_on_where_it_was_in_the_middle_of_a_task() -> None:
    states = []
    for resumes in (False, True):
        weights = nn.Parameter(torch.zeros(3))
        si = of(weights)
        learn(si, weights, quadratic, 20, 0.05)
        si.consolidate()
        learn(si, weights, lambda w: quadratic(-w), 7, 0.05)
        if resumes:
            file = io.BytesIO()
            torch.save(si.state_dict(), file)
            file.seek(0)
            si = of(weights)
            si.load_state_dict(torch.load(file, weights_only=True))
        learn(si, weights, lambda w: quadratic(-w), 7, 0.05)
        si.consolidate()
        states.append([si.state_dict()[part]["w"] for part in ("importance", "anchor")])
    for whole, resumed in zip(*states, strict=True):
        assert torch.equal(whole, resumed)


def test_a_state_of_something_else_and_numbers_out_of_range_are_refused() -> None:
    weights = nn.Parameter(torch.zeros(3))
    si = of(weights)
    learn(si, weights, quadratic, 1, 0.1)
    with pytest.raises(ValueError, match="a difference in"):
        SI({"other": weights}, 1.0).load_state_dict(si.state_dict())
    with pytest.raises(ValueError, match="strength must be at least 0"):
        of(weights, strength=-1.0)
    with pytest.raises(ValueError, match="damping must be positive"):
        of(weights, damping=0.0)
