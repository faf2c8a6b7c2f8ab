"""What came of a search: how its trials ended, the best one, the Pareto front."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from optuna.trial import FrozenTrial

from search.config.objectives import Mode, Objective, get_sign
from search.study.trial import (
    OUTCOMES,
    WITH_RESULT,
    get_best_epoch,
    get_best_value,
    get_outcome,
    get_reports,
    intermediate_values,
    objective_values,
)


@dataclass(frozen=True)
class BestTrial:
    """The best trial: its number, value, config, and the checkpoint of the report that has the value.

    A function may report without one.
    """

    trial_id: int
    value: float
    config: dict[str, Any]
    checkpoint: str | None


@dataclass(frozen=True)
class ParetoTrial:
    """A trial on the Pareto front, with all objectives by name as its checkpoint has reached them."""

    trial_id: int
    values: dict[str, float]
    config: dict[str, Any]
    checkpoint: str | None


class ImprovingReport(NamedTuple):
    """A report with a better (first) objective than all before it: when, in seconds since 1970, and of which trial."""

    at: float
    trial: int
    value: float


def count_outcomes(trials: Sequence[FrozenTrial]) -> dict[str, int]:
    """How many trials ended how, in the order of OUTCOMES; outcomes that did not occur are left out."""
    counts = Counter(get_outcome(trial) for trial in trials)
    return {outcome: counts[outcome] for outcome in OUTCOMES if counts[outcome]}


def find_best(trials: Sequence[FrozenTrial], mode: str) -> BestTrial | None:
    """The best of the trials that were completed or pruned."""
    judged = [t for t in trials if get_outcome(t) in WITH_RESULT and intermediate_values(t)]
    if not judged:
        return None
    best = (max if mode == "max" else min)(judged, key=lambda trial: get_best_value(trial, mode))
    return BestTrial(
        best.number, get_best_value(best, mode), best.user_attrs["config"], _get_best_checkpoint(best, mode)
    )


def sort_by_objective(trials: Sequence[FrozenTrial], objectives: Sequence[Objective]) -> list[FrozenTrial]:
    """Best by the first objective first; those that reported nothing come last."""
    points, better = (
        {trial.number: objective_values(trial, objectives) for trial in trials},
        get_sign(objectives[0].mode),
    )
    return sorted(trials, key=lambda t: better * point[0] if (point := points[t.number]) else math.inf)


def find_improving_reports(trials: Sequence[FrozenTrial], mode: Mode) -> list[ImprovingReport]:
    """The reports of `trials` that were better than all before them."""
    told = sorted(
        ImprovingReport(report["time"], trial.number, intermediate_values(trial)[epoch])
        for trial in trials
        for epoch, report in get_reports(trial).items()
        if epoch in intermediate_values(trial) and "time" in report
    )
    found: list[ImprovingReport] = []
    for each in told:
        if not found or get_sign(mode) * (each.value - found[-1].value) < 0:
            found.append(each)
    return found


def find_pareto_front(trials: Sequence[FrozenTrial], objectives: Sequence[Objective]) -> list[ParetoTrial]:
    """The Pareto front, best by the first objective first."""
    names = [objective.metric for objective in objectives]
    return [
        ParetoTrial(
            trial.number,
            dict(zip(names, objective_values(trial, objectives) or (), strict=True)),
            trial.user_attrs["config"],
            _get_best_checkpoint(trial, objectives[0].mode),
        )
        for trial in select_pareto_trials(trials, objectives)
    ]


def _get_best_checkpoint(trial: FrozenTrial, mode: str) -> str | None:
    checkpoint: str | None = get_reports(trial)[get_best_epoch(trial, mode)]["checkpoint"]
    return checkpoint


def select_pareto_trials(trials: Sequence[FrozenTrial], objectives: Sequence[Objective]) -> list[FrozenTrial]:
    """Of the trials that were completed or pruned, those that no other one beats; best by the first objective first.

    One beats another if it is nowhere worse and somewhere better: of equal ones, all are on the front.
    """
    points: list[tuple[tuple[float, ...], FrozenTrial]] = []
    for trial in trials:
        point = objective_values(trial, objectives)
        if point is not None and get_outcome(trial) in WITH_RESULT:
            lower = [get_sign(objective.mode) * value for objective, value in zip(objectives, point, strict=True)]
            points.append((tuple(lower), trial))
    front: list[tuple[tuple[float, ...], FrozenTrial]] = []
    # In this order none is beaten by one that comes after it.
    for point, trial in sorted(points, key=lambda pair: (pair[0], pair[1].number)):
        if not any(_is_dominating(other, point) for other, _ in front):
            front.append((point, trial))
    return [trial for _, trial in front]


def _is_dominating(other: Sequence[float], point: Sequence[float]) -> bool:
    """Whether `other` is nowhere worse than `point`, and somewhere better. Smaller is better here."""
    return other != point and all(theirs <= own for theirs, own in zip(other, point, strict=True))
