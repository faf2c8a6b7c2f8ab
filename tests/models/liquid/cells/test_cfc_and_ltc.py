"""Cells of ncps: their sequences equal those of ncps, and their gradients are right."""

import ncps.torch
import numpy as np
import pytest
import torch
from ncps.wirings import FullyConnected
from torch import Tensor, nn

from searchlight.models.liquid.cells import LTC, CfC

MODES = ["default", "no_gate", "pure"]


def cfc(mode: str, inputs: int = 3, units: int = 4, **options: object) -> CfC:
    torch.manual_seed(0)
    cell = CfC(inputs, units, mode=mode, **options).double()
    if mode == "pure":
        nn.init.uniform_(cell.w_tau, 0.2, 1)
        nn.init.uniform_(cell.level, 0.5, 1.5)
    return cell


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(sum(shape)))


def times(batch: int, steps: int) -> Tensor:
    return random(batch, steps, 1).abs() + 0.1


def cfc_of_ncps(cell: CfC, mask: Tensor | None = None) -> ncps.torch.CfCCell:
    """The cell of ncps, a step at a time, with the same weights."""
    backbone = 0 if cell.head is None else cell.head.in_features
    other = ncps.torch.CfCCell(
        cell.inputs,
        cell.state_size,
        mode=cell.mode,
        backbone_units=backbone,
        backbone_layers=int(backbone > 0),
        sparsity_mask=None if mask is None else mask.T.numpy(),
    ).double()
    joined = torch.cat([cell.input.weight, cell.recurrent.weight], dim=1)
    weights, biases = joined, cell.input.bias
    if cell.head is not None:
        other.backbone[0].weight.data, other.backbone[0].bias.data = joined.data, cell.input.bias.data
        weights, biases = cell.head.weight, cell.head.bias
    if mask is not None:  # ncps wires f and g only
        weights = weights * mask.repeat(cell.heads, 1)
    names = ["ff1"] if cell.mode == "pure" else ["ff1", "ff2", "time_a", "time_b"]
    for name, weight, bias in zip(names, weights.chunk(len(names)), biases.chunk(len(names)), strict=True):
        getattr(other, name).weight.data, getattr(other, name).bias.data = weight.data, bias.data
    if cell.mode == "pure":
        other.w_tau.data, other.A.data = cell.w_tau.data[None], cell.level.data[None]
    return other


def step_by_step(cell: nn.Module, x: Tensor, state: Tensor, dt: Tensor | None) -> tuple[Tensor, Tensor]:
    outputs = []
    for t in range(x.shape[1]):
        output, state = cell(x[:, t], state, 1.0 if dt is None else dt[:, t])
        outputs.append(output)
    return torch.stack(outputs, dim=1), state


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["plain", "backbone", "wired"])
@pytest.mark.parametrize("timed", [False, True])
def test_a_sequence_of_cfc_equals_that_of_ncps(mode: str, kind: str, timed: bool) -> None:
    mask = (random(4, 3 + 4) > 0).double() if kind == "wired" else None
    cell = cfc(mode, mask=mask, backbone=6 if kind == "backbone" else 0)
    batch = 1 if timed else 3
    x, state = random(batch, 7, 3), random(batch, 4)
    dt = times(batch, 7) if timed else None
    tolerance = 1e-12 if mask is None else 1e-7
    torch.testing.assert_close(
        cell(x, state, dt), step_by_step(cfc_of_ncps(cell, mask), x, state, dt), rtol=0, atol=tolerance
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("batch", "backbone", "timed"), [(1, 0, True), (3, 0, False), (3, 0, True), (1, 3, False), (3, 3, True)]
)
def test_gradients_of_cfc_are_right(mode: str, batch: int, backbone: int, timed: bool) -> None:
    cell = cfc(mode, inputs=2, units=3, backbone=backbone)
    tensors = [random(batch, 4, 2), random(batch, 3)] + ([times(batch, 4)] if timed else [])
    given = [each.requires_grad_() for each in tensors] + list(cell.parameters())
    assert torch.autograd.gradcheck(lambda *given: cell(*given[: len(tensors)]), given)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_zero_where_there_is_no_synapse(mode: str) -> None:
    mask = (random(3, 2 + 3) > 0).double()
    cell = cfc(mode, inputs=2, units=3, mask=mask)
    x, state, dt = random(2, 4, 2), random(2, 3), times(2, 4)
    assert torch.autograd.gradcheck(
        lambda *given: cell(*given[:3]), [each.requires_grad_() for each in (x, state, dt)] + list(cell.parameters())
    )
    cell(x, state, dt)[0].sum().backward()
    left_out = (mask == 0).repeat(cell.heads, 1)
    assert (cell.input.weight.grad[left_out[:, :2]] == 0).all()
    assert (cell.recurrent.weight.grad[left_out[:, 2:]] == 0).all()
    assert (cell.input.weight.grad[~left_out[:, :2]] != 0).all()


def test_outputs_changed_in_place_raise_in_backward() -> None:
    outputs, _ = cfc("default")(random(2, 4, 3))
    outputs.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.sum().backward()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "gru"}, "mode must be one of default, no_gate, pure, but got 'gru'"),
        ({"backbone": -1}, "backbone at least 0"),
        ({"mask": torch.ones(3, 7)}, r"mask must have shape \(4, 7\) and no backbone, but got \(3, 7\)"),
        ({"mask": torch.ones(4, 7), "backbone": 5}, "and no backbone"),
    ],
)
def test_other_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CfC(3, 4, **options)


def ltc(inputs: int = 3, units: int = 4, unfolds: int = 6) -> LTC:
    torch.manual_seed(0)
    return LTC(inputs, units, unfolds).double()


def ltc_of_ncps(cell: LTC) -> nn.Module:
    """The cell of ncps, a step at a time, with the same synapses; it keeps them as (pre, post)."""
    other = ncps.torch.LTCCell(
        FullyConnected(cell.state_size),
        cell.inputs,
        input_mapping=None,
        output_mapping=None,
        ode_unfolds=cell.unfolds,
        epsilon=0.0,
        implicit_param_constraints=True,
    ).double()
    weights = {"gleak": cell.leak, "vleak": cell.rest, "cm": cell.capacity}
    for prefix, synapses in (("", cell.recurrent), ("sensory_", cell.sensory)):
        weights |= {
            f"{prefix}w": synapses.weight.T,
            f"{prefix}sigma": synapses.slope.T,
            f"{prefix}mu": synapses.middle.T,
            f"{prefix}erev": synapses.reversal.T,
            f"{prefix}sparsity_mask": torch.ones_like(synapses.weight.T),
        }
    for name, value in weights.items():
        getattr(other, name).data = value.detach().clone()
    return other


@pytest.mark.parametrize("timed", [False, True])
def test_a_sequence_of_ltc_equals_that_of_ncps(timed: bool) -> None:
    cell = ltc()
    batch = 1 if timed else 3
    x, state, dt = random(batch, 5, 3), random(batch, 4), random(batch, 5, 1).abs() + 0.1
    other, expected, v = ltc_of_ncps(cell), [], state
    for t in range(5):
        output, v = other(x[:, t], v, dt[:, t] if timed else 1.0)
        expected.append(output)
    torch.testing.assert_close(cell(x, state, dt if timed else None), (torch.stack(expected, dim=1), v))


def test_potentials_stay_bounded_over_long_steps() -> None:
    cell = ltc()
    outputs, _ = cell(100 * random(2, 20, 3), None, torch.full((2, 20, 1), 1e6, dtype=torch.double))
    assert (outputs.abs() <= 1).all()


def test_conductances_start_in_the_ranges_of_the_paper() -> None:
    cell = LTC(30, 40)
    for raw, low, high in ((cell.leak, 0.001, 1), (cell.capacity, 0.4, 0.6), (cell.recurrent.weight, 0.001, 1)):
        value = nn.functional.softplus(raw).detach().numpy()
        assert low - 1e-4 <= np.min(value) < np.max(value) <= high + 1e-4
    assert set(cell.sensory.reversal.detach().unique().tolist()) == {-1.0, 1.0}
