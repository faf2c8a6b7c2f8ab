"""One optimizer update per window of micro-batches.

A window is handed over whole, so there is no flush to forget or to repeat: the tail of an epoch is a shorter
window. Each update is the exact gradient of the weighted mean loss over the window on all ranks.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from trainables.ema import Ema
from trainables.precision import Diverged, LossScale, Precision, autocast, require

Batch = TypeVar("Batch")
Loss = Callable[[Batch], tuple[Tensor, float | Tensor]]


class Scheduler(Protocol):
    """What an update needs of a learning-rate schedule: torch's schedulers have it."""

    def step(self) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class UpdateReport:
    """What happened to one window.

    `loss` is the weighted mean over all micro-batches and ranks, `grad_norm` the norm of the true gradient before
    clipping, `loss_scale` the scale that the window ran with, `micro_batches` this rank's count.
    """

    outcome: Literal["applied", "skipped", "empty"]
    reason: str
    loss: float
    grad_norm: float
    weight: float
    loss_scale: float
    micro_batches: int


def windows(batches: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    """Split `batches`, of known length or not, into lists of `size`; the last one is simply shorter.

    Never looks further ahead than the window that it hands over.
    """
    if size < 1:
        raise ValueError(f"window size must be at least 1, but got {size}.")
    iterator = iter(batches)
    while window := list(islice(iterator, size)):
        yield window


class Updater:
    """Applies whole windows to one or several optimizers, all of them or none.

    Args:
        optimizers: By name. Their parameters must be fp32, and each must belong to one optimizer only.
        precision: "fp32", "bf16" or "fp16"; what is asked for runs, or the construction fails.
        device: Where the parameters are; each micro-batch is moved there when its turn comes.
        max_grad_norm: Clip the norm over all optimizers to this. None: no clipping, the norm is still reported.
        schedulers: Stepped once per applied update, unless their optimizer had no gradient in it.
        ema: Updated once per applied update.
        loss_scale: Used by fp16 alone.
        max_consecutive_skips: More than this many windows skipped in a row end the trial as diverged.
        on_update: Called with each report.
        buffers: What a forward pass changes, as batch norm's statistics: a window that is not applied leaves them as
            they were.

    Raises:
        ValueError: An argument is out of range, the device lacks the precision, or a parameter cannot be trained
            as it is.
    """

    def __init__(
        self,
        optimizers: Mapping[str, torch.optim.Optimizer],
        precision: str = "fp32",
        device: str | torch.device = "cpu",
        max_grad_norm: float | None = None,
        schedulers: Sequence[Scheduler] = (),
        ema: Ema | None = None,
        loss_scale: LossScale | None = None,
        max_consecutive_skips: int = 50,
        on_update: Callable[[UpdateReport], None] | None = None,
        buffers: Sequence[Tensor] = (),
    ) -> None:
        if max_grad_norm is not None and not 0 < max_grad_norm < math.inf:
            raise ValueError(f"max_grad_norm must be positive and finite or None, but got {max_grad_norm}.")
        self.device = torch.device(device)
        self.precision = require(precision, self.device)
        self.optimizers = dict(optimizers)
        self.max_grad_norm = max_grad_norm
        self.schedulers = tuple(schedulers)
        self.ema = ema
        self.loss_scale = (loss_scale or LossScale()) if self.precision is Precision.FP16 else None
        self.max_consecutive_skips = max_consecutive_skips
        self.on_update = on_update
        self.buffers = list(buffers)
        self.steps = 0
        self.skipped = 0
        self.empty = 0
        self.consecutive_skips = 0
        self._parameters = _trainable_parameters(self.optimizers)

    def update(self, window: Sequence[Batch], loss: Loss[Batch]) -> UpdateReport:
        """Train on `window`.

        Args:
            window: This rank's micro-batches; none at all if the rank ran out of data while others have some.
            loss: Called once per micro-batch under autocast. Returns the mean loss of the micro-batch and its
                weight, the number of elements that the mean was taken over (samples, unmasked tokens, cells).

        Raises:
            Diverged: Too many windows were skipped in a row, or the loss scale fell to its floor.
            ValueError: The loss is a constant, or a weight is not a finite number of at least 0. A loss that depends
                on parameters of others alone is an empty window.
        """
        self._drop_gradients()
        before = [buffer.clone() for buffer in self.buffers]
        applied = False
        try:
            report = self._flush(*self._accumulate(window, loss), len(window))
            applied = report.outcome == "applied"
        finally:  # an error in a micro-batch must leave nothing behind for the next window
            self._drop_gradients()
            if not applied:
                for buffer, value in zip(self.buffers, before, strict=True):
                    buffer.data.copy_(value)
        if self.on_update is not None:
            self.on_update(report)
        return report

    def _accumulate(self, window: Sequence[Batch], loss: Loss[Batch]) -> tuple[float, float, Tensor]:
        """Backward of every micro-batch; gradients are left multiplied by scale / reference weight.

        Returns:
            The reference weight, the total weight, and the weighted sum of the losses, all of this rank.
        """
        reference = total = 0.0
        loss_sum = torch.zeros((), device=self.device)
        scale = self.loss_scale.value if self.loss_scale else 1.0
        for batch in window:
            with autocast(self.precision, self.device):
                mean_loss, weight = loss(_to_device(batch, self.device))
            weight = _checked_weight(weight)
            if weight == 0:
                continue  # a mean over nothing is NaN, and so would be its gradient
            if mean_loss.grad_fn is None:
                raise ValueError(
                    "loss must depend on a parameter that is trained, but got a constant. "
                    "Look for a detach(), an item() or a replaced loss on the way."
                )
            # A half-precision loss overflows when the scale multiplies it; an fp64 one stays fp64.
            mean_loss = mean_loss.to(torch.promote_types(mean_loss.dtype, torch.float32))
            reference = reference or weight
            factor = weight / reference * scale
            # `inputs`: nothing is left behind in parameters that another update owns.
            torch.autograd.backward(mean_loss if factor == 1 else mean_loss * factor, inputs=self._parameters)
            total += weight
            loss_sum += mean_loss.detach() * weight
        return reference, total, loss_sum

    @torch.no_grad()
    def _flush(self, reference: float, total: float, loss_sum: Tensor, micro_batches: int) -> UpdateReport:
        scale = self.loss_scale.value if self.loss_scale else 1.0
        if _world_size() > 1:
            total, loss_sum = self._reduce(reference / scale, total, loss_sum)
            factor = 1 / total if total else 1.0
        else:
            factor = reference / (total * scale) if total else 1.0
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if not total or not gradients:
            reason = "no gradient" if total else "no weight"
            self.empty += 1
            return UpdateReport("empty", reason, math.nan, math.nan, total, scale, micro_batches)
        if factor != 1:
            torch._foreach_mul_(gradients, factor)
        norm_tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        norm, loss = torch.stack([norm_tensor, loss_sum]).tolist()  # the one read on the host in a window
        loss /= total
        if not math.isfinite(norm):
            overflow = all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
            reason = "gradient norm overflow" if overflow else "non-finite gradient"
            self._skip(norm)
            return UpdateReport("skipped", reason, loss, norm, total, scale, micro_batches)
        if self.max_grad_norm is not None and norm > self.max_grad_norm:
            torch._foreach_mul_(gradients, self.max_grad_norm / (norm + 1e-6))
        self._apply()
        return UpdateReport("applied", "", loss, norm, total, scale, micro_batches)

    def _reduce(self, factor: float, total: float, loss_sum: Tensor) -> tuple[float, Tensor]:
        """Sum gradients, weight and loss over all ranks in one reduction.

        A gradient that only some ranks have is zero on the others; one that no rank has stays None, so that
        weight decay does not move its parameter.
        """
        parameters = self._parameters
        flat = torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad * factor).flatten() for p in parameters]
            + [torch.tensor([float(p.grad is not None) for p in parameters] + [total], device=self.device)]
            + [loss_sum.reshape(1)]
        )
        dist.all_reduce(flat)
        sizes = [p.numel() for p in parameters]
        *reduced, tail = torch.split(flat, [*sizes, len(parameters) + 2])
        *present, total, _ = tail.tolist()
        for parameter, gradient, ranks in zip(parameters, reduced, present, strict=True):
            parameter.grad = gradient.view_as(parameter).to(parameter.dtype) if ranks else None
        return total, tail[-1]

    def _skip(self, norm: float) -> None:
        self.skipped += 1
        self.consecutive_skips += 1
        if self.loss_scale is not None:
            try:
                self.loss_scale.skipped()
            except Diverged as error:
                raise Diverged(f"{error}; at step {self.steps} the gradient norm is {norm:g}") from error
        if self.consecutive_skips > self.max_consecutive_skips:
            scale = f"loss scale {self.loss_scale.value:g}" if self.loss_scale else "no loss scale"
            raise Diverged(
                f"{self.consecutive_skips} windows in a row had a non-finite gradient: "
                f"at step {self.steps}, gradient norm {norm:g}, {scale}"
            )

    def _apply(self) -> None:
        idle = [o for o in self.optimizers.values() if all(p.grad is None for p in _parameters_of(o))]
        for optimizer in self.optimizers.values():
            if optimizer not in idle:
                optimizer.step()
        for scheduler in self.schedulers:
            if getattr(scheduler, "optimizer", None) not in idle:
                scheduler.step()
        if self.ema is not None:
            self.ema.update()
        if self.loss_scale is not None:
            self.loss_scale.applied()
        self.steps += 1
        self.consecutive_skips = 0

    def _drop_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "ema": self.ema.state_dict() if self.ema else None,
            "loss_scale": self.loss_scale.state_dict() if self.loss_scale else None,
            "steps": self.steps,
            "skipped": self.skipped,
            "empty": self.empty,
            "consecutive_skips": self.consecutive_skips,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up `state`. A loss scale is taken over if both sides have one; a change of precision starts anew."""
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        for scheduler, saved in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        if self.ema is not None:
            self.ema.load_state_dict(state["ema"])
        if self.loss_scale is not None and state["loss_scale"]:
            self.loss_scale.load_state_dict(state["loss_scale"])
        self.steps = state["steps"]
        self.skipped = state["skipped"]
        self.empty = state["empty"]
        self.consecutive_skips = state["consecutive_skips"]


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _trainable_parameters(optimizers: Mapping[str, torch.optim.Optimizer]) -> list[Tensor]:
    """The parameters of all optimizers, in order.

    Raises:
        ValueError: There is none, one belongs to two optimizers, one is not fp32, or an optimizer needs closures.
    """
    if not optimizers:
        raise ValueError("optimizers must name at least one optimizer, but got none.")
    owner: dict[int, str] = {}
    parameters: list[Tensor] = []
    for name, optimizer in optimizers.items():
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError(f"optimizer {name!r} must step without a closure, but got LBFGS. Use a first-order one.")
        for index, parameter in enumerate(_parameters_of(optimizer)):
            if not parameter.requires_grad:
                continue
            if id(parameter) in owner:
                raise ValueError(
                    f"each parameter must belong to one optimizer, but {owner[id(parameter)]!r} and {name!r} share one "
                    f"of shape {tuple(parameter.shape)}."
                )
            if parameter.dtype in (torch.float16, torch.bfloat16):
                raise ValueError(
                    f"parameters of optimizer {name!r} must be fp32, but number {index}, of shape "
                    f"{tuple(parameter.shape)}, is {parameter.dtype}. Train an fp32 copy: module.float(); "
                    "precision decides what the forward pass runs in."
                )
            owner[id(parameter)] = name
            parameters.append(parameter)
    if not parameters:
        raise ValueError("optimizers must hold a parameter that requires a gradient, but none does.")
    return parameters


def _checked_weight(weight: float | Tensor) -> float:
    value = float(weight)
    if not 0 <= value < math.inf:
        raise ValueError(f"weight of a micro-batch must be a finite number of at least 0, but got {value}.")
    return value


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _to_device(batch: Any, device: torch.device) -> Any:
    """`batch` with every tensor in its dicts, lists and tuples on `device`; anything else as it is."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: _to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # a named tuple takes its fields one by one
        return type(batch)(*(_to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_to_device(value, device) for value in batch)
    return batch
