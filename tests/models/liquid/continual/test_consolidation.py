"""Weights are held where they mattered: the Fisher information, EWC and synaptic intelligence."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from searchlight.models.liquid.continual import EWC, SI, compute_directions, sum_squared_gradients


def test_the_fisher_diagonal_sums_squared_gradients_of_samples() -> None:
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    slopes = ([[2.0, 3.0], [1.0, 0.0]], [[-1.0, 0.0]], [])
    samples = (torch.tensor(rows).view(-1, 2) @ used for rows in slopes)
    sums, count = sum_squared_gradients({"used": used, "unused": unused}, samples)
    assert (sums["used"].tolist(), sums["unused"].tolist(), count) == ([6, 9], [0, 0, 0], 3)
    assert used.grad is None
    assert sum_squared_gradients({"w": used}, [])[1] == 0


def softmax_layer(scale: float, samples: int) -> tuple[nn.Parameter, Tensor, Tensor]:
    """Weights of a softmax regression, inputs, and its Fisher in closed form: the mean of p_c (1 - p_c) x_i^2."""
    generator = torch.Generator().manual_seed(0)
    weights = nn.Parameter(scale * torch.randn(3, 4, generator=generator))
    inputs = torch.randn(samples, 4, generator=generator)
    p = (inputs @ weights.T).softmax(-1).detach()
    return weights, inputs, (p * (1 - p)).T @ inputs.square() / len(inputs)


@pytest.mark.parametrize("scale", [0.1, 1.0, 8.0, 1e3])  # from all classes alike to no doubt at all
def test_exact_fisher_equals_that_of_softmax_regression(scale: float) -> None:
    weights, inputs, expected = softmax_layer(scale, samples=500)
    logits = inputs @ weights.T
    directions = compute_directions(logits)
    sums, count = sum_squared_gradients({"w": weights}, (row @ a for row, a in zip(logits, directions, strict=True)))
    assert count == len(inputs)
    assert (sums["w"] / count).sum() == pytest.approx(float(expected.sum()), rel=0.03, abs=1e-12)
    torch.testing.assert_close(sums["w"] / count, expected, rtol=0.02, atol=0.02 * float(expected.max()))
    assert max(a.shape[1] for a in directions) <= 2  # one less than classes


FISHER = {"weight": torch.tensor([[1.0, 0.0, 2.0], [0.5, 3.0, 0.0]]), "bias": torch.tensor([4.0, 0.25])}


@pytest.fixture
def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def named(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters())


def moved(model: nn.Module, by: float = 0.5) -> dict[str, Tensor]:
    """Move all weights and say by how much, each by a way of its own."""
    ways = {name: by * torch.arange(1.0, 1 + p.numel()).view_as(p) for name, p in model.named_parameters()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += ways[name]
    return ways


def test_penalty_is_half_lambda_fisher_times_the_squared_way(model: nn.Linear) -> None:
    ewc = EWC(named(model), 30.0)
    assert ewc.compute_penalty().item() == 0
    assert not ewc.compute_penalty().requires_grad
    ewc.load_state_dict(EWC(named(model), 1.0).state_dict())  # of no task
    ewc.consolidate(FISHER)
    ways = moved(model)
    penalty = ewc.compute_penalty()
    (8.0 * penalty).backward()  # as a scaled loss is
    value = sum((15 * FISHER[name] * way.square()).sum() for name, way in ways.items())
    torch.testing.assert_close(penalty.detach(), value)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, 8 * 30 * FISHER[name] * ways[name])


def test_penalty_is_fp32_under_autocast_and_of_half_weights(model: nn.Linear) -> None:
    half = nn.Linear(3, 2).to(torch.bfloat16)
    half.load_state_dict(model.state_dict())
    for module in (model, half):
        ewc = EWC(named(module), 1.0)
        ewc.consolidate(FISHER)
        moved(module)
        with torch.autocast("cpu", torch.bfloat16):
            inside = ewc.compute_penalty()
        inside.backward()
        assert inside.dtype == torch.float32
        assert inside.item() == ewc.compute_penalty().item() > 0
        assert all(p.grad.dtype == p.dtype for p in module.parameters())


def test_fishers_add_up_at_the_latest_optimum(model: nn.Linear) -> None:
    ewc = EWC(named(model), 2.0, decay=0.25)
    ewc.consolidate(FISHER)
    moved(model)
    ewc.consolidate({name: 3 * values for name, values in FISHER.items()})
    assert ewc.compute_penalty().item() == 0
    ways = moved(model)
    expected = sum((3.25 * FISHER[name] * way.square()).sum() for name, way in ways.items())
    torch.testing.assert_close(ewc.compute_penalty().detach(), expected)
    with pytest.raises(ValueError, match="a difference in"):
        EWC({"w": model.weight}, 1.0).load_state_dict(ewc.state_dict())


@pytest.mark.parametrize(
    ("fisher", "said"),
    [
        ({"weight": FISHER["weight"]}, "a difference in bias"),
        ({**FISHER, "gain": torch.ones(2)}, "a difference in gain"),
        ({**FISHER, "bias": torch.ones(3)}, r"of bias must have shape \(2,\), but got \(3,\)"),
        ({**FISHER, "bias": torch.tensor([1.0, float("nan")])}, "of bias must be finite"),
        ({**FISHER, "bias": torch.tensor([1.0, -1.0])}, "of bias must be finite and at least 0"),
    ],
)
def test_a_fisher_of_something_else_is_refused(model: nn.Linear, fisher: dict[str, Tensor], said: str) -> None:
    ewc = EWC(named(model), 1.0)
    with pytest.raises(ValueError, match=said):
        ewc.consolidate(fisher)
    assert ewc.compute_penalty().item() == 0


SLOPES = torch.tensor([1.0, 4.0, 0.0])
GOAL = torch.tensor([1.0, -0.5, 2.0])


def quadratic(weights: Tensor) -> Tensor:
    """The loss of a task: one weight matters little, one much, and one not at all."""
    return 0.5 * (SLOPES * (weights - GOAL).square()).sum()


def learn(si: SI, weights: nn.Parameter, loss: Callable[[Tensor], Tensor], steps: int, lr: float) -> None:
    for _ in range(steps):
        weights.grad = None
        (loss(weights) + si.compute_penalty()).backward()
        si.begin_step()
        with torch.no_grad():
            weights -= lr * weights.grad
        si.finish_step()


def path(si: SI) -> Tensor:
    return si.state_dict()["path"]["w"]


def importance(si: SI) -> Tensor:
    return si.state_dict()["importance"]["w"]


def of(weights: nn.Parameter, strength: float = 1.0) -> SI:
    return SI({"w": weights}, strength)


@pytest.fixture
def weights() -> nn.Parameter:
    return nn.Parameter(torch.zeros(3))


def test_a_way_that_raised_the_loss_does_not_matter(weights) -> None:
    si = of(weights)
    learn(si, weights, quadratic, 10, -0.01)
    assert (path(si)[:2] < 0).all()
    si.consolidate()
    assert (importance(si) == 0).all()


def test_the_pull_of_the_penalty_does_not_count(weights) -> None:
    si = of(weights, strength=2.0)
    learn(si, weights, quadratic, 200, 0.02)
    si.consolidate()
    with torch.no_grad():
        weights += 0.3
    before, pull = weights.detach().clone(), torch.tensor([1.0, -2.0, 0.5])
    learn(si, weights, lambda w: (pull * w).sum(), 1, 0.02)
    torch.testing.assert_close(path(si), pull * (before - weights.detach()), rtol=1e-4, atol=1e-6)


def test_the_penalty_is_c_omega_times_the_square_of_the_way(weights) -> None:
    si = of(weights, strength=7.0)
    assert si.compute_penalty().item() == 0
    assert not si.compute_penalty().requires_grad
    learn(si, weights, quadratic, 50, 0.02)
    assert si.compute_penalty().item() == 0
    si.consolidate()
    weights.grad = None
    si.compute_penalty().backward()
    assert (si.compute_penalty().item(), weights.grad.abs().sum().item()) == (0, 0)
    with torch.no_grad():
        weights += 0.2
    si.compute_penalty().backward()
    torch.testing.assert_close(si.compute_penalty().detach(), 7 * 0.04 * importance(si).sum())
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
                si.begin_step()
                si.forget_step()
        paths.append(path(si))
    assert torch.equal(*paths)


def test_weights_without_a_gradient_or_an_update_do_not_matter(weights) -> None:
    si = of(weights)
    si.consolidate()
    si.begin_step()
    with torch.no_grad():
        weights += 1
    si.finish_step()
    si.consolidate()
    assert (importance(si) == 0).all()


def test_importance_adds_up_and_each_task_has_its_own_way(weights) -> None:
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


def test_the_way_begins_where_training_begins(weights) -> None:
    si = of(weights)
    with torch.no_grad():
        weights += 100  # as when ranks are made equal, or weights are loaded
    learn(si, weights, lambda w: w.sum(), 1, 0.1)
    si.consolidate()
    torch.testing.assert_close(importance(si), torch.full((3,), 0.1 / (0.01 + 0.1)), rtol=1e-3, atol=0)


def test_state_of_other_weights_is_refused(weights) -> None:
    si = of(weights)
    learn(si, weights, quadratic, 1, 0.1)
    with pytest.raises(ValueError, match="a difference in"):
        SI({"other": weights}, 1.0).load_state_dict(si.state_dict())
