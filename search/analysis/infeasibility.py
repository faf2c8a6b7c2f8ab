"""Analysis of infeasible trials: which constraint they violate, and in which region of the search space."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial

from searchlight.search.analysis.regions import Region, find_region
from searchlight.search.formatting import format_value, join_words
from searchlight.search.space.objectives import Objective
from searchlight.search.study.trial import (
    WITH_RESULT,
    describe_micro_batches,
    get_best_value,
    get_constraints,
    get_outcome,
    intermediate_values,
)

OF_THE_CONFIG = ("memory", "build")  # constraints that a trial meets by being trained; the others are on metrics


@dataclass(frozen=True)
class ViolatedConstraint:
    """A constraint that trials violate.

    Attributes:
        constraint: "memory", "build" for values that the task refuses, or one on a metric.
        infeasible: The number of infeasible trials that violate it.
        trials: The number of all trials of which it is known whether they violate it.
        region: The region that separates these infeasible trials best. None: no region is clear.
    """

    constraint: str
    infeasible: int
    trials: int
    region: Region | None

    def __str__(self) -> str:
        return f"{self.constraint} {self.infeasible} of {self.trials}{f', {self.region}' if self.region else ''}"


def find_violated_constraints(trials: Sequence[FrozenTrial], objective: Objective) -> list[ViolatedConstraint]:
    """Return the constraints that make `trials` infeasible, that of the most trials first."""
    values = {trial.number: get_constraints(trial, objective) for trial in trials}
    infeasible = [trial for trial in trials if get_outcome(trial) == "infeasible"]
    counts = Counter(name for trial in infeasible for name, value in values[trial.number].items() if value > 0)

    def summarize(constraint: str) -> ViolatedConstraint:
        def is_known(trial: FrozenTrial) -> bool:
            return constraint in values[trial.number] or (constraint in OF_THE_CONFIG and _was_trained(trial))

        def violates(trial: FrozenTrial) -> bool:
            return get_outcome(trial) == "infeasible" and values[trial.number].get(constraint, 0.0) > 0

        known = [trial for trial in trials if is_known(trial)]
        return ViolatedConstraint(constraint, counts[constraint], len(known), find_region(known, violates))

    return [summarize(constraint) for constraint, _ in counts.most_common()]


def describe_nearest(trials: Sequence[FrozenTrial], objective: Objective) -> str:
    """Return a line about the trial that is nearest to meeting the constraints on metrics, or "" if one meets them.

    The nearest trial has the smallest sum of violations, each in the unit of its metric.
    """
    if any(get_outcome(trial) in WITH_RESULT for trial in trials):
        return ""
    near = [
        (trial, {name: value for name, value in get_constraints(trial, objective).items() if value > 0})
        for trial in trials
        if get_outcome(trial) == "infeasible" and intermediate_values(trial) and "infeasibility" not in trial.user_attrs
    ]
    if not near:
        return ""
    trial, missed = min(near, key=lambda pair: sum(pair[1].values()))
    how = join_words([f"{name} by {format_value(value)}" for name, value in missed.items()])
    values = ", ".join(f"{name}={format_value(value)}" for name, value in trial.params.items())
    reached = f"{objective.metric} {format_value(get_best_value(trial, objective))}"
    nearest = f"the nearest is trial {trial.number}, which misses {how}: {reached}, {values}"
    return f"no trial meets the constraints; {nearest}"


def list_split_trials(trials: Sequence[FrozenTrial]) -> list[str]:
    """Return a line for each trial that was trained with smaller micro-batches than proposed."""
    splits = {trial.number: describe_micro_batches(trial) for trial in trials}
    return [f"trial {number} with {split}" for number, split in splits.items() if split]


def _was_trained(trial: FrozenTrial) -> bool:
    """Return whether `trial` was trained until it ended."""
    is_over = get_outcome(trial) in ("completed", "pruned", "diverged", "infeasible")
    return is_over and "infeasibility" not in trial.user_attrs
