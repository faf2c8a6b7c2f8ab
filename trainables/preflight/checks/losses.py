"""The checks of what a loss does beside its computation, and of the terms and shapes that it computes with."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from searchlight.trainables.preflight.findings import Finding, Kind, declare_kinds, make_finding
from searchlight.trainables.preflight.gradients import Prober
from searchlight.trainables.preflight.observation import FIRST_WINDOWS, Check, ObservedTrial, find_running_line
from searchlight.trainables.preflight.samples import digest_samples
from searchlight.trainables.update import Updater
from searchlight.trainables.update.parameters import get_parameters

ADDITIONS = {"add", "sub", "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__", "add_", "sub_", "rsub"}
COMPARISONS = {"sub", "rsub", "__sub__", "__rsub__", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}

declare_kinds(
    "Gradient flow",
    Kind("backward-in-loss", "error", "Return the loss and leave backward() to the updater."),
    Kind("gradients-dropped-in-loss", "error", "Leave zero_grad() out: the updater clears gradients between windows."),
    Kind("rate-changes-in-loss", "warning", "Leave scheduler.step() out: add the scheduler to self.schedulers."),
    Kind("loss-term-without-gradient", "warning", "Remove detach() or no_grad() from the term, or leave the term out."),
    Kind("constant-loss-term", "note", "Leave the term out: it trains nothing."),
    Kind("targets-broadcast", "warning", "Give predictions and targets one shape: squeeze(1), or unsqueeze(1)."),
)
declare_kinds(
    "Determinism and data",
    Kind("loss-changes-data", "warning", "Change a copy of the batch, e.g. x = x - mean for x -= mean."),
)


class LossEffects(Check):
    """Compares gradients, learning rates and the samples of the first windows before and after each loss."""

    def __init__(self) -> None:
        self.changing = set[str]()  # updates whose loss changes gradients
        self.dropping = set[str]()  # updates whose loss clears gradients
        self.rates = dict[str, str]()  # by update, learning rates before and after a loss
        self.overwritten = set[str]()  # digests of samples that a loss changed, before it

    @contextmanager
    def watch_loss(self, trial: ObservedTrial, update: str, batch: Any) -> Iterator[None]:
        updater = trial.task.updaters[update]
        samples = digest_samples(batch) if trial.windows < FIRST_WINDOWS else []
        parameters = [p for optimizer in updater.optimizers.values() for p in get_parameters(optimizer)]
        before, rates = [p.grad for p in parameters], _get_rates(updater)
        copies = [None if g is None or g.is_sparse else g.detach().clone() for g in before if trial.windows == 0]
        yield
        for rate, changed in zip(rates, _get_rates(updater), strict=False):
            if rate != changed:
                self.rates.setdefault(update, f"learning rate {rate:.3g} before it, {changed:.3g} after it")
        for gradient, p in zip(before, parameters, strict=True):
            if gradient is None and p.grad is not None:
                self.changing.add(update)
            elif gradient is not None and p.grad is None:
                self.dropping.add(update)
        for saved, p in zip(copies, parameters, strict=False):
            if saved is None or p.grad is None:
                continue
            if not torch.equal(saved.nan_to_num(), p.grad.nan_to_num()):
                (self.changing if p.grad.any() else self.dropping).add(update)
        if samples:
            self.overwritten |= {*samples} - {*digest_samples(batch)}

    def find(self, trial: ObservedTrial) -> Iterator[Finding]:
        for update in sorted(self.changing):
            figure = "the loss changes gradients while it is computed"
            yield make_finding("backward-in-loss", f"update {update!r}", figure)
        for update in sorted(self.dropping):
            figure = "gradients are gone after the next loss"
            yield make_finding("gradients-dropped-in-loss", f"update {update!r}", figure)
        for update, figure in self.rates.items():
            yield make_finding("rate-changes-in-loss", f"update {update!r}", figure)

    def find_overwritten(self, epoch: Sequence[str]) -> Iterator[Finding]:
        """Yield a finding if the overwritten samples are missing in the digests of an `epoch` that is drawn again."""
        if self.overwritten and not self.overwritten & {*epoch}:  # a loss may change a copy that the task makes
            figure = f"the {len(self.overwritten)} samples of the first windows are no longer in the epoch"
            yield make_finding("loss-changes-data", "loss", figure)


class CallRecorder(TorchFunctionMode):
    """Records calls of torch, by the line of the task that makes them.

    Attributes:
        terms: The value of each scalar without a gradient that is added to one with a gradient.
        shapes: The shapes of a prediction (n, 1) that is compared with targets (n,), or the reverse.
    """

    def __init__(self) -> None:
        super().__init__()
        self.terms = dict[str, float]()
        self.shapes = dict[str, str]()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        parts = args[0] if name == "stack" and args and isinstance(args[0], list | tuple) else args
        if (name in ADDITIONS or name == "stack") and isinstance(result, Tensor) and result.requires_grad:
            tensors = [part for part in parts if isinstance(part, Tensor)]
            if len(tensors) > 1 and all(part.numel() == 1 for part in tensors):
                for part in tensors:
                    if not part.requires_grad:
                        self.terms[find_running_line()] = float(part.detach())
        if name in COMPARISONS and len(args) > 1 and _compares_each_with_all(*args[:2]):
            count = max(args[0].shape)
            figure = f"{tuple(args[0].shape)} with {tuple(args[1].shape)} gives {(count, count)}"
            self.shapes.setdefault(find_running_line(), figure)
        return result


class LossCalls(Check):
    """Records the calls in the losses of the first windows, and computes their terms again with other weights."""

    def __init__(self) -> None:
        self.seen = CallRecorder()

    def watch_loss(self, trial: ObservedTrial, update: str, batch: Any) -> AbstractContextManager[object]:
        return self.seen if trial.windows < FIRST_WINDOWS else nullcontext()

    def find(self, trial: ObservedTrial) -> Iterator[Finding]:
        """Yield comparisons of each prediction with all targets, and the terms that have no gradient.

        A term that changes with the weights depends on them, and its gradient was cut off. Another term is a constant.
        """
        for line, figure in self.seen.shapes.items():
            yield make_finding("targets-broadcast", line, figure)
        if not self.seen.terms or trial.error is not None:
            return
        trained = _compute_terms(trial)
        with _set_initial_weights(trial):
            first = _compute_terms(trial)
        for line in self.seen.terms:
            now, before = trained.get(line), first.get(line)
            if now is None or before is None:
                continue
            if now != before:
                figure = f"{before:.4g} with the first weights, {now:.4g} with the trained ones, and no gradient"
                yield make_finding("loss-term-without-gradient", line, figure)
            else:
                figure = f"{now:.4g} with the first weights and with the trained ones"
                yield make_finding("constant-loss-term", line, figure)


def _get_rates(updater: Updater) -> list[float]:
    return [float(group.get("lr", 0.0)) for o in updater.optimizers.values() for group in o.param_groups]


def _compares_each_with_all(first: Any, second: Any) -> bool:
    """Return whether predictions and targets have the shapes (n, 1) and (n,), so that their difference is (n, n)."""
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)) or first.requires_grad == second.requires_grad:
        return False  # two predictions are compared with each other on purpose
    row, column = sorted((first, second), key=lambda tensor: tensor.ndim)
    return row.ndim == 1 and len(row) > 1 and column.shape == (len(row), 1)


def _compute_terms(trial: ObservedTrial) -> dict[str, float]:
    """Return the terms of the first micro-batch of each update with the present weights."""
    prober, recorder = Prober(trial), CallRecorder()
    for record in trial.updates.values():
        for batch, loss in record.batches[:1]:
            with prober.isolated(0), recorder:
                prober.forward(loss, batch)
    return recorder.terms


@contextmanager
def _set_initial_weights(trial: ObservedTrial) -> Iterator[None]:
    """Set the parameters to their values after `build` inside the context. Restore them afterwards."""
    parameters = [p for o in trial.task.optimizers.values() for p in get_parameters(o) if id(p) in trial.initial]
    trained = [p.detach().clone() for p in parameters]

    @torch.no_grad()
    def set_weights(values: Sequence[Tensor]) -> None:
        for p, value in zip(parameters, values, strict=True):
            p.copy_(value)

    set_weights([trial.initial[id(p)] for p in parameters])
    try:
        yield
    finally:
        set_weights(trained)
