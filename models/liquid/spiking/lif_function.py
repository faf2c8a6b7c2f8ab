"""A whole sequence of leaky integrate-and-fire neurons as one autograd function.

The reset is detached from the spike, so backward through time is a linear recurrence: a reverse scan.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from searchlight.models.liquid.cells.scan import reverse_scan
from searchlight.models.liquid.spiking.surrogate import SURROGATES


def run_lif(
    current: Tensor, keep: Tensor, threshold: Tensor, state: Tensor, surrogate: str, slope: float
) -> tuple[Tensor, Tensor]:
    """Run neurons. All tensors have one dtype, fp32 or fp64.

    Args:
        current: Shape (T, B, U).
        keep: The factor of a membrane over a step, shape (U,) or (T, B, U).
        threshold: Shape (U,).
        state: Initial membranes, shape (B, U).
        surrogate: Name of the surrogate derivative.
        slope: Its slope.

    Returns:
        Spikes, 0 or 1, and membranes after the reset, each of shape (T, B, U).
    """
    with torch.autocast(current.device.type, enabled=False):
        spikes, membranes = _LIFSequence.apply(current, keep, threshold, state, surrogate, slope)  # type: ignore[no-untyped-call]
    return spikes, membranes


class _LIFSequence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, current: Tensor, keep: Tensor, threshold: Tensor, state: Tensor, surrogate: str, slope: float
    ) -> tuple[Tensor, Tensor]:
        charged, spikes, membranes = (
            torch.empty_like(current, memory_format=torch.contiguous_format) for _ in range(3)
        )
        # v_t = k_t u_{t-1} + I_t (leak and integrate), s_t = [v_t > theta] (fire), u_t = v_t - theta s_t (soft reset).
        before = state
        kept = keep.unbind() if keep.dim() == 3 else [keep] * len(current)
        for added, share, v, fired, after in zip(
            current.unbind(), kept, charged.unbind(), spikes.unbind(), membranes.unbind(), strict=True
        ):
            torch.addcmul(added, share, before, out=v)
            torch.gt(v, threshold, out=fired)
            torch.addcmul(v, fired, threshold, value=-1, out=after)
            before = after
        ctx.surrogate, ctx.slope = surrogate, slope
        ctx.save_for_backward(keep, threshold, state, charged, spikes, membranes)
        return spikes, membranes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_spikes: Tensor, grad_membranes: Tensor) -> tuple[Tensor | None, ...]:
        keep, threshold, state, charged, spikes, membranes = ctx.saved_tensors
        # With the surrogate sigma' for ds/dv, and du/dv = 1 because the reset is detached:
        #     dL/dv_t = sigma'(v_t - theta) dL/ds_t + dL/du_t + k_{t+1} dL/dv_{t+1},
        # where dL/du_t is only the part from outside the recurrence. dL/dI_t = dL/dv_t and dL/dk_t = u_{t-1} dL/dv_t.
        by_spike = SURROGATES[ctx.surrogate].derivative(charged - threshold, ctx.slope).mul_(grad_spikes)
        # The gradient of the membrane before its reset is also that of the current.
        grad_current = reverse_scan(keep.expand_as(charged), by_spike + grad_membranes)
        grad_keep = grad_threshold = None
        if ctx.needs_input_grad[1]:
            grad_keep = torch.empty_like(grad_current)
            torch.mul(grad_current[0], state, out=grad_keep[0])
            torch.mul(grad_current[1:], membranes[:-1], out=grad_keep[1:])
            grad_keep = grad_keep.sum_to_size(keep.shape)
        if ctx.needs_input_grad[2]:
            # Through the spikes, and through the reset.
            after_reset = (grad_current - by_spike).mul_(spikes)
            grad_threshold = -(by_spike + after_reset).sum((0, 1))
        first = keep if keep.dim() == 1 else keep[0]
        return grad_current, grad_keep, grad_threshold, first * grad_current[0], None, None
