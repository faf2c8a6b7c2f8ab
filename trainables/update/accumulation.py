"""Backward of the micro-batches of one window, each counted by its weight."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class WindowTotals(NamedTuple):
    """What a window comes to: its weight, its weighted mean loss, the factor that makes its accumulated gradients the
    gradient of that mean, and how many of this rank's losses are not finite."""

    weight: float
    loss: float
    factor: float
    bad_losses: int


class Accumulation:
    """What the micro-batches of a window come to on this rank.

    The gradients of `parameters` hold sum(weight * gradient) * scale / reference, where the reference is the largest
    weight so far. So the total is not needed until the window ends, and no factor is larger than the loss scale: a
    large micro-batch after a small one does not overflow in fp16. A single micro-batch has a factor of 1: its
    gradient is that of a plain loop, bit for bit.

    A weight that is a tensor on the device is never read on the host here: a GPU would wait for it.
    """

    def __init__(
        self, parameters: Sequence[Tensor], device: torch.device, scale: float | None, count: int, ranks: int
    ) -> None:
        """
        Args:
            parameters: Of the update, with gradients of None.
            device: Where they are.
            scale: The loss scale, if there is one.
            count: Of the micro-batches.
            ranks: How many train together. Without a loss scale the reference is 1 among several of them: they sum
                what each of them has, and are spared a pass over it.
        """
        self.parameters = parameters
        self.device = device
        self.scale = 1.0 if scale is None else scale
        self.summed = ranks > 1 and scale is None
        self.reference: float | Tensor = 1.0 if self.summed else 0.0
        self.losses: list[Tensor] = []
        self.weights: list[Any] = []  # numbers, or tensors on the device
        self._alone = count == 1 and ranks == 1  # nothing else is there that a mean over nothing could spoil
        self._on_device = False  # once a weight of the window is
        self._certain: list[bool] = []  # which parameters had a gradient before that,
        self.gradient_flags: list[list[bool]] = []  # and which got one from each micro-batch since

    def add(self, mean_loss: Tensor, weight: float | Tensor) -> None:
        """Backward of a micro-batch of `weight` elements with the mean loss `mean_loss`.

        Raises:
            ValueError: The weight is not a finite number of at least 0, or the loss is not one number that depends on
                a parameter.
        """
        known = 0.0
        if isinstance(weight, Tensor) and weight.numel() != 1:
            raise ValueError(f"weight of a micro-batch must be one number, but got {tuple(weight.shape)}.")
        if isinstance(weight, Tensor) and weight.device.type == self.device.type:
            if not self._on_device:
                self._on_device = True
                self._certain = [parameter.grad is not None for parameter in self.parameters]
        else:
            known = check_weight(float(weight))
            if known == 0:
                return  # a mean over nothing is NaN, and so would be its gradient
        if not mean_loss.requires_grad and isinstance(weight, Tensor) and float(weight) == 0:
            return  # read on the host: the alternative is an error
        mean_loss = check_mean_loss(mean_loss)
        detached = mean_loss.detach()
        if mean_loss.is_cuda:
            detached = detached.clone()  # a CUDA graph would write the next micro-batch's loss in its place
        if self._on_device:
            counted = self._to_valid_weight(weight)
            self._run_backward_on_device(mean_loss, counted)
            self.losses.append(torch.where(counted == 0, 0.0, detached))
            self.weights.append(weight)
        else:
            self._run_backward(mean_loss, known)
            self.losses.append(detached)
            self.weights.append(known)

    def local_totals(self) -> list[Tensor]:
        """What `totals` needs to know and only the device knows yet."""
        if self._on_device:
            return [*self.losses, *(self._to_tensor(weight) for weight in self.weights)]
        return self.losses

    def compute_totals(self, read: Sequence[float]) -> WindowTotals:
        """What the window comes to. A gradient that only micro-batches without weight gave is None again.

        Args:
            read: The numbers of `measured`.

        Raises:
            ValueError: A weight that came as a tensor is not a finite number of at least 0.
        """
        weights = [check_weight(w) for w in read[len(self.losses) :]] if self._on_device else self.weights
        total = loss_sum = largest = 0.0
        bad = 0
        for loss, weight in zip(read, weights, strict=False):
            total += weight
            loss_sum += loss * weight
            largest = weight if weight > largest else largest
            bad += not math.isfinite(loss)
        if not total:
            return WindowTotals(0.0, math.nan, 1.0, 0)
        if self.gradient_flags:
            self._drop_missing_gradients(weights)
        return WindowTotals(total, loss_sum / total, largest / total / self.scale, bad)

    def _drop_missing_gradients(self, weights: Sequence[float]) -> None:
        since = weights[len(weights) - len(self.gradient_flags) :]
        for index, parameter in enumerate(self.parameters):
            if not self._certain[index] and not any(
                w and g[index] for w, g in zip(since, self.gradient_flags, strict=True)
            ):
                parameter.grad = None  # and not zero: weight decay would move its parameter

    def compute_sums(self) -> Tensor:
        """The total weight and the weighted sum of the losses, on the device."""
        dtype = get_weight_dtype(self.device)
        if not self.losses:
            return torch.zeros(2, dtype=dtype, device=self.device)
        losses = torch.stack(self.losses).to(dtype)
        if self._on_device:
            weights = torch.stack([self._to_valid_weight(weight) for weight in self.weights])
        else:
            weights = torch.tensor(self.weights, dtype=dtype).to(self.device, non_blocking=True)
        return torch.stack([weights.sum(), losses @ weights])

    def has_gradient(self) -> Tensor:
        """For each parameter a number above 0 if a micro-batch of weight gave it a gradient, on the device."""
        if not self.gradient_flags:
            flags = [float(parameter.grad is not None) for parameter in self.parameters]
            return torch.tensor(flags).to(self.device, non_blocking=True)
        certain = torch.tensor(self._certain).to(self.device, torch.float32, non_blocking=True)
        given = torch.tensor(self.gradient_flags).to(self.device, torch.float32, non_blocking=True)
        since = torch.stack(
            [self._to_valid_weight(weight) for weight in self.weights[len(self.weights) - len(given) :]]
        )
        return certain + (since > 0).float() @ given

    def _run_backward(self, mean_loss: Tensor, weight: float) -> None:
        reference = float(self.reference)
        if weight > reference and not self.summed:
            if reference:
                torch._foreach_mul_(get_gradients(self.parameters), reference / weight)
            self.reference = reference = weight
        factor = weight / reference * self.scale
        seed = None if factor == 1 else torch.full_like(mean_loss, factor)
        # `inputs`: nothing is left behind in parameters that another update owns.
        torch.autograd.backward(mean_loss, seed, inputs=self.parameters)

    def _run_backward_on_device(self, mean_loss: Tensor, weight: Tensor) -> None:
        before = self._to_valid_weight(self.reference)
        self.reference = reference = before if self.summed else torch.maximum(before, weight)
        if self._alone:
            seed = None if self.scale == 1 else torch.full_like(mean_loss, self.scale)
            torch.autograd.backward(mean_loss, seed, inputs=self.parameters)
            return
        earlier: list[Tensor | None] = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        empty = ~(weight > 0)
        factor = torch.where(empty, 0.0, weight / reference) * self.scale
        torch.autograd.backward(mean_loss, factor.to(mean_loss.dtype), inputs=self.parameters)
        self.gradient_flags.append([parameter.grad is not None for parameter in self.parameters])
        for gradient in get_gradients(self.parameters):
            gradient.masked_fill_(empty, 0.0)  # that of a mean over nothing is NaN, which no factor takes away
        kept = torch.where(reference > 0, before / reference, 1.0)
        for parameter, before_it in zip(self.parameters, earlier, strict=True):
            if before_it is not None:
                before_it.mul_(kept)
                parameter.grad = before_it if parameter.grad is None else _add_gradients(before_it, parameter.grad)

    def _to_valid_weight(self, weight: float | Tensor) -> Tensor:
        """`weight` on the device; one that is none is NaN there, and found when the total is read."""
        tensor = self._to_tensor(weight)
        return torch.where(tensor >= 0, tensor, math.nan) if isinstance(weight, Tensor) else tensor

    def _to_tensor(self, weight: float | Tensor) -> Tensor:
        dtype = get_weight_dtype(self.device)
        if isinstance(weight, Tensor):
            return weight.detach().to(dtype).reshape(())
        return torch.full((), weight, dtype=dtype, device=self.device)  # no copy from the host, which would wait


def get_gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    """The elements of all gradients that there are, to be changed in place; sparse ones are coalesced."""
    gradients = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None:
            if gradient.is_sparse:
                parameter.grad = gradient = gradient.coalesce()
                gradient = gradient.values()  # in its own memory
            gradients.append(gradient)
    return gradients


def check_mean_loss(mean_loss: Tensor) -> Tensor:
    """Return `mean_loss` without dimensions.

    Raises:
        ValueError: It is not one number that depends on a parameter.
    """
    if not mean_loss.requires_grad:
        raise ValueError(
            "loss must depend on a parameter that is trained, but got a constant. "
            "Look for a detach(), an item(), a no_grad() or a replaced loss on the way."
        )
    if mean_loss.numel() != 1:
        raise ValueError(f"loss must be one number, the mean over the micro-batch, but got {tuple(mean_loss.shape)}.")
    return mean_loss.squeeze() if mean_loss.dim() else mean_loss


def check_graph(loss: Tensor) -> None:
    """Refuse a graph in which backward would not reach all parameters.

    Raises:
        ValueError: It has a reentrant activation checkpoint, whose parameters only a backward to all leaves reaches.
    """
    nodes, seen = [loss.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            if node.name() == "CheckpointFunctionBackward":
                raise ValueError(
                    "activation checkpoints must not be reentrant, since their parameters would get no gradient. "
                    "Say torch.utils.checkpoint.checkpoint(..., use_reentrant=False)."
                )
            nodes.extend(before for before, _ in node.next_functions)


def _add_gradients(first: Tensor, second: Tensor) -> Tensor:
    """In place where it can be: a sparse gradient takes up no dense one."""
    return second.add_(first) if first.is_sparse else first.add_(second)


def get_weight_dtype(device: torch.device) -> torch.dtype:
    """What weights on `device` are counted in: fp64 where there is one."""
    return torch.float32 if device.type == "mps" else torch.float64


def check_weight(weight: float) -> float:
    """Return `weight`.

    Raises:
        ValueError: It is not a finite number of at least 0.
    """
    if not 0 <= weight < math.inf:
        raise ValueError(f"weight of a micro-batch must be a finite number of at least 0, but got {weight}.")
    return weight
