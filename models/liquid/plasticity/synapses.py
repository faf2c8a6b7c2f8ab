"""Synapses whose weights follow STDP instead of a gradient."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from searchlight.models.liquid.plasticity.stdp import sum_pairs


class PlasticSynapses(nn.Module):
    """Weights between two populations of neurons, changed by the spikes of both.

    The weights are a buffer in 0..1, without optimizer or weight decay. `scale` is an ordinary parameter, the sign and
    size of their contribution to each postsynaptic neuron. Call `observe` for each micro-batch of a window. Then call
    `update` once to change the weights, or `discard` if the window was skipped. Sum `get_pending()` over ranks before
    `update`. The result does not depend on how a window is split.

    Bounds are soft (Guetig et al. 2003): potentiation is multiplied by 1 - w, and depression by w.

    Args:
        pre: Presynaptic neurons.
        post: Postsynaptic neurons.
        rate: Learning rate, a factor of the rule's mean per sample and step.
        tau: Time constant of the rule, in steps.
        cap: Largest norm of an update, as a share of the norm of the weights, above 0 and below 1: at
            1, all weights could become 0 and stay there.
    """

    weight: Tensor
    scale: nn.Parameter
    pending_steps: Tensor

    def __init__(self, pre: int, post: int, *, rate: float = 1.0, tau: float = 20.0, cap: float = 0.1) -> None:
        super().__init__()
        self.rate, self.tau, self.cap = rate, tau, cap
        self.scale = nn.Parameter(torch.full((post,), pre**-0.5))
        self.register_buffer("weight", torch.rand(post, pre))
        for name, shape in (("potentiation", (post, pre)), ("depression", (post, pre)), ("steps", ())):
            self.register_buffer(f"pending_{name}", torch.zeros(shape), persistent=False)
        self.register_load_state_dict_pre_hook(_leave_out_gone)  # type: ignore[no-untyped-call]

    def forward(self, spikes: Tensor) -> Tensor:
        """Return the current scale * (spikes @ weight^T), shape (B, T, post), for spikes (B, T, pre)."""
        return F.linear(spikes, self.weight) * self.scale

    @torch.no_grad()
    def observe(self, pre: Tensor, post: Tensor) -> None:
        """Add the spikes of a micro-batch to the pending sums.

        Args:
            pre: Presynaptic spikes, shape (B, T, pre), of any type.
            post: Postsynaptic spikes, shape (B, T, post).

        Raises:
            ValueError: The shapes do not fit.
        """
        rows, columns = self.weight.shape
        if pre.dim() != 3 or pre.shape[-1] != columns or post.shape != (*pre.shape[:2], rows):
            raise ValueError(
                f"spikes must have the shapes (B, T, {columns}) and (B, T, {rows}), but got {tuple(pre.shape)} and "
                f"{tuple(post.shape)}. Give those in front of the synapses first, then those behind."
            )
        with torch.autocast(pre.device.type, enabled=False):
            sums = sum_pairs(pre.to(self.weight.dtype), post.to(self.weight.dtype), self.tau)
        steps = self.pending_steps.new_tensor(len(pre) * pre.shape[1])
        for pending, value in zip(self.get_pending(), (*sums, steps), strict=True):
            pending += value

    def get_pending(self) -> list[Tensor]:
        """Return the sums since the last update, and the number of steps, to be summed over ranks in place."""
        return [self.get_buffer(f"pending_{name}") for name in ("potentiation", "depression", "steps")]

    def discard(self) -> None:
        """Discard the sums since the last update."""
        for pending in self.get_pending():
            pending.zero_()

    @torch.no_grad()
    def update(self) -> dict[str, float] | None:
        """Change the weights by the pending sums, and discard these.

        Returns:
            A dict, or None if no sums are pending. "change" is the norm of the change relative to that of the weights.
            "capped" is 1 if `cap` limited it. "weight" is the mean weight. "bound" is the share of weights within 1 %
            of a bound.

        Raises:
            ValueError: The sums are not finite. The weights stay unchanged.
        """
        potentiation, depression, _ = self.get_pending()
        steps = self.pending_steps.item()
        if not steps:
            return None
        weight = self.weight
        change = potentiation / steps * self.rate * (1 - weight) - depression / steps * self.rate * weight
        change = (weight + change).clamp(0, 1) - weight
        least = torch.finfo(change.dtype).tiny
        shrink = (self.cap * weight.norm() / change.norm().clamp(min=least)).clamp(max=1)
        change = shrink * change
        moved = (weight + change).clamp(0, 1)

        figures = {
            "change": change.norm() / weight.norm().clamp(min=least),
            "capped": (shrink < 1).to(change.dtype),
            "weight": moved.mean(),
            "bound": ((moved - 0.5).abs() >= 0.49).to(moved.dtype).mean(),
        }
        read = dict(zip(figures, torch.stack(list(figures.values())).tolist(), strict=True))  # one read of the device
        if not math.isfinite(read["change"]):
            raise ValueError("spikes must be finite, but got some that are not. Discard windows that were skipped.")

        self.weight.copy_(moved)
        self.discard()
        return read


def _leave_out_gone(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Leave out of a checkpoint the buffers of earlier versions that were empty for this rule."""
    for name in (f"{prefix}state", f"{prefix}changes"):
        if name in state and not state[name].numel():
            del state[name]
