"""Leaky integrate-and-fire neurons, trained with surrogate gradients."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from searchlight.models.liquid.sequence_inputs import check_sequence, prepare_state, promote_to_fp32
from searchlight.models.liquid.spiking.lif_function import run_lif
from searchlight.models.liquid.spiking.surrogate import SURROGATES


class LIF(nn.Module):
    """v' = decay^dt v + I; a spike s if v' is above threshold; then v = v' - threshold s, in the same step.

    The reset is soft: the excess of a membrane over its threshold stays. Backward uses a surrogate for the spike's
    derivative and no gradient through the reset (Zenke & Ganguli 2018, arXiv 1705.11146; Neftci et al. 2019,
    arXiv 1901.09948). The state is v, the membrane after its reset.

    Args:
        units: Neurons U.
        decay: Of a membrane over one step, between 0 and 1. A learned decay is kept there by a sigmoid.
        threshold: Above 0. A learned threshold is kept there by a softplus.
        surrogate: Name of the surrogate derivative: atan or fast_sigmoid.
        slope: Its slope, above 0; None for the usual slopes, 2 and 25.
        learn_decay: Whether each neuron learns its decay.
        learn_threshold: Whether each neuron learns its threshold.
    """

    fixed_decay: Tensor
    fixed_threshold: Tensor

    def __init__(
        self,
        units: int,
        *,
        decay: float = 0.9,
        threshold: float = 1.0,
        surrogate: str = "atan",
        slope: float | None = None,
        learn_decay: bool = True,
        learn_threshold: bool = False,
    ) -> None:
        super().__init__()
        slope = SURROGATES[surrogate].slope if slope is None else slope
        self.units = self.outputs = self.state_size = units
        self.surrogate, self.slope = surrogate, slope

        # Fixed values are stored without transformation, since spikes compare with exact thresholds.
        self.raw_decay: nn.Parameter | None = None
        self.raw_threshold: nn.Parameter | None = None
        if learn_decay:
            self.raw_decay = nn.Parameter(torch.full((units,), math.log(decay / (1 - decay))))
        else:
            self.register_buffer("fixed_decay", torch.full((units,), decay))
        if learn_threshold:
            raw_threshold = threshold + math.log(-math.expm1(-threshold))
            self.raw_threshold = nn.Parameter(torch.full((units,), raw_threshold))
        else:
            self.register_buffer("fixed_threshold", torch.full((units,), threshold))

    @property
    def decay(self) -> Tensor:
        """The factor of the membrane over a step of 1, shape (U,)."""
        return self.fixed_decay if self.raw_decay is None else self.raw_decay.sigmoid()

    @property
    def threshold(self) -> Tensor:
        """Shape (U,)."""
        return self.fixed_threshold if self.raw_threshold is None else F.softplus(self.raw_threshold)

    def forward(self, current: Tensor, state: Tensor | None = None, dt: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run sequences.

        Args:
            current: Input current of the membranes, shape (B, T, U).
            state: Initial membranes, shape (B, U); zeros if None.
            dt: Time that each step takes, 0 or more, shape (B, T, 1); 1 if None.

        Returns:
            Spikes, 0 or 1 of shape (B, T, U), and the last membranes, shape (B, U), both fp32 also under autocast.

        Raises:
            ValueError: If a shape is wrong.
        """
        spikes, membranes = self.run(current, state, dt)
        return spikes, membranes[:, -1]

    def run(self, current: Tensor, state: Tensor | None = None, dt: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run sequences like `forward`, but return the membranes after each step, shape (B, T, U)."""
        check_sequence(current, self.units, state, self.units, dt)
        current = promote_to_fp32(current)
        keep = self.decay
        if dt is not None:
            keep = torch.pow(keep, dt.to(current.dtype)).transpose(0, 1)
        spikes, membranes = run_lif(
            # Time first, so that each step is contiguous in memory.
            current.transpose(0, 1).contiguous(),
            keep,
            self.threshold,
            prepare_state(state, current, self.units),
            self.surrogate,
            self.slope,
        )
        return spikes.transpose(0, 1), membranes.transpose(0, 1)
