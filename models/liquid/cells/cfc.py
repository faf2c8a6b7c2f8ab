"""The closed-form continuous-time cell (Hasani et al. 2022, Nature Machine Intelligence 4:992, arXiv 2106.13898)."""

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from searchlight.models.liquid.cells.cell import Cell
from searchlight.models.liquid.cells.cfc_function import cfc_sequence
from searchlight.models.liquid.sequence_inputs import at_least_fp32, initial_state

Mode = Literal["default", "no_gate", "pure"]


class CfC(Cell):
    """A recurrent layer whose gates depend on its state and on the time that a step takes.

    With z = [x, h], or the backbone's units 1.7159 tanh(.666 W z + b): f and g are tanh of linear maps of z, and
    s = sigmoid(t_a dt + t_b) of two more. The next state is f (1 - s) + s g, in mode "no_gate" f + s g, and in mode
    "pure" A - A exp(-dt (|w_tau| + |f|)) f with a linear f. Outputs are the states.

    Args:
        inputs: Features F of the inputs.
        units: Width U of state and outputs.
        mode: See above.
        backbone: Units of the hidden layer before the heads; 0 for none.
        mask: The wiring, 0 or 1 of shape (units, inputs + units): the inputs and units that each unit receives, in all
            heads. Not with a backbone.

    Raises:
        ValueError: If a size, the mode or the mask is invalid.
    """

    def __init__(
        self, inputs: int, units: int, *, mode: Mode = "default", backbone: int = 0, mask: Tensor | None = None
    ) -> None:
        super().__init__()
        if inputs < 1 or units < 1 or backbone < 0:
            raise ValueError(
                f"inputs and units must be at least 1 and backbone at least 0, but got {inputs}, {units}, {backbone}."
            )
        if mode not in get_args(Mode):
            raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}, but got {mode!r}.")
        if mask is not None and (backbone or mask.shape != (units, inputs + units)):
            raise ValueError(
                f"mask must have shape ({units}, {inputs + units}) and no backbone, but got {tuple(mask.shape)} "
                f"and backbone {backbone}. A backbone mixes all inputs."
            )
        self.inputs, self.outputs, self.state_size = inputs, units, units
        self.mode = mode
        self.heads = 1 if mode == "pure" else 4
        width = backbone or self.heads * units
        self.input = nn.Linear(inputs, width)
        self.recurrent = nn.Linear(units, width, bias=False)
        self.head = nn.Linear(backbone, self.heads * units) if backbone else None
        if mode == "pure":
            self.w_tau = nn.Parameter(torch.zeros(units))
            self.level = nn.Parameter(torch.ones(units))
        self.mask: Tensor | None
        self.register_buffer("mask", None if mask is None else mask.to(torch.get_default_dtype(), copy=True))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize each head with Xavier's bounds, as if it were a separate layer."""
        fan_in, fan_out = self.inputs + self.state_size, self.state_size
        if self.head is not None:
            _xavier(self.head.weight, self.head.in_features, self.state_size)
            fan_out = self.head.in_features
        _xavier(self.input.weight, fan_in, fan_out)
        _xavier(self.recurrent.weight, fan_in, fan_out)

    def _run(self, x: Tensor, state: Tensor | None, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        weight: Tensor = self.input.weight
        bias: Tensor = self.input.bias
        recurrent: Tensor = self.recurrent.weight
        if self.mask is not None:
            mask = self.mask.repeat(self.heads, 1)
            weight, recurrent = weight * mask[:, : self.inputs], recurrent * mask[:, self.inputs :]
        backbone = None
        if self.head is not None:
            # Merge both constants of the activation into the weights, which saves operations per step.
            weight, bias, recurrent = 0.666 * weight, 0.666 * bias, 0.666 * recurrent
            backbone = 1.7159 * self._merge(self.head.weight, dt), self._merge(self.head.bias, dt)
        else:
            weight, bias, recurrent = (self._merge(each, dt) for each in (weight, bias, recurrent))
        # Time first, so that each step is contiguous in memory.
        drive = at_least_fp32(F.linear(x.transpose(0, 1), weight, bias))
        states = cfc_sequence(
            drive,
            None if dt is None else dt.to(drive.dtype).transpose(0, 1),
            initial_state(state, drive.transpose(0, 1), self.state_size),
            recurrent,
            blend=self.mode == "default",
            backbone=backbone,
            pure=(self.w_tau.abs(), self.level) if self.mode == "pure" else None,
        )
        return states.transpose(0, 1), states[-1]

    def _merge(self, weight: Tensor, dt: Tensor | None) -> Tensor:
        """Merge the heads t_a and t_b for steps of 1, which only need their sum."""
        if self.mode == "pure" or dt is not None:
            return weight
        both, a, b = torch.split(weight, [2 * self.state_size, self.state_size, self.state_size])
        return torch.cat([both, a + b])


def _xavier(weight: Tensor, fan_in: int, fan_out: int) -> None:
    nn.init.uniform_(weight, -math.sqrt(6 / (fan_in + fan_out)), math.sqrt(6 / (fan_in + fan_out)))
