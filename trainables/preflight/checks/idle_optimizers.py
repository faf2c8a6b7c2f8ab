"""The check that the steps of an optimizer change its parameters."""

import math
from collections.abc import Iterator

import torch
from torch.nn.parameter import is_lazy

from searchlight.trainables.preflight.checks.errors import has_trained
from searchlight.trainables.preflight.findings import Finding, Kind, Severity, declare_kinds, make_finding
from searchlight.trainables.preflight.observation import Check, Norms, ObservedTrial, Window
from searchlight.trainables.update.parameters import get_parameters

declare_kinds(
    "Gradient flow",
    Kind("update-changes-nothing", "warning", "Look for a learning rate of 0, or one that fp32 rounds away."),
)


class IdleOptimizers(Check):
    """Compares the parameters that had a gradient with their values after `build`."""

    def __init__(self) -> None:
        self.moved = set[str]()  # parameters with a finite gradient above 0

    def on_update(self, trial: ObservedTrial, update: str, window: Window, norms: Norms) -> None:
        self.moved |= {name for name, norm in norms.items() if norm and math.isfinite(norm)}

    def find(self, trial: ObservedTrial) -> Iterator[Finding]:
        if not has_trained(trial):
            return
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
