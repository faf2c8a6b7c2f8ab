"""The closed-form continuous-time cell (Hasani et al. 2022, Nature Machine Intelligence 4:992, arXiv 2106.13898)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from searchlight.models.liquid.cells.cell import Cell
from searchlight.models.liquid.cells.cfc_function import run_cfc
from searchlight.models.liquid.sequence_inputs import prepare_state, promote_to_fp32

HEADS = 4  # f, g, t_a and t_b


class CfC(Cell):
    """A recurrent layer whose gates depend on its state and on the time that a step takes.

    With z = [x, h]: f and g are tanh of linear maps of z, and s = sigmoid(t_a dt + t_b) of two more. The next state is
    f (1 - s) + s g. Outputs are the states.

    Args:
        inputs: Features F of the inputs.
        units: Width U of state and outputs.
        mask: The wiring, 0 or 1 of shape (units, inputs + units): the inputs and units that each unit receives, in all
            heads.
    """

    def __init__(self, inputs: int, units: int, *, mask: Tensor | None = None) -> None:
        super().__init__()
        self.inputs, self.outputs, self.state_size = inputs, units, units
        self.input = nn.Linear(inputs, HEADS * units)
        self.recurrent = nn.Linear(units, HEADS * units, bias=False)
        self.mask: Tensor | None
        self.register_buffer("mask", None if mask is None else mask.to(torch.get_default_dtype(), copy=True))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize each head with Xavier's bounds, as if it were a separate layer."""
        bound = math.sqrt(6 / (self.inputs + 2 * self.state_size))
        for layer in (self.input, self.recurrent):
            nn.init.uniform_(layer.weight, -bound, bound)

    def _run(self, x: Tensor, state: Tensor | None, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        weight: Tensor = self.input.weight
        bias: Tensor = self.input.bias
        recurrent: Tensor = self.recurrent.weight
        if self.mask is not None:
            mask = self.mask.repeat(HEADS, 1)
            weight, recurrent = weight * mask[:, : self.inputs], recurrent * mask[:, self.inputs :]
        if dt is None:
            weight, bias, recurrent = (self._merge(each) for each in (weight, bias, recurrent))
        # Time first, so that each step is contiguous in memory.
        drive = promote_to_fp32(F.linear(x.transpose(0, 1), weight, bias))
        states = run_cfc(
            drive,
            None if dt is None else dt.to(drive.dtype).transpose(0, 1),
            prepare_state(state, drive.transpose(0, 1), self.state_size),
            recurrent,
        )
        return states.transpose(0, 1), states[-1]

    def _merge(self, weight: Tensor) -> Tensor:
        """Merge the heads t_a and t_b, of which steps of 1 only need the sum."""
        both, a, b = torch.split(weight, [2 * self.state_size, self.state_size, self.state_size])
        return torch.cat([both, a + b])
