"""Backward passes of the micro-batches of one window through sharded modules."""

import contextlib
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from trainables.update.accumulation import Accumulation, check_mean_loss, check_weight, get_gradients
from trainables.update.parameters import get_local


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
        self.reference = torch.full((), 1.0 if scale is None else 0.0, dtype=torch.float64, device=device)

    def add(self, mean_loss: Tensor, weight: float | Tensor) -> None:
        on_device = isinstance(weight, Tensor) and weight.device.type == self.device.type
        if isinstance(weight, Tensor) and weight.numel() != 1:
            raise ValueError(f"weight of a micro-batch must be one number, but got {tuple(weight.shape)}.")
        known = 0.0 if on_device else check_weight(float(weight))
        self._on_device = self._on_device or on_device
        mean_loss = check_mean_loss(mean_loss)
        detached = mean_loss.detach()
        if mean_loss.is_cuda:
            detached = detached.clone()  # a CUDA graph would write the next micro-batch's loss in its place
        counted = self._to_valid_weight(weight if on_device else known)
        factor = self._compute_factor(counted)
        with _guarded_leaves(mean_loss, counted > 0) if on_device or not known else contextlib.nullcontext():
            # No `inputs`, since backward would not reach the gathered weights.
            torch.autograd.backward(mean_loss, factor.to(mean_loss.dtype))
        if on_device:
            self.losses.append(torch.where(counted == 0, 0.0, detached))
            self.weights.append(weight)
        elif known:
            self.losses.append(detached)
            self.weights.append(known)

    def _compute_factor(self, weight: Tensor) -> Tensor:
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
def _guarded_leaves(loss: Tensor, counts: Tensor) -> Iterator[None]:
    """Set the gradients of `loss` to zero where `counts` is false, since an empty micro-batch gives NaN.

    The guard ends with the block: a task may keep its loss, and PyTorch then uses the same nodes in later passes.
    """

    def guard(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        return tuple(gradient if gradient is None else torch.where(counts, gradient, 0.0) for gradient in gradients)

    nodes, seen, handles = [loss.grad_fn], set(), []
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            if hasattr(node, "variable"):  # where a gradient is accumulated
                handles.append(node.register_prehook(guard))
            nodes.extend(before for before, _ in node.next_functions)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
