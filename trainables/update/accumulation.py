"""Backward passes of the micro-batches of one window, each with its weight."""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor


class WindowTotals(NamedTuple):
    """The totals of a window.

    Attributes:
        weight: The total weight.
        loss: The weighted mean loss.
        factor: What turns the accumulated gradients into the gradient of `loss`, as a multiplier.
        bad_losses: The number of this rank's losses that are not finite.
    """

    weight: float
    loss: float
    factor: float
    bad_losses: int


class Accumulation:
    """The accumulated gradients, losses and weights of a window on this rank.

    The gradients of `parameters` hold sum(weight * gradient) * scale / reference, where the reference is the largest
    weight so far. So the total is not needed until the window ends, and no factor is larger than the loss scale: a
    large micro-batch after a small one does not overflow in fp16. A single micro-batch has a factor of 1: its
    gradient is that of a plain loop, bit for bit.

    A weight that is a tensor on the device is not read on the host here, since the read would wait for the GPU.
    """

    def __init__(
        self, parameters: Sequence[Tensor], device: torch.device, scale: float | None, count: int, ranks: int
    ) -> None:
        """Start a window without micro-batches.

        Args:
            parameters: The parameters of the update, with gradients of None.
            device: The device of the parameters.
            scale: The loss scale, or None.
            count: The number of micro-batches.
            ranks: The number of ranks. With several ranks and no loss scale the reference is 1. The ranks then sum
                their gradients without another pass over them.
        """
        self.parameters = parameters
        self.device = device
        self.scale = 1.0 if scale is None else scale
        self.summed = ranks > 1 and scale is None
        self.reference: float | Tensor = 1.0 if self.summed else 0.0
        self.losses: list[Tensor] = []
        self.weights: list[Any] = []  # numbers, or tensors on the device
        self._alone = count == 1 and ranks == 1  # so a NaN of an empty micro-batch spoils no other gradient
        self._on_device = False  # whether a weight of the window is on the device
        self._certain: list[bool] = []  # which parameters had a gradient before that weight,
        self.gradient_flags: list[list[bool]] = []  # and which got one from each later micro-batch

    def add(self, mean_loss: Tensor, weight: float | Tensor) -> None:
        """Run the backward pass of a micro-batch of `weight` elements with the mean loss `mean_loss`.

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
            known = check_weight(weight)
            if known == 0:
                return  # the mean of an empty micro-batch is NaN, and so is its gradient
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
        """Return the scalars on the device that `compute_totals` needs on the host."""
        if self._on_device:
            return [*self.losses, *(self._to_tensor(weight) for weight in self.weights)]
        return self.losses

    def compute_totals(self, read: Sequence[float]) -> WindowTotals:
        """Return the totals of the window. Reset gradients that only micro-batches without weight gave to None.

        Args:
            read: The numbers of `local_totals`, read on the host.

        Raises:
            ValueError: A weight that came as a tensor is not a finite number of at least 0.
        """
        weights = [check_weight(w) for w in read[len(self.losses) :]] if self._on_device else self.weights
        total = loss_sum = largest = 0.0
        bad_losses = 0
        for loss, weight in zip(read, weights, strict=False):
            total += weight
            loss_sum += loss * weight
            largest = weight if weight > largest else largest
            bad_losses += not math.isfinite(loss)
        if not total:
            return WindowTotals(0.0, math.nan, 1.0, 0)

        if self.gradient_flags:
            self._drop_missing_gradients(weights)

        # With weights w_i, losses l_i and gradients g_i of the micro-batches, the window has
        #     loss          sum(w_i * l_i) / sum(w_i)
        #     gradient      sum(w_i * g_i) / sum(w_i)
        #     accumulated   sum(w_i * g_i) * scale / largest,
        # so that this factor turns what was accumulated into the gradient.
        factor = largest / total / self.scale
        return WindowTotals(total, loss_sum / total, factor, bad_losses)

    def _drop_missing_gradients(self, weights: Sequence[float]) -> None:
        since = weights[len(weights) - len(self.gradient_flags) :]
        for index, parameter in enumerate(self.parameters):
            if not self._certain[index] and not any(
                w and g[index] for w, g in zip(since, self.gradient_flags, strict=True)
            ):
                parameter.grad = None  # not zero, since weight decay would then move the parameter

    def compute_sums(self) -> Tensor:
        """Return the total weight and the weighted sum of the losses, (2,), on the device."""
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
        """Return for each parameter a number above 0 if a micro-batch with weight gave it a gradient, on the device."""
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
        """Add the gradient g of `mean_loss`.

        The sum so far is in units of scale / reference. A larger weight becomes the reference:
            sum <- sum * reference / weight, if weight > reference
            sum <- sum + g * scale * weight / reference
        """
        reference = float(self.reference)
        if weight > reference and not self.summed:
            if reference:
                torch._foreach_mul_(get_gradients(self.parameters), reference / weight)
            self.reference = reference = weight

        factor = weight / reference * self.scale
        seed = None if factor == 1 else torch.full_like(mean_loss, factor)
        # `inputs`, so that parameters of other updates get no gradient.
        torch.autograd.backward(mean_loss, seed, inputs=self.parameters)

    def _run_backward_on_device(self, mean_loss: Tensor, weight: Tensor) -> None:
        """Do as `_run_backward` does without a branch on the weight, whose value the host does not know."""
        before = self._to_valid_weight(self.reference)
        self.reference = reference = before if self.summed else torch.maximum(before, weight)
        if self._alone:
            seed = None if self.scale == 1 else torch.full_like(mean_loss, self.scale)
            torch.autograd.backward(mean_loss, seed, inputs=self.parameters)
            return

        # The new gradient is computed apart from the earlier ones, so that it can be cleared if the weight is 0.
        earlier: list[Tensor | None] = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None

        empty = ~(weight > 0)
        factor = torch.where(empty, 0.0, weight / reference) * self.scale
        torch.autograd.backward(mean_loss, factor.to(mean_loss.dtype), inputs=self.parameters)
        self.gradient_flags.append([parameter.grad is not None for parameter in self.parameters])
        for gradient in get_gradients(self.parameters):
            gradient.masked_fill_(empty, 0.0)  # NaN for an empty micro-batch, which a factor of 0 would keep

        kept = torch.where(reference > 0, before / reference, 1.0)
        for parameter, before_it in zip(self.parameters, earlier, strict=True):
            if before_it is not None:
                before_it.mul_(kept)
                parameter.grad = before_it if parameter.grad is None else _add_gradients(before_it, parameter.grad)

    def _to_valid_weight(self, weight: float | Tensor) -> Tensor:
        """Return `weight` on the device. An invalid one becomes NaN, which is detected when the total is read."""
        tensor = self._to_tensor(weight)
        return torch.where(tensor >= 0, tensor, math.nan) if isinstance(weight, Tensor) else tensor

    def _to_tensor(self, weight: float | Tensor) -> Tensor:
        dtype = get_weight_dtype(self.device)
        if isinstance(weight, Tensor):
            return weight.detach().to(dtype).reshape(())
        return torch.full((), weight, dtype=dtype, device=self.device)  # a copy from the host would wait for the device


def get_gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the elements of all existing gradients, to be changed in place. Coalesce sparse ones."""
    gradients = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None:
            if gradient.is_sparse:
                parameter.grad = gradient = gradient.coalesce()
                gradient = gradient.values()  # a view
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
    """Raise if backward would not reach all parameters of the graph of `loss`.

    Raises:
        ValueError: The graph has a reentrant activation checkpoint. Only a backward to all leaves reaches its
            parameters.
    """
    nodes, seen = [loss.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            if node.name() == "CheckpointFunctionBackward":
                raise ValueError(
                    "activation checkpoints must not be reentrant, since their parameters would get no gradient. "
                    "Use torch.utils.checkpoint.checkpoint(..., use_reentrant=False)."
                )
            nodes.extend(before for before, _ in node.next_functions)


def find_leaves(loss: Tensor) -> list[Any]:
    """Return the nodes of the graph of `loss` that accumulate a gradient."""
    nodes, seen, leaves = [loss.grad_fn], set(), []
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            if hasattr(node, "variable"):
                leaves.append(node)
            nodes.extend(before for before, _ in node.next_functions)
    return leaves


def _add_gradients(first: Tensor, second: Tensor) -> Tensor:
    """Add in place where possible, since a dense gradient cannot be added to a sparse one in place."""
    return second.add_(first) if first.is_sparse else first.add_(second)


def get_weight_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype for weights on `device`: fp64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def check_weight(weight: Any) -> float:
    """Return `weight` as a float.

    Raises:
        ValueError: It is not a finite number of at least 0.
    """
    with suppress(TypeError, ValueError):
        number = float(weight)
        if 0 <= number < math.inf:
            return number
        weight = number
    raise ValueError(f"weight of a micro-batch must be a finite number of at least 0, but got {weight}.")
