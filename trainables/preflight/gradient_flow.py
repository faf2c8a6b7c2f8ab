"""The checks of a trial that trains its first windows."""

from collections.abc import Iterator

from searchlight.trainables.preflight.checks.broadcasts import Broadcasts
from searchlight.trainables.preflight.checks.gradients import MissingGradients
from searchlight.trainables.preflight.checks.idle_optimizers import IdleOptimizers
from searchlight.trainables.preflight.checks.loss_effects import LossEffects
from searchlight.trainables.preflight.checks.loss_terms import LossTerms
from searchlight.trainables.preflight.checks.optimizer_steps import OptimizerSteps
from searchlight.trainables.preflight.checks.outcomes import Outcomes
from searchlight.trainables.preflight.checks.structure import Structure
from searchlight.trainables.preflight.findings import Finding
from searchlight.trainables.preflight.observation import Check, ObservedTrial

# The last ones watch each call of torch in a loss, so that they must not see what the others do.
CHECKS: tuple[type[Check], ...] = (
    Structure,
    OptimizerSteps,
    LossEffects,
    Outcomes,
    MissingGradients,
    IdleOptimizers,
    Broadcasts,
    LossTerms,
)


def find_flow(trial: ObservedTrial) -> Iterator[list[Finding]]:
    """Yield the findings of each check of `trial`, which may have ended with an error."""
    if trial.trainer is not None:
        for check in trial.checks:
            yield [*check.find(trial)]
