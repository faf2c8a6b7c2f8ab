"""One optimizer update per window of micro-batches.

A window is handed over whole, so there is no flush to forget or to repeat: the tail of an epoch is a shorter
window. Each update is the exact gradient of the weighted mean loss over the window on all ranks.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from trainables.precision import Diverged, LossScale, autocast, resolve
from trainables.update.accumulation import Accumulation, WindowTotals, check_graph, get_gradients
from trainables.update.arguments import Scheduler, check_limits, check_loss, check_schedulers
from trainables.update.batches import to_device
from trainables.update.batches import windows as windows  # an update and what it takes come together
from trainables.update.buffers import Buffers
from trainables.update.ema import Ema
from trainables.update.parameters import (
    check_optimizers,
    get_parameter_names,
    get_parameters,
    is_sharded,
    keep_local_kernels,
)
from trainables.update.reduction import Reducer, get_world_size

Batch = TypeVar("Batch")
Loss = Callable[[Batch], tuple[Tensor, float | Tensor]]
LARGEST_NORM = torch.finfo(torch.float32).max


class UpdateReport(NamedTuple):
    """What happened to one window.

    `loss` is the weighted mean over all micro-batches and ranks, `grad_norm` the norm of the true gradient before
    clipping, `weight` the total over ranks, `loss_scale` the scale that the window ran with, `micro_batches` how many
    this rank had, and `bad_losses` how many of them had a loss that is not finite.
    """

    outcome: Literal["applied", "skipped", "empty"]
    reason: str
    loss: float
    grad_norm: float
    weight: float
    loss_scale: float
    micro_batches: int
    bad_losses: int = 0


class Updater:
    """Applies whole windows to one or several optimizers, all of them or none.

    Args:
        optimizers: By name. Their parameters must be fp32, and each must belong to one optimizer only.
        precision: "fp32", "bf16" or "fp16"; what is asked for runs, or the construction fails. "auto" is bf16 where
            the device has it, else fp16 on a GPU, else fp32.
        device: Where the parameters are; each micro-batch is moved there when its turn comes.
        max_grad_norm: Clip the norm over all optimizers to this; by optimizer, clip each one's own. None: no
            clipping, the norm is still reported.
        schedulers: Stepped once per applied update, unless their optimizer had no gradient in it.
        ema: Updated once per applied update.
        loss_scale: Used by fp16 alone.
        max_consecutive_skips: More than this many windows skipped in a row end the trial as diverged.
        on_update: Called with each report.
        modules: What is trained, by name: errors name its parameters, and a window that is not applied leaves its
            buffers, as batch norm's statistics, as they were.
        transform: Changes the finished gradients in place, as noise does, and alike on all ranks: before they are
            checked and clipped, so what it spoils is not applied. (A hook of an optimizer's step comes after that.)
        bf16_parameters: Allow parameters in bf16. Their small steps are rounded away: 1 + 0.001 is 1.

    Raises:
        ValueError: An argument is out of range, the device lacks the precision, or a parameter cannot be trained
            as it is.
    """

    def __init__(
        self,
        optimizers: Mapping[str, torch.optim.Optimizer],
        precision: str = "fp32",
        device: str | torch.device = "cpu",
        max_grad_norm: float | Mapping[str, float | None] | None = None,
        schedulers: Sequence[Scheduler] = (),
        ema: Ema | None = None,
        loss_scale: LossScale | None = None,
        max_consecutive_skips: int = 50,
        on_update: Callable[[UpdateReport], None] | None = None,
        modules: Mapping[str, nn.Module] | None = None,
        transform: Callable[[], None] | None = None,
        bf16_parameters: bool = False,
    ) -> None:
        self.device = torch.device(device)
        self.precision = resolve(precision, self.device)
        self.optimizers = dict(optimizers)
        self.max_grad_norm = check_limits(max_grad_norm, self.optimizers)
        self.schedulers = check_schedulers(schedulers)
        self.ema = ema
        self.loss_scale = (loss_scale or LossScale()) if self.precision.mode.loss_scale else None
        self.max_consecutive_skips = max_consecutive_skips
        self.on_update = on_update
        self.transform = transform
        self.steps = 0
        self.skipped = 0
        self.empty = 0
        self.consecutive_skips = 0
        self._modules = dict(modules or {})
        self._buffers = Buffers(self._modules)
        self._bf16_parameters = bf16_parameters and not self.precision.mode.loss_scale
        self._collect_parameters()
        self._graph_checked = False
        self._reducer = Reducer(self.device)
        self._with_gradient: list[Tensor] = []  # which parameters had a gradient in the last window,
        self._norms: list[float] = []  # and its norm

    def update(self, window: Sequence[Batch], loss: Loss[Batch]) -> UpdateReport:
        """Train on `window`.

        Args:
            window: This rank's micro-batches; none at all if the rank ran out of data while others have some.
            loss: Called once per micro-batch under autocast. Returns the mean loss of the micro-batch and its
                weight, the number of elements that the mean was taken over (samples, unmasked tokens, cells).

        Raises:
            Diverged: Too many windows were skipped in a row, or the loss scale fell to its floor.
            PeerFailed: Another rank raised in its part of the window.
            ValueError: The loss is not one number that depends on a parameter, or a weight is not a finite number of
                at least 0. A loss that depends on parameters of others alone is an empty window.

        An error of an optimizer's or a schedule's own step comes after weights have moved, and is not undone.
        """
        if not hasattr(window, "__len__"):
            raise ValueError(
                f"window must be a sequence of micro-batches, but got {type(window).__name__}. See windows()."
            )
        if self._get_identities() != self._taken:  # parameters were added to an optimizer, replaced, frozen or thawed
            self._collect_parameters()
        self._drop_gradients()
        trainable, steps = self._trainable, self.steps
        before = self._buffers.copy()
        try:
            ranks = get_world_size()
            report = self._finish_window(
                trainable, self._accumulate(trainable, window, loss, ranks), len(window), ranks
            )
        finally:  # an error in a micro-batch must leave nothing behind for the next window
            self._drop_gradients()
            if self.steps == steps:
                self._buffers.restore(before)
        if self.on_update is not None:
            self.on_update(report)
        return report

    def _collect_parameters(self) -> None:
        self._names = get_parameter_names(self.optimizers, self._modules)
        check_optimizers(self.optimizers, self._names, self._bf16_parameters, get_world_size())
        self._parameters = [p for optimizer in self.optimizers.values() for p in get_parameters(optimizer)]
        self._taken = self._get_identities()
        self._trainable = [parameter for parameter in self._parameters if parameter.requires_grad]
        self._check_parameters()
        self._keeps_fp64 = any(p.dtype == torch.float64 for p in self._parameters)
        # A norm in bf16 would be good to three digits.
        self._norm_dtype = torch.float32 if self._bf16_parameters and not self._keeps_fp64 else None

    def _check_parameters(self) -> None:
        """Refuse parameters that this class does not train."""
        if is_sharded(self._parameters):
            raise ValueError("parameters that are sharded must have a ShardedUpdater, but got an Updater.")

    def _get_gradients(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Return what this rank has of the gradients of `parameters`, to be changed in place."""
        return get_gradients(parameters)

    def _is_finite(self) -> bool:
        return all(bool(gradient.isfinite().all()) for gradient in self._get_gradients(self._with_gradient))

    def unsharded(self) -> AbstractContextManager[None]:
        """Keep all weights whole on this rank inside, so that no forward pass waits for another rank."""
        return nullcontext()

    def _get_identities(self) -> list[int]:
        """Which parameters there are, and by the sign which of them are trained."""
        groups = [group["params"] for optimizer in self.optimizers.values() for group in optimizer.param_groups]
        return [id(p) if p.requires_grad else -id(p) for parameters in groups for p in parameters]

    def trainable_names(self) -> list[str]:
        """The names of the parameters that are trained."""
        return [self._names[id(parameter)] for parameter in self._trainable]

    def gradient_norms(self) -> dict[str, float]:
        """By parameter, the norm of its true gradient in the last window; parameters without a gradient are not in
        it. After an empty window it is empty."""
        return {self._names[id(p)]: norm for p, norm in zip(self._with_gradient, self._norms, strict=True)}

    def _accumulate(
        self, trainable: list[Tensor], window: Sequence[Batch], loss: Loss[Batch], ranks: int
    ) -> Accumulation:
        scale = self.loss_scale.value if self.loss_scale else None
        accumulation = Accumulation(trainable, self.device, scale, len(window), ranks)
        if ranks > 1:
            self._reducer.prepare(trainable)
        try:
            for batch in window:
                batch = to_device(batch, self.device, self._keeps_fp64)
                with autocast(self.precision, self.device):
                    returned = loss(batch)
                mean_loss, weight = check_loss(returned)
                if not self._graph_checked:
                    check_graph(mean_loss)
                    self._graph_checked = True
                accumulation.add(mean_loss, weight)
        except Exception:  # whatever it is: the other ranks wait for this one, and must hear of it
            if ranks > 1:
                self._drop_gradients()
                self._reducer.reduce(trainable, None)
            raise
        return accumulation

    def _finish_window(
        self, trainable: list[Tensor], window: Accumulation, micro_batches: int, ranks: int
    ) -> UpdateReport:
        totals = self._measure(trainable, window, ranks)
        outcome, reason, norm = self._decide_outcome(totals)
        if outcome == "empty":
            self._with_gradient, self._norms = [], []
            self.empty += 1
        elif outcome == "skipped":
            self._skip(norm, totals.loss)
        else:
            self._finish_gradients(totals.factor, norm)
            self._apply()
        return UpdateReport(
            outcome, reason, totals.loss, norm, totals.weight, window.scale, micro_batches, totals.bad_losses
        )

    def _measure(self, trainable: list[Tensor], window: Accumulation, ranks: int) -> WindowTotals:
        """The totals of the window and the norms of its true gradients, in the one read on the host in a window."""
        sums = window.local_totals() if ranks == 1 else [*self._reducer.reduce(trainable, window), *window.losses]
        held = [parameter for parameter in trainable if parameter.grad is not None]
        norms, read = _read_norms(get_gradients(held), sums, self._norm_dtype)
        totals = window.compute_totals(read) if ranks == 1 else self._reducer.compute_totals(trainable, read)
        if ranks > 1 or window.gradient_flags:  # the totals showed that some gradients are none
            norms = [norm for parameter, norm in zip(held, norms, strict=True) if parameter.grad is not None]
            held = [parameter for parameter in held if parameter.grad is not None]
        self._with_gradient = held
        self._norms = norms if totals.factor == 1 else [norm * totals.factor for norm in norms]
        return self._apply_transform(totals) if self.transform and totals.weight and norms else totals

    @torch.no_grad()
    def _apply_transform(self, totals: WindowTotals) -> WindowTotals:
        assert self.transform is not None
        torch._foreach_mul_(get_gradients(self._with_gradient), totals.factor)
        self.transform()
        self._with_gradient = [parameter for parameter in self._with_gradient if parameter.grad is not None]
        # A second read, since it may have changed anything.
        self._norms, _ = _read_norms(get_gradients(self._with_gradient), [], self._norm_dtype)
        return totals._replace(factor=1.0)

    def _decide_outcome(self, totals: WindowTotals) -> tuple[Literal["applied", "skipped", "empty"], str, float]:
        """What becomes of the window, why, and the norm of its gradient."""
        if not totals.weight:
            return "empty", "no weight", math.nan
        if not self._norms:
            return "empty", "no gradient", math.nan
        norm = math.hypot(*self._norms)
        if norm <= LARGEST_NORM and math.isfinite(totals.loss):
            return "applied", "", norm
        if norm <= LARGEST_NORM:
            return "skipped", "non-finite loss", norm
        return "skipped", "gradient norm overflow" if self._is_finite() else "non-finite gradient", norm

    def _finish_gradients(self, factor: float, norm: float) -> None:
        """Make the gradients true and clip them, in one multiplication."""
        if not isinstance(self.max_grad_norm, dict):
            factor *= _compute_clip_factor(norm, self.max_grad_norm)
            if factor != 1:
                torch._foreach_mul_(self._get_gradients(self._with_gradient), factor)
            return
        norms = {id(parameter): norm for parameter, norm in zip(self._with_gradient, self._norms, strict=True)}
        for name, optimizer in self.optimizers.items():
            held = [parameter for parameter in get_parameters(optimizer) if id(parameter) in norms]
            own = factor * _compute_clip_factor(math.hypot(*(norms[id(p)] for p in held)), self.max_grad_norm[name])
            if held and own != 1:
                torch._foreach_mul_(self._get_gradients(held), own)

    def _skip(self, norm: float, loss: float) -> None:
        self.skipped += 1
        self.consecutive_skips += 1
        spoiled = [name for name, own in self.gradient_norms().items() if not math.isfinite(own)]
        where = f"at step {self.steps} the loss is {loss:g}, the gradient norm {norm:g}"
        where += f", first in {spoiled[0]}" if spoiled else ""
        if self.loss_scale is not None:
            try:
                self.loss_scale.skipped()
            except Diverged as error:
                raise Diverged(f"{error}; {where}", agreed=True, kind="loss_scale") from error
        if self.consecutive_skips > self.max_consecutive_skips:
            count = f"{self.consecutive_skips} windows in a row were" if self.consecutive_skips > 1 else "a window was"
            scale = f"loss scale {self.loss_scale.value:g}" if self.loss_scale else "no loss scale"
            raise Diverged(f"{count} not finite: {where}, {scale}", agreed=True, kind="skips")

    def _apply(self) -> None:
        idle: list[torch.optim.Optimizer] = []
        if len(self._with_gradient) < len(self._parameters):
            idle = [o for o in self.optimizers.values() if all(p.grad is None for p in get_parameters(o))]
        for optimizer in self.optimizers.values():
            if optimizer not in idle:
                optimizer.step()
        if self.ema is not None:
            self.ema.update()
        if self.loss_scale is not None:
            self.loss_scale.applied()
        self.steps += 1
        self.consecutive_skips = 0
        for scheduler in self.schedulers:  # last: one that has ended raises
            if getattr(scheduler, "optimizer", None) not in idle:
                scheduler.step()

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
        """Take up `state`. What only one side has starts anew: averages, or a loss scale after a change of
        precision."""
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(keep_local_kernels(state["optimizers"][name], optimizer))
        for scheduler, saved in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        if self.ema is not None and state["ema"]:
            self.ema.load_state_dict(state["ema"])
        elif self.ema is not None:
            self.ema.restart()
        if self.loss_scale is not None and state["loss_scale"]:
            self.loss_scale.load_state_dict(state["loss_scale"])
        self.steps = state["steps"]
        self.skipped = state["skipped"]
        self.empty = state["empty"]
        self.consecutive_skips = state["consecutive_skips"]


def _read_norms(
    gradients: list[Tensor], sums: list[Tensor], dtype: torch.dtype | None
) -> tuple[list[float], list[float]]:
    """The norms of `gradients`, taken in `dtype`, and the numbers of `sums`, in one read on the host."""
    if not gradients and not sums:
        return [], []
    norms = torch._foreach_norm(gradients, 2, dtype) if gradients else ()
    numbers: list[float] = torch.stack([*norms, *sums]).tolist()
    return numbers[: len(norms)], numbers[len(norms) :]


def _compute_clip_factor(norm: float, limit: float | None) -> float:
    return 1.0 if limit is None or norm <= limit else limit / (norm + 1e-6)
