"""The check that a loss only computes: it leaves gradients and learning rates to the updater."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from searchlight.trainables.preflight.findings import Finding, Kind, declare_kinds, make_finding
from searchlight.trainables.preflight.observation import Check, ObservedTrial
from searchlight.trainables.update import Updater
from searchlight.trainables.update.parameters import get_parameters

declare_kinds(
    "Gradient flow",
    Kind("backward-in-loss", "error", "Return the loss and leave backward() to the updater."),
    Kind("gradients-dropped-in-loss", "error", "Leave zero_grad() out: the updater clears gradients between windows."),
    Kind("rate-changes-in-loss", "warning", "Leave scheduler.step() out: add the scheduler to self.schedulers."),
)


class LossEffects(Check):
    """Compares gradients and learning rates before and after each loss."""

    def __init__(self) -> None:
        self.changing = set[str]()  # updates whose loss changes gradients
        self.dropping = set[str]()  # updates whose loss clears gradients
        self.rates = dict[str, str]()  # by update, learning rates before and after a loss

    @contextmanager
    def watch_loss(self, trial: ObservedTrial, update: str, batch: Any) -> Iterator[None]:
        updater = trial.task.updaters[update]
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

    def find(self, trial: ObservedTrial) -> Iterator[Finding]:
        for update in sorted(self.changing):
            figure = "the loss changes gradients while it is computed"
            yield make_finding("backward-in-loss", f"update {update!r}", figure)
        for update in sorted(self.dropping):
            figure = "gradients are gone after the next loss"
            yield make_finding("gradients-dropped-in-loss", f"update {update!r}", figure)
        for update, figure in self.rates.items():
            yield make_finding("rate-changes-in-loss", f"update {update!r}", figure)


def _get_rates(updater: Updater) -> list[float]:
    return [float(group.get("lr", 0.0)) for o in updater.optimizers.values() for group in o.param_groups]
