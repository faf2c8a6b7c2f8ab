"""One optimizer update per window of micro-batches.

A whole window is passed to `update`, so that no separate flush is needed: the tail of an epoch is a shorter window.
Each update uses the exact gradient of the weighted mean loss over the window on all ranks.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from searchlight.trainables.device_errors import breaks_device
from searchlight.trainables.precision import Diverged, LossScale, autocast, resolve
from searchlight.trainables.update.accumulation import Accumulation, WindowTotals, check_graph, get_gradients
from searchlight.trainables.update.arguments import Scheduler, check_limits, check_loss, check_schedulers
from searchlight.trainables.update.batches import to_device
from searchlight.trainables.update.batches import windows as windows  # re-exported for users of Updater
from searchlight.trainables.update.buffers import Buffers
from searchlight.trainables.update.ema import Ema
from searchlight.trainables.update.parameters import (
    check_optimizers,
    get_parameter_names,
    get_parameters,
    is_sharded,
    keep_local_kernels,
)
from searchlight.trainables.update.reduction import Reducer, get_world_size

Batch = TypeVar("Batch")
Loss = Callable[[Batch], tuple[Tensor, float | Tensor]]
LARGEST_NORM = torch.finfo(torch.float32).max


class UpdateReport(NamedTuple):
    """The outcome of one window.

    Attributes:
        outcome: Whether the update was applied.
        reason: Why the update was not applied, or an empty string.
        loss: The weighted mean over all micro-batches and ranks.
        grad_norm: The norm of the unscaled gradient before clipping.
        weight: The total weight over all ranks.
        loss_scale: The loss scale of the window.
        micro_batches: The number of micro-batches on this rank.
        bad_losses: The number of losses that are not finite.
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
    """Applies whole windows to one or several optimizers: to all of them or to none.

    Args:
        optimizers: The optimizers by name. Parameters must be fp32, and each must belong to one optimizer only.
        precision: "fp32", "bf16" or "fp16". A precision that the device lacks is an error. "auto" is bf16 where the
            device has it, else fp16 on a GPU, else fp32.
        device: The device to which each micro-batch is moved before its forward pass. Default: that of the parameters.
        max_grad_norm: The limit of the gradient norm over all optimizers, or a limit for each optimizer by name.
            None: no clipping, but the norm is still reported.
        schedulers: Learning-rate schedules. They step once per applied update, unless their optimizer had no gradient.
        ema: Averages to update once per applied update.
        loss_scale: The loss scale, which only fp16 uses.
        max_consecutive_skips: The largest number of windows skipped in a row. One more ends the trial as diverged.
        on_update: A function that is called with each report.
        modules: The trained modules by name. Errors name their parameters. A window that is not applied leaves their
            buffers, such as the statistics of batch norm, unchanged.
        transform: A function that changes the final gradients in place and equally on all ranks, for example to add
            noise. It runs before checks and clipping, so non-finite results are not applied. (A step hook of an
            optimizer runs after them.)
        bf16_parameters: Allow parameters in bf16. Their small steps are lost by rounding: 1 + 0.001 is 1.

    Raises:
        ValueError: An argument is out of range, the device lacks the precision, or a parameter cannot be trained.

    Examples:
        A window has a micro-batch of three samples and one of one.

        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.zeros_(model.weight)
        >>> updater = Updater({"sgd": torch.optim.SGD(model.parameters(), lr=0.1)}, modules={"model": model})
        >>> def loss(x):
        ...     return (model(x) - 1).square().mean(), len(x)
        >>> report = updater.update([torch.ones(3, 1), torch.full((1, 1), 3.0)], loss)
        >>> report.outcome, report.loss, report.weight
        ('applied', 1.0, 4.0)
        >>> round(model.weight.item(), 4)  # by the gradient -2 * (3 * 1 + 1 * 3) / 4 = -3
        0.3
    """

    def __init__(
        self,
        optimizers: Mapping[str, torch.optim.Optimizer],
        precision: str = "fp32",
        device: str | torch.device | None = None,
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
        parameters = (p for optimizer in optimizers.values() for p in get_parameters(optimizer))
        self.device = torch.device(device or next((p.device for p in parameters), "cpu"))
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
        """Train on one window, and return its outcome.

        Args:
            window: This rank's micro-batches. It is empty if only other ranks have data left.
            loss: A function that is called once per micro-batch under autocast. It returns the mean loss of the
                micro-batch and its weight, the number of elements of that mean (samples, unmasked tokens, cells).

        Raises:
            Diverged: Too many windows were skipped in a row, or the loss scale fell below its minimum.
            PeerFailed: Another rank raised an error in its part of the window.
            ValueError: The loss is not one number that depends on a parameter, or a weight is not a finite number of
                at least 0. A loss that depends only on parameters of other updates gives an empty window.

        If a step of an optimizer or schedule raises, weights have already changed and are not restored.
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
        finally:  # after an error, too: the next window must not start with these gradients
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
        # A norm in bf16 would have three digits only.
        self._norm_dtype = torch.float32 if self._bf16_parameters and not self._keeps_fp64 else None

    def _check_parameters(self) -> None:
        """Raise if this class cannot train the parameters."""
        if is_sharded(self._parameters):
            raise ValueError("parameters that are sharded must have a ShardedUpdater, but got an Updater.")

    def _get_gradients(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients of `parameters` on this rank, to be changed in place."""
        return get_gradients(parameters)

    def _is_finite(self) -> bool:
        return all(bool(gradient.isfinite().all()) for gradient in self._get_gradients(self._with_gradient))

    def unsharded(self) -> AbstractContextManager[None]:
        """Keep all weights unsharded inside, so that forward passes need no communication."""
        return nullcontext()

    def _get_identities(self) -> list[int]:
        """Return the id of each parameter, negative if the parameter is frozen."""
        groups = [group["params"] for optimizer in self.optimizers.values() for group in optimizer.param_groups]
        return [id(p) if p.requires_grad else -id(p) for parameters in groups for p in parameters]

    def trainable_names(self) -> list[str]:
        """Return the names of the trainable parameters."""
        return [self._names[id(parameter)] for parameter in self._trainable]

    def gradient_norms(self) -> dict[str, float]:
        """Return the norm of each unscaled gradient of the last window, by parameter name.

        Parameters without a gradient are left out. After an empty window the dict is empty.
        """
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
        except Exception as error:  # any error: the other ranks wait in the all-reduce, which must report it
            if ranks > 1 and not breaks_device(error):
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
        """Return the totals of the window and store its gradient norms, in the only read on the host per window."""
        sums = window.local_totals() if ranks == 1 else [*self._reducer.reduce(trainable, window), *window.losses]
        held = [parameter for parameter in trainable if parameter.grad is not None]
        norms, read = _read_norms(get_gradients(held), sums, self._norm_dtype)
        totals = window.compute_totals(read) if ranks == 1 else self._reducer.compute_totals(trainable, read)

        if ranks > 1 or window.gradient_flags:  # the totals may have reset gradients to None
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
        # A second read, since the transform may have changed any gradient.
        self._norms, _ = _read_norms(get_gradients(self._with_gradient), [], self._norm_dtype)
        return totals._replace(factor=1.0)

    def _decide_outcome(self, totals: WindowTotals) -> tuple[Literal["applied", "skipped", "empty"], str, float]:
        """Return the outcome of the window, its reason, and the gradient norm."""
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
        """Unscale and clip the gradients, in one multiplication."""
        if not isinstance(self.max_grad_norm, dict):
            factor *= _compute_clip_factor(norm, self.max_grad_norm)
            if factor != 1:
                torch._foreach_mul_(self._get_gradients(self._with_gradient), factor)
            return

        norms = {id(parameter): norm for parameter, norm in zip(self._with_gradient, self._norms, strict=True)}
        for name, optimizer in self.optimizers.items():
            held = [parameter for parameter in get_parameters(optimizer) if id(parameter) in norms]
            norm_of_optimizer = math.hypot(*(norms[id(p)] for p in held))
            clipped = factor * _compute_clip_factor(norm_of_optimizer, self.max_grad_norm[name])
            if held and clipped != 1:
                torch._foreach_mul_(self._get_gradients(held), clipped)

    def _skip(self, norm: float, loss: float) -> None:
        self.skipped += 1
        self.consecutive_skips += 1
        spoiled = [name for name, length in self.gradient_norms().items() if not math.isfinite(length)]
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
        for scheduler in self.schedulers:  # last, since a finished schedule raises
            if getattr(scheduler, "optimizer", None) not in idle:
                scheduler.step()

    def _drop_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state of optimizers, schedules, averages and loss scale, and the counts of windows."""
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
        """Load a state that `state_dict` returned. If it has no averages, they restart from the weights."""
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
    """Return the norms of `gradients`, computed in `dtype`, and the numbers of `sums`, in one read on the host.

    A model may be on several devices: the numbers are collected on one of them.
    """
    if not gradients and not sums:
        return [], []
    norms = torch._foreach_norm(gradients, 2, dtype) if gradients else ()
    collected = [*norms, *sums]
    device = collected[-1].device
    numbers: list[float] = torch.stack(
        [each if each.device == device else each.to(device) for each in collected]
    ).tolist()
    return numbers[: len(norms)], numbers[len(norms) :]


def _compute_clip_factor(norm: float, limit: float | None) -> float:
    return 1.0 if limit is None or norm <= limit else limit / (norm + 1e-6)
