"""The check that each window is updated once, and that its loss and gradient are finite."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from searchlight.trainables.preflight.findings import Finding, Kind, Severity, declare_kinds, make_finding, make_group
from searchlight.trainables.preflight.observation import Check, Norms, ObservedTrial, Window

declare_kinds(
    "Gradient flow",
    Kind("window-updated-twice", "warning", "Update each window once, unless several passes over it are meant."),
    Kind("skips-windows", "warning", "Pass each window to its updaters in update(window)."),
    Kind("no-batches", "error", "Let train_batches yield micro-batches, each with a weight above 0."),
    Kind("non-finite-gradient", "error", "Keep sqrt, log, norm and division away from 0, e.g. by an epsilon inside."),
    Kind("non-finite-loss", "error", "Keep log, exp and division in their range; look at the first batch."),
    Kind("constant-loss", "error", "Return a loss that is computed from the outputs of self.modules."),
)


class Outcomes(Check):
    """Judges the outcomes of the updates."""

    def __init__(self) -> None:
        self.seen = set[tuple[Any, ...]]()  # windows, by their update
        self.repeated = Counter[str]()  # calls of an update with a window that it had had
        self.non_finite = dict[str, None]()  # parameters, in their order

    def on_update(self, trial: ObservedTrial, update: str, window: Window, norms: Norms) -> None:
        identity = (update, trial.windows, *(id(batch) for batch in window))
        self.repeated[update] += identity in self.seen
        self.seen.add(identity)
        self.non_finite |= {name: None for name, norm in norms.items() if not math.isfinite(norm)}

    def find(self, trial: ObservedTrial) -> Iterator[Finding]:
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


def _describe_empty(subject: str, reasons: set[str], calls: int) -> Finding:
    if "no gradient" in reasons:
        return make_finding("constant-loss", subject, f"none of its parameters got a gradient in {calls} updates")
    return make_finding("no-batches", subject, f"{calls} windows without weight")
