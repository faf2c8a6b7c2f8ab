"""The Pareto front: the trials that none of the others beats in every objective."""

from collections.abc import Sequence

from optuna.trial import FrozenTrial

from search.objectives import Objective
from search.schedule import sign
from search.trials import SETTLED, outcome_of, point_of


def pareto_front(trials: Sequence[FrozenTrial], objectives: Sequence[Objective]) -> list[FrozenTrial]:
    """Of the trials that were completed or pruned, those that no other one beats; best by the first objective first.

    One beats another if it is nowhere worse and somewhere better: of equal ones, all are on the front.
    """
    points: list[tuple[tuple[float, ...], FrozenTrial]] = []
    for trial in trials:
        point = point_of(trial, objectives)
        if point is not None and outcome_of(trial) in SETTLED:
            lower = [sign(objective.mode) * value for objective, value in zip(objectives, point, strict=True)]
            points.append((tuple(lower), trial))
    front: list[tuple[tuple[float, ...], FrozenTrial]] = []
    # In this order none is beaten by one that comes after it.
    for point, trial in sorted(points, key=lambda pair: (pair[0], pair[1].number)):
        if not any(_beats(other, point) for other, _ in front):
            front.append((point, trial))
    return [trial for _, trial in front]


def _beats(other: Sequence[float], point: Sequence[float]) -> bool:
    """Whether `other` is nowhere worse than `point`, and somewhere better. Smaller is better here."""
    return other != point and all(theirs <= own for theirs, own in zip(other, point, strict=True))
