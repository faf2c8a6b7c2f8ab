"""The check that each term of a loss trains a parameter."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from searchlight.trainables.preflight.findings import Finding, Kind, declare_kinds, make_finding
from searchlight.trainables.preflight.gradients import Prober
from searchlight.trainables.preflight.observation import FIRST_WINDOWS, Check, ObservedTrial, find_running_line
from searchlight.trainables.update.parameters import get_parameters

ADDITIONS = {"add", "sub", "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__", "add_", "sub_", "rsub"}

declare_kinds(
    "Gradient flow",
    Kind("loss-term-without-gradient", "warning", "Remove detach() or no_grad() from the term, or leave the term out."),
    Kind("constant-loss-term", "note", "Leave the term out: it trains nothing."),
)


class TermRecorder(TorchFunctionMode):
    """Records the value of each scalar without a gradient that is added to one with a gradient, by its line."""

    def __init__(self, values: dict[str, float]) -> None:
        super().__init__()
        self.values = values

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
                        self.values[find_running_line()] = float(part.detach())
        return result


class LossTerms(Check):
    """Looks for terms in the losses of the first windows, and computes them again with other weights."""

    def __init__(self) -> None:
        self.terms = dict[str, float]()

    def watch_loss(self, trial: ObservedTrial, update: str, batch: Any) -> AbstractContextManager[object]:
        return TermRecorder(self.terms) if trial.windows < FIRST_WINDOWS else nullcontext()

    def find(self, trial: ObservedTrial) -> Iterator[Finding]:
        """Yield the terms that have no gradient.

        A term that changes with the weights depends on them, and its gradient was cut off. Another term is a constant.
        """
        if not self.terms or trial.error is not None:
            return
        trained, first = _compute_terms(trial), dict[str, float]()
        with _set_initial_weights(trial):
            first = _compute_terms(trial)
        for line in self.terms:
            now, before = trained.get(line), first.get(line)
            if now is None or before is None:
                continue
            if now != before:
                figure = f"{before:.4g} with the first weights, {now:.4g} with the trained ones, and no gradient"
                yield make_finding("loss-term-without-gradient", line, figure)
            else:
                figure = f"{now:.4g} with the first weights and with the trained ones"
                yield make_finding("constant-loss-term", line, figure)


def _compute_terms(trial: ObservedTrial) -> dict[str, float]:
    """Return the terms of the first micro-batch of each update with the present weights."""
    prober, values = Prober(trial), dict[str, float]()
    for record in trial.updates.values():
        for batch, loss in record.batches[:1]:
            with prober.isolated(0), TermRecorder(values):
                prober.forward(loss, batch)
    return values


@contextmanager
def _set_initial_weights(trial: ObservedTrial) -> Iterator[None]:
    """Set the parameters to their values after `build` inside the context. Restore them afterwards."""
    parameters = [p for o in trial.task.optimizers.values() for p in get_parameters(o) if id(p) in trial.initial]
    trained = [p.detach().clone() for p in parameters]
    try:
        with torch.no_grad():
            for p in parameters:
                p.copy_(trial.initial[id(p)])
        yield
    finally:
        with torch.no_grad():
            for p, value in zip(parameters, trained, strict=True):
                p.copy_(value)
