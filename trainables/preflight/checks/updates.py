"""The check of updates and optimizer steps: each window is updated once, is finite, and moves the parameters."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from searchlight.trainables.preflight.checks.errors import has_trained
from searchlight.trainables.preflight.findings import Finding, Kind, Severity, declare_kinds, make_finding, make_group
from searchlight.trainables.preflight.observation import Check, Norms, ObservedTrial, Window
from searchlight.trainables.update.parameters import get_parameters

declare_kinds(
    "Gradient flow",
    Kind("steps-outside-update", "error", "Leave optimizer.step() to the updater: it steps once per window."),
    Kind("window-updated-twice", "warning", "Update each window once, unless several passes over it are meant."),
    Kind("skips-windows", "warning", "Pass each window to its updaters in update(window)."),
    Kind("no-batches", "error", "Let train_batches yield micro-batches, each with a weight above 0."),
    Kind("non-finite-gradient", "error", "Keep sqrt, log, norm and division away from 0, e.g. by an epsilon inside."),
    Kind("non-finite-loss", "error", "Keep log, exp and division in their range; look at the first batch."),
    Kind("constant-loss", "error", "Return a loss that is computed from the outputs of self.modules."),
    Kind("update-changes-nothing", "warning", "Look for a learning rate of 0, or one that fp32 rounds away."),
)


class Updates(Check):
    """Counts steps and repeated windows. Compares parameters with their values after `build`."""

    def __init__(self) -> None:
        self.own_steps = Counter[str]()  # of each optimizer that its updater did not make
        self.seen = set[tuple[Any, ...]]()  # windows, by their update
        self.repeated = Counter[str]()  # calls of an update with a window that it had had
        self.non_finite = dict[str, None]()  # parameters, in their order
        self.moved = set[str]()  # parameters with a finite gradient above 0

    def on_step(self, trial: ObservedTrial, optimizer: str, is_of_updater: bool) -> None:
        self.own_steps[optimizer] += not is_of_updater

    def on_update(self, trial: ObservedTrial, update: str, window: Window, norms: Norms) -> None:
        identity = (update, trial.windows, *(id(batch) for batch in window))
        self.repeated[update] += identity in self.seen
        self.seen.add(identity)
        self.non_finite |= {name: None for name, norm in norms.items() if not math.isfinite(norm)}
        self.moved |= {name for name, norm in norms.items() if norm and math.isfinite(norm)}

    def find(self, trial: ObservedTrial) -> Iterator[Finding]:
        for optimizer, count in self.own_steps.items():
            if count:
                yield make_finding("steps-outside-update", optimizer, f"{count} steps in {trial.windows} windows")
        for update, record in trial.updates.items():
            figure = f"{record.calls} updates in {trial.windows} windows"
            if self.repeated[update]:
                yield make_finding("window-updated-twice", f"update {update!r}", figure)
            if trial.windows and not record.calls:
                yield make_finding("skips-windows", f"update {update!r}", figure)
        if trial.is_empty:
            yield make_finding("no-batches", "train_batches", "0 micro-batches in an epoch")
        else:
            yield from self._find_lost(trial)
        if has_trained(trial):
            yield from self._find_idle(trial)

    def _find_lost(self, trial: ObservedTrial) -> Iterator[Finding]:
        """Yield a finding for each update that skips windows, or finds nothing in them."""
        for update, record in trial.updates.items():
            subject, skipped = f"update {update!r}", record.outcomes["skipped"]
            if not skipped:
                if record.outcomes["empty"] == record.calls and record.calls and trial.error is None:
                    yield _describe_empty(subject, record.reasons, record.calls)
                continue
            severity: Severity = "error" if skipped == record.calls else "warning"
            figure = f"{skipped} of {record.calls} windows skipped in fp32"
            if any(not math.isfinite(loss) for loss in record.losses):
                yield make_finding("non-finite-loss", subject, figure, severity)
            else:
                yield from make_group("non-finite-gradient", [*self.non_finite] or [subject], figure, severity)

    def _find_idle(self, trial: ObservedTrial) -> Iterator[Finding]:
        """Yield a finding for each optimizer whose steps change none of its parameters."""
        names = {id(p): name for name, p in trial.named.items()}
        applied = max(record.outcomes["applied"] for record in trial.updates.values())
        for key, optimizer in trial.task.optimizers.items():
            parameters = [p for p in get_parameters(optimizer) if id(p) in trial.initial and not is_lazy(p)]
            if not self.moved & {names[id(p)] for p in parameters if id(p) in names}:
                continue
            if any(not torch.equal(trial.initial[id(p)], p.detach()) for p in parameters):
                continue
            rates = {float(group.get("lr", math.nan)) for group in optimizer.param_groups}
            severity: Severity = "error" if rates == {0.0} and not trial.task.schedulers else "warning"
            rate = ", ".join(f"{rate:g}" for rate in sorted(rates))
            figure = f"{len(parameters)} parameters unchanged by {applied} updates, learning rate {rate}"
            yield make_finding("update-changes-nothing", f"optimizer {key!r}", figure, severity)


def _describe_empty(subject: str, reasons: set[str], calls: int) -> Finding:
    if "no gradient" in reasons:
        return make_finding("constant-loss", subject, f"none of its parameters got a gradient in {calls} updates")
    return make_finding("no-batches", subject, f"{calls} windows without weight")
