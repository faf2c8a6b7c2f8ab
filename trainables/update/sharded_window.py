"""Backward passes of the micro-batches of one window through sharded modules."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from searchlight.trainables.update.accumulation import (
    Accumulation,
    check_mean_loss,
    check_weight,
    find_leaves,
    get_gradients,
)
from searchlight.trainables.update.parameters import get_local


class ShardedAccumulation(Accumulation):
    """An accumulation whose gradients hold sum(weight * gradient) * scale / reference.

    The reference is 1 without a loss scale, and otherwise the largest weight so far on any rank. FSDP sums gradients
    over ranks, so all ranks must use one factor. A micro-batch without weight runs its backward as well, since all
    ranks must join the collectives in it.
    """

    reference: Tensor

    def __init__(
        self, replicated: Sequence[Tensor], trainable: Sequence[Tensor], device: torch.device, scale: float | None
    ) -> None:
        super().__init__(replicated, device, scale, count=2, ranks=2)
        self.summed = True  # the Reducer leaves the gradients as they are
        self.trainable = trainable
        self._scaled = scale is not None
        self._used: list[tuple[set[int], Tensor]] = []  # ids of the leaves that each pass reached, and its weight
        self.reference = torch.full((), 1.0 if scale is None else 0.0, dtype=torch.float64, device=device)

    def add(self, mean_loss: Tensor, weight: float | Tensor) -> None:
        on_device = isinstance(weight, Tensor) and weight.device.type == self.device.type
        if isinstance(weight, Tensor) and weight.numel() != 1:
            raise ValueError(f"weight of a micro-batch must be one number, but got {tuple(weight.shape)}.")
        known = 0.0 if on_device else check_weight(weight)
        self._on_device = self._on_device or on_device
        mean_loss = check_mean_loss(mean_loss)
        if mean_loss.dtype.itemsize < 4:  # the weight multiplies it
            name = str(mean_loss.dtype).removeprefix("torch.")
            raise ValueError(
                f"loss of sharded modules must be fp32, since its dtype would round the weight, but got {name}. "
                "Compute it from fp32 outputs: MixedPrecisionPolicy(..., output_dtype=torch.float32)."
            )

        detached = mean_loss.detach()
        if mean_loss.is_cuda:
            detached = detached.clone()  # a CUDA graph would write the next micro-batch's loss in its place

        counted = self._to_valid_weight(weight if on_device else known)
        factor = self._compute_factor(counted)
        leaves = find_leaves(mean_loss)
        self._used.append(({id(leaf.variable) for leaf in leaves}, counted))
        with _guarded_leaves(leaves, counted > 0) if on_device or not known else contextlib.nullcontext():
            # No `inputs`, since backward would not reach the gathered weights.
            torch.autograd.backward(mean_loss, factor.to(mean_loss.dtype))

        if on_device:
            self.losses.append(torch.where(counted == 0, 0.0, detached))
            self.weights.append(weight)
        elif known:
            self.losses.append(detached)
            self.weights.append(known)

    def has_gradient(self) -> Tensor:
        return super().has_gradient() * self.count_uses(self.parameters)

    def count_uses(self, leaves: Sequence[Tensor | None]) -> Tensor:
        """Return for each leaf how many micro-batches with weight used it on this rank, (len(leaves),), fp32."""
        if not self._used:
            return torch.zeros(len(leaves), device=self.device)
        used = torch.tensor([[id(leaf) in found for leaf in leaves] for found, _ in self._used], dtype=torch.float32)
        counted = torch.stack([weight for _, weight in self._used]) > 0
        return counted.float() @ used.to(self.device, non_blocking=True)

    def _compute_factor(self, weight: Tensor) -> Tensor:
        """Return the factor of the loss of a micro-batch, (), fp64, and adapt the gradients so far to it.

        With a loss scale, the largest weight so far of all ranks becomes the reference:
            sum <- sum * reference / largest
            factor = scale * weight / largest
        """
        if not self._scaled:
            return weight
        largest = torch.maximum(self.reference, weight)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        kept = torch.where(largest > 0, self.reference / largest, 1.0)
        with torch.no_grad():
            gradients = [get_local(gradient) for gradient in get_gradients(self.trainable)]
            if gradients:
                torch._foreach_mul_(gradients, kept.float())
        self.reference = largest
        return torch.where(largest > 0, weight / largest, 0.0) * self.scale


@contextlib.contextmanager
def _guarded_leaves(leaves: Sequence[Any], counts: Tensor) -> Iterator[None]:
    """Set the gradients of `leaves` to zero where `counts` is false, since an empty micro-batch gives NaN.

    The guard ends with the block: a task may keep its loss, and PyTorch then uses the same nodes in later passes.
    """

    def guard(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        return tuple(gradient if gradient is None else torch.where(counts, gradient, 0.0) for gradient in gradients)

    handles = [leaf.register_prehook(guard) for leaf in leaves]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
