"""The cells equal those of ncps, and their gradients are right."""

import ncps.torch
import pytest
import torch
from ncps.wirings import FullyConnected
from torch import Tensor, nn

from searchlight.models.liquid.cells import CfC, Liquid


def cfc(inputs: int = 3, units: int = 4, mask: Tensor | None = None) -> CfC:
    torch.manual_seed(0)
    return CfC(inputs, units, mask=mask).double()


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(sum(shape)))


def times(batch: int, steps: int) -> Tensor:
    return random(batch, steps, 1).abs() + 0.1


def cfc_of_ncps(cell: CfC, mask: Tensor | None = None) -> ncps.torch.CfCCell:
    """The cell of ncps, a step at a time, with the same weights."""
    other = ncps.torch.CfCCell(
        cell.inputs,
        cell.state_size,
        backbone_units=0,
        backbone_layers=0,
        sparsity_mask=None if mask is None else mask.T.numpy(),
    ).double()
    weights = torch.cat([cell.input.weight, cell.recurrent.weight], dim=1)
    if mask is not None:  # ncps wires f and g only
        weights = weights * mask.repeat(4, 1)
    names = ["ff1", "ff2", "time_a", "time_b"]
    for name, weight, bias in zip(names, weights.chunk(4), cell.input.bias.chunk(4), strict=True):
        getattr(other, name).weight.data, getattr(other, name).bias.data = weight.data, bias.data
    return other


def step_by_step(cell: nn.Module, x: Tensor, state: Tensor, dt: Tensor | None) -> tuple[Tensor, Tensor]:
    outputs = []
    for t in range(x.shape[1]):
        output, state = cell(x[:, t], state, 1.0 if dt is None else dt[:, t])
        outputs.append(output)
    return torch.stack(outputs, dim=1), state


@pytest.mark.parametrize("wired", [False, True])
@pytest.mark.parametrize("timed", [False, True])
def test_a_sequence_of_cfc_equals_that_of_ncps(wired: bool, timed: bool) -> None:
    mask = (random(4, 3 + 4) > 0).double() if wired else None
    cell = cfc(mask=mask)
    batch = 1 if timed else 3
    x, state = random(batch, 7, 3), random(batch, 4)
    dt = times(batch, 7) if timed else None
    torch.testing.assert_close(
        cell(x, state, dt), step_by_step(cfc_of_ncps(cell, mask), x, state, dt), rtol=0, atol=1e-7 if wired else 1e-12
    )


@pytest.mark.parametrize(("batch", "timed"), [(1, True), (3, False), (3, True)])
def test_gradients_of_cfc_are_right(batch: int, timed: bool) -> None:
    cell = cfc(inputs=2, units=3)
    tensors = [random(batch, 4, 2), random(batch, 3)] + ([times(batch, 4)] if timed else [])
    given = [each.requires_grad_() for each in tensors] + list(cell.parameters())
    assert torch.autograd.gradcheck(lambda *given: cell(*given[: len(tensors)]), given)


def test_gradients_are_zero_where_there_is_no_synapse() -> None:
    mask = (random(3, 2 + 3) > 0).double()
    cell = cfc(inputs=2, units=3, mask=mask)
    x, state, dt = random(2, 4, 2), random(2, 3), times(2, 4)
    assert torch.autograd.gradcheck(
        lambda *given: cell(*given[:3]), [each.requires_grad_() for each in (x, state, dt)] + list(cell.parameters())
    )
    cell(x, state, dt)[0].sum().backward()
    left_out = (mask == 0).repeat(4, 1)
    assert (cell.input.weight.grad[left_out[:, :2]] == 0).all()
    assert (cell.recurrent.weight.grad[left_out[:, 2:]] == 0).all()
    assert (cell.input.weight.grad[~left_out[:, :2]] != 0).all()


def test_outputs_changed_in_place_raise_in_backward() -> None:
    outputs, _ = cfc()(random(2, 4, 3))
    outputs.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.sum().backward()


def test_a_liquid_cell_solves_the_membrane_equation_of_ncps() -> None:
    """Without synapses, dv/dt = leak (rest - v) / capacity, which a cell of ncps integrates in many small steps."""
    torch.manual_seed(0)
    cell = Liquid(3, 4).double()
    x, state, dt = random(1, 1, 3), random(1, 4), times(1, 1)
    gate, candidate = cell.input(x)[0, 0].chunk(2)
    rate = nn.functional.softplus(cell.tau) * gate.sigmoid()
    membrane = ncps.torch.LTCCell(
        FullyConnected(4), 3, input_mapping=None, output_mapping=None, ode_unfolds=4000, epsilon=0.0
    ).double()
    constants = {"gleak": rate, "vleak": candidate.tanh(), "cm": torch.ones(4, dtype=torch.double)}
    constants |= {"sparsity_mask": torch.zeros(4, 4), "sensory_sparsity_mask": torch.zeros(3, 4)}
    for name, value in constants.items():
        getattr(membrane, name).data = value.detach().clone()
    expected, _ = membrane(x[:, 0], state, dt[:, 0])
    torch.testing.assert_close(cell(x, state, dt)[1], expected, rtol=0, atol=1e-3)
