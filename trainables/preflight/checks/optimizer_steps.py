"""The check that no optimizer steps beside its updater."""

from collections import Counter
from collections.abc import Iterator

from searchlight.trainables.preflight.findings import Finding, Kind, declare_kinds, make_finding
from searchlight.trainables.preflight.observation import Check, ObservedTrial

declare_kinds(
    "Gradient flow",
    Kind("steps-outside-update", "error", "Leave optimizer.step() to the updater: it steps once per window."),
)


class OptimizerSteps(Check):
    """Counts the steps of each optimizer that its updater did not make."""

    def __init__(self) -> None:
        self.steps = Counter[str]()

    def on_step(self, trial: ObservedTrial, optimizer: str, is_of_updater: bool) -> None:
        self.steps[optimizer] += not is_of_updater

    def find(self, trial: ObservedTrial) -> Iterator[Finding]:
        for optimizer, count in self.steps.items():
            if count:
                yield make_finding("steps-outside-update", optimizer, f"{count} steps in {trial.windows} windows")
