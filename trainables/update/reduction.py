"""Reduction of gradients over ranks: one all-reduce of a flat tensor per window.

DDP's hooks are not used, since they count micro-batches and ranks may have different numbers of these. FSDP2 reduces
the gradients of sharded parameters; see sharding.py.
"""

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from searchlight.trainables.update.accumulation import Accumulation, WindowTotals


class PeerFailed(RuntimeError):
    """Raised if another rank failed in its part of a window, so that no rank can finish it."""


def get_world_size() -> int:
    """Return the number of ranks, which is 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class Reducer:
    """Sums the gradients of one update over ranks."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # Reused, since allocating it takes longer than the all-reduce.
        self._flat = torch.empty(0)
        self._parts: tuple[Tensor, ...] = ()

    def reduce(self, parameters: Sequence[Tensor], window: Accumulation | None) -> list[Tensor]:
        """Leave the sum of all ranks' weighted gradients in `parameters`.

        A gradient that a rank does not have counts as zero.

        Args:
            parameters: The same on all ranks, in the same order.
            window: This rank's accumulation, or None if the rank raised.

        Returns:
            What `compute_totals` reads, on the device. It has for each parameter a number above 0 if a rank has a
            gradient of it. Then follow the number of ranks that raised, the total weight and the weighted loss sum.
        """
        self.prepare(parameters)
        if window is None:
            self._flat.zero_()
            self._flat[-3] = 1.0
        else:
            held = [p.new_zeros(p.numel()) if p.grad is None else _flatten_gradient(p) for p in parameters]
            raised = torch.zeros(1, device=self.device)
            torch.cat([*held, window.has_gradient(), raised, window.compute_sums()], out=self._flat)
            if not window.summed:
                # Each rank has sum(weight * gradient) * scale / reference, with a reference of its own. Without both
                # factors, the sums of all ranks can be added; `compute_totals` divides by the total weight.
                self._flat[: -len(parameters) - 3].mul_(window.reference / window.scale)
        dist.all_reduce(self._flat)

        *gradients, measured = self._parts
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient if gradient.dtype == parameter.dtype else gradient.to(parameter.dtype)
        return list(measured)

    def compute_totals(self, parameters: Sequence[Tensor], read: Sequence[float]) -> WindowTotals:
        """Return the totals of the window over all ranks. Reset gradients that no rank has to None.

        Args:
            parameters: As `reduce` left them.
            read: The numbers that `reduce` returned, and this rank's losses.

        Raises:
            PeerFailed: A rank raised in its part of the window.
            ValueError: A rank had a weight that is not a finite number of at least 0.
        """
        present, (failed, weight, loss, *losses) = read[: len(parameters)], read[len(parameters) :]
        if failed:
            raise PeerFailed(f"{failed:.0f} of {get_world_size()} ranks failed in this window; no rank can finish it")
        if not math.isfinite(weight):
            raise ValueError("weight of a micro-batch must be a finite number of at least 0, but a rank had another.")
        for parameter, ranks in zip(parameters, present, strict=True):
            if not ranks:  # not zero, since weight decay would then move the parameter
                parameter.grad = None
        bad_losses = sum(not math.isfinite(loss) for loss in losses)
        if not weight:
            return WindowTotals(weight, math.nan, 1.0, bad_losses)
        return WindowTotals(weight, loss / weight, 1 / weight, bad_losses)

    def prepare(self, parameters: Sequence[Tensor]) -> None:
        """Allocate the tensor for gradients and totals before a window.

        A rank that runs out of memory in the window must still take part in the all-reduce.
        """
        if [part.shape for part in self._parts[:-1]] == [parameter.shape for parameter in parameters]:
            return
        sizes = [parameter.numel() for parameter in parameters]
        tail = len(parameters) + 3
        dtype = torch.float64 if any(p.dtype == torch.float64 for p in parameters) else torch.float32
        self._flat = torch.empty(sum(sizes) + tail, dtype=dtype, device=self.device)
        *gradients, measured = torch.split_with_sizes(self._flat, [*sizes, tail])
        views = (gradient.view(parameter.shape) for gradient, parameter in zip(gradients, parameters, strict=True))
        self._parts = (*views, measured)


def _flatten_gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
    return gradient.reshape(-1)
