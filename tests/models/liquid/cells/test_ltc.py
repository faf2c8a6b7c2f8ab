import ncps.torch
import numpy as np
import pytest
import torch
from ncps.wirings import FullyConnected
from torch import Tensor, nn

from models.liquid.cells import LTC


def ltc(inputs: int = 3, units: int = 4, unfolds: int = 6) -> LTC:
    torch.manual_seed(0)
    return LTC(inputs, units, unfolds).double()


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(sum(shape)))


def peer(cell: LTC) -> nn.Module:
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
def test_a_sequence_is_what_ncps_makes_of_it(timed: bool) -> None:
    cell = ltc()
    batch = 1 if timed else 3
    x, state, dt = random(batch, 5, 3), random(batch, 4), random(batch, 5, 1).abs() + 0.1
    other, expected, v = peer(cell), [], state
    for t in range(5):
        output, v = other(x[:, t], v, dt[:, t] if timed else 1.0)
        expected.append(output)
    torch.testing.assert_close(cell(x, state, dt if timed else None), (torch.stack(expected, dim=1), v))


def test_gradients_are_right() -> None:
    cell = ltc(2, 2, unfolds=2)
    tensors = [each.requires_grad_() for each in (random(2, 2, 2), random(2, 2), random(2, 2, 1).abs() + 0.1)]
    assert torch.autograd.gradcheck(lambda *given: cell(*given[:3]), tensors + list(cell.parameters()))


def test_a_step_of_no_time_changes_nothing() -> None:
    state = random(2, 4)
    torch.testing.assert_close(ltc()(random(2, 1, 3), state, state.new_zeros(2, 1, 1))[1], state)


def test_more_steps_of_the_solver_come_closer_to_the_solution() -> None:
    x, state = random(2, 3, 3), random(2, 4)
    exact = ltc(unfolds=2000)(x, state)[1]
    errors = [(ltc(unfolds=n)(x, state)[1] - exact).abs().max().item() for n in (1, 6, 36)]
    assert errors[0] > 3 * errors[1] > 9 * errors[2]


def test_potentials_stay_between_the_reversal_potentials_however_long_a_step_is() -> None:
    cell = ltc()
    outputs, _ = cell(100 * random(2, 20, 3), None, torch.full((2, 20, 1), 1e6, dtype=torch.double))
    assert (outputs.abs() <= 1).all()


def test_conductances_start_in_the_ranges_of_the_paper() -> None:
    cell = LTC(30, 40)
    for raw, low, high in ((cell.leak, 0.001, 1), (cell.capacity, 0.4, 0.6), (cell.recurrent.weight, 0.001, 1)):
        value = nn.functional.softplus(raw).detach().numpy()
        assert low - 1e-4 <= np.min(value) < np.max(value) <= high + 1e-4
    assert set(cell.sensory.reversal.detach().unique().tolist()) == {-1.0, 1.0}
