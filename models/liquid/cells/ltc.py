"""The liquid time-constant cell (Hasani et al. 2021, arXiv 2006.04439), with its solver in the loop."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from searchlight.models.liquid.cells.cell import Cell
from searchlight.models.liquid.sequence_inputs import at_least_fp32, initial_state


class LTC(Cell):
    """Leaky membranes with chemical synapses: C dv/dt = g (v_leak - v) + sum_j w_j sigmoid(s_j (v_j - mu_j)) (E_j - v).

    The sum runs over all inputs and all units, each with its own synapse. A step is `unfolds` fused steps of the
    solver: implicit in v itself, explicit in other potentials, so that every step length is stable. Outputs are the
    potentials.

    This is the reference for the closed-form cells: it stores all activations of synapses for backward, B T U
    (F + U unfolds) numbers, and is many times slower than a CfC.

    Args:
        inputs: Features F of the inputs.
        units: Width U of state and outputs.
        unfolds: Steps of the solver in one time step.

    Raises:
        ValueError: If a size is below 1.
    """

    def __init__(self, inputs: int, units: int, unfolds: int = 6) -> None:
        super().__init__()
        if inputs < 1 or units < 1 or unfolds < 1:
            raise ValueError(f"inputs, units and unfolds must be at least 1, but got {inputs}, {units}, {unfolds}.")
        self.inputs, self.outputs, self.state_size, self.unfolds = inputs, units, units, unfolds
        self.leak = _positive(0.001, 1, units)
        self.rest = _uniform(-0.2, 0.2, units)
        self.capacity = _positive(0.4, 0.6, units)
        self.sensory = Synapses(inputs, units)
        self.recurrent = Synapses(units, units)

    def _run(self, x: Tensor, state: Tensor | None, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        with torch.autocast(x.device.type, enabled=False):
            return self._solve(at_least_fp32(x), state, dt)

    def _solve(self, x: Tensor, state: Tensor | None, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        leak, capacity = F.softplus(self.leak), F.softplus(self.capacity)
        pulls, conductances = self.sensory(x, F.softplus(self.sensory.weight))
        pulls, conductances = pulls + leak * self.rest, conductances + leak
        weight = F.softplus(self.recurrent.weight)
        lengths = (x.new_ones(()) if dt is None else dt.to(x.dtype)) / self.unfolds
        v, outputs = initial_state(state, x, self.state_size), []
        for t in range(x.shape[1]):
            length = lengths if dt is None else lengths[:, t]
            for _ in range(self.unfolds):
                pull, conductance = self.recurrent(v, weight)
                # Multiply by the length instead of dividing, so that a step of length 0 changes nothing.
                v = (capacity * v + length * (pull + pulls[:, t])) / (
                    capacity + length * (conductance + conductances[:, t])
                )
            outputs.append(v)
        return torch.stack(outputs, dim=1), v


class Synapses(nn.Module):
    """Graded conductances towards a reversal potential, from each of `pre` potentials to each of `post` units.

    Args:
        pre: Number of presynaptic potentials.
        post: Number of postsynaptic units.
    """

    def __init__(self, pre: int, post: int) -> None:
        super().__init__()
        self.weight = _positive(0.001, 1, post, pre)
        self.slope = _uniform(3, 8, post, pre)
        self.middle = _uniform(0.3, 0.8, post, pre)
        # Excitatory or inhibitory, with equal probability.
        self.reversal = nn.Parameter(torch.randint(2, (post, pre)) * 2.0 - 1)

    def forward(self, v: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Sum over the synapses of each unit.

        Args:
            v: Potentials, shape (..., pre).
            weight: Softplus of `self.weight`, computed once for all steps.

        Returns:
            Conductances times reversal potentials, and conductances, each of shape (..., post).
        """
        opened = weight * torch.sigmoid(self.slope * (v.unsqueeze(-2) - self.middle))
        return (opened * self.reversal).sum(-1), opened.sum(-1)


def _uniform(low: float, high: float, *shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape).uniform_(low, high))


def _positive(low: float, high: float, *shape: int) -> nn.Parameter:
    """Return a parameter whose softplus is uniform between `low` and `high`."""
    value = torch.empty(shape).uniform_(low, high)
    return nn.Parameter(value + torch.log(-torch.expm1(-value)))
