"""Elastic weight consolidation."""

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.liquid.continual import EWC

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


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_before_the_first_task_ends_there_is_no_penalty(model: nn.Linear) -> None:
    penalty = EWC(named(model), 1e4).penalty()
    assert penalty.item() == 0
    assert not penalty.requires_grad


def test_there_is_no_penalty_at_the_optimum(model: nn.Linear) -> None:  # C100
    ewc = EWC(named(model), 1e9)
    ewc.consolidate(FISHER)
    ewc.penalty().backward()
    assert ewc.penalty().item() == 0
    assert all((p.grad == 0).all() for p in model.parameters())


def test_its_gradient_is_lambda_f_times_the_way(model: nn.Linear) -> None:  # C100
    ewc = EWC(named(model), 30.0)
    ewc.consolidate(FISHER)
    ways = moved(model)
    penalty = ewc.penalty()
    (8.0 * penalty).backward()  # as a scaled loss is
    value = sum((15 * FISHER[name] * way.square()).sum() for name, way in ways.items())
    torch.testing.assert_close(penalty.detach(), value)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, 8 * 30 * FISHER[name] * ways[name])


def test_its_gradient_is_that_of_its_value() -> None:
    model = nn.Linear(3, 2).double()
    ewc = EWC(named(model), 30.0)
    ewc.consolidate(FISHER)
    moved(model)
    penalty = ewc.penalty()
    penalty.backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        with torch.no_grad():
            parameter.view(-1)[1] += 1e-6
            slope = (ewc.penalty() - penalty) / 1e-6
            parameter.view(-1)[1] -= 1e-6
        assert slope.item() == pytest.approx(parameter.grad.view(-1)[1].item(), rel=1e-4)


def test_it_is_in_full_precision_under_autocast_and_with_half_weights(model: nn.Linear) -> None:
    half = nn.Linear(3, 2).to(torch.bfloat16)
    half.load_state_dict(model.state_dict())
    for module in (model, half):
        ewc = EWC(named(module), 1.0)
        ewc.consolidate(FISHER)
        moved(module)
        with torch.autocast("cpu", torch.bfloat16):
            inside = ewc.penalty()
        inside.backward()
        assert inside.dtype == torch.float32
        assert inside.item() == ewc.penalty().item() > 0
        assert all(p.grad is not None and p.grad.dtype == p.dtype for p in module.parameters())


def test_fishers_add_up_and_the_anchor_is_the_latest_optimum(model: nn.Linear) -> None:
    ewc = EWC(named(model), 2.0, decay=0.25)
    ewc.consolidate(FISHER)
    moved(model)
    ewc.consolidate({name: 3 * values for name, values in FISHER.items()})
    assert ewc.penalty().item() == 0
    ways = moved(model)
    expected = sum((3.25 * FISHER[name] * way.square()).sum() for name, way in ways.items())
    torch.testing.assert_close(ewc.penalty().detach(), expected)


def test_a_stronger_one_holds_what_matters_nearer_to_its_place() -> None:
    def way(strength: float) -> Tensor:
        weights = nn.Parameter(torch.zeros(2))
        ewc = EWC({"w": weights}, strength)
        ewc.consolidate({"w": torch.tensor([1.0, 0.0])})
        optimizer = torch.optim.SGD([weights], lr=0.05)
        for _ in range(300):
            optimizer.zero_grad()
            (0.5 * (weights - 1).square().sum() + ewc.penalty()).backward()
            optimizer.step()
        return weights.detach()

    torch.testing.assert_close(way(0.0), torch.tensor([1.0, 1.0]), rtol=1e-4, atol=0)
    torch.testing.assert_close(way(9.0), torch.tensor([0.1, 1.0]), rtol=1e-4, atol=0)


def test_a_state_goes_on_where_it_was(model: nn.Linear) -> None:
    ewc = EWC(named(model), 5.0, decay=0.5)
    resumed = EWC(named(model), 5.0, decay=0.5)
    resumed.load_state_dict(through_a_file(ewc.state_dict()))
    assert resumed.penalty().item() == 0
    ewc.consolidate(FISHER)
    resumed.load_state_dict(through_a_file(ewc.state_dict()))
    for one in (ewc, resumed):
        moved(model, 0.1)
        one.consolidate(FISHER)
        moved(model, -0.1)
    moved(model, 0.2)
    ewc.load_state_dict(resumed.state_dict())
    assert ewc.penalty().item() == resumed.penalty().item() > 0


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
    assert ewc.penalty().item() == 0


def test_a_state_of_something_else_is_refused(model: nn.Linear) -> None:
    ewc = EWC(named(model), 1.0)
    ewc.consolidate(FISHER)
    with pytest.raises(ValueError, match="a difference in"):
        EWC({"w": nn.Parameter(torch.ones(2))}, 1.0).load_state_dict(ewc.state_dict())


@pytest.mark.parametrize(
    ("strength", "decay", "said"),
    [(-1.0, 1.0, "strength"), (float("inf"), 1.0, "strength"), (1.0, 1.5, "decay"), (1.0, -0.1, "decay")],
)
def test_numbers_out_of_range_are_refused(model: nn.Linear, strength: float, decay: float, said: str) -> None:
    with pytest.raises(ValueError, match=f"{said} must be"):
        EWC(named(model), strength, decay)
    with pytest.raises(ValueError, match="at least one parameter"):
        EWC({}, 1.0)
