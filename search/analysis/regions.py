"""Regions of the search space in which most trials end in one way, for example diverge."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial

from searchlight.search.steering.region import Condition

FEWEST = 3  # affected trials, others, and trials on either side of a split: fewer show nothing
SHUFFLES = 99  # of which trials are affected; a region is told if at most one of them gives as clear a split

IsAffected = Callable[[FrozenTrial], bool]


@dataclass(frozen=True)
class Region:
    """A region in which most trials are affected, and the counts of trials inside and outside of all `conditions`."""

    conditions: tuple[Condition, ...]
    affected: int
    trials: int
    affected_elsewhere: int
    trials_elsewhere: int

    def __str__(self) -> str:
        inside = f"{self.affected} of {self.trials} there"
        outside = f"{self.affected_elsewhere} of {self.trials_elsewhere} elsewhere"
        return f"where {' and '.join(map(str, self.conditions))} ({inside}, {outside})"


def find_region(trials: Sequence[FrozenTrial], is_affected: IsAffected) -> Region | None:
    """Return the region that separates the affected of `trials` best, or None if no region is clear.

    It has at most two conditions. The second divides the trials of the first. Then the first is found again.
    """
    first = _find_condition(trials, is_affected)
    if first is None:
        return None
    conditions = [first]
    second = _find_condition(_select_inside(trials, first), is_affected)
    if second is not None:
        conditions = [_find_condition(_select_inside(trials, second), is_affected) or first, second]
    inside = _select_inside(trials, *conditions)
    numbers = {trial.number for trial in inside}
    outside = [trial for trial in trials if trial.number not in numbers]
    counts = sum(map(is_affected, inside)), len(inside), sum(map(is_affected, outside)), len(outside)
    clear = counts[0] > counts[1] / 2 and counts[2] <= counts[3] / 4
    return Region(tuple(conditions), *counts) if clear else None


def _select_inside(trials: Sequence[FrozenTrial], *conditions: Condition) -> list[FrozenTrial]:
    return [trial for trial in trials if all(condition.holds(trial.params) for condition in conditions)]


def _find_condition(trials: Sequence[FrozenTrial], is_affected: IsAffected) -> Condition | None:
    """Return the condition that divides affected trials from others best, or None if chance would do as well."""
    flags = [is_affected(trial) for trial in trials]
    if min(sum(flags), len(flags) - sum(flags)) < FEWEST:
        return None
    columns = _build_split_columns(trials)
    if not columns:
        return None
    table = np.array([ranks for _, _, ranks in columns]).T
    best = _find_best_split(table, flags)
    if best is None:
        return None
    draw, as_clear = random.Random(0), 0
    for _ in range(SHUFFLES):
        draw.shuffle(flags)
        by_chance = _find_best_split(table, flags)
        as_clear += by_chance is not None and by_chance[2] >= best[2] - 1e-9
        if as_clear > 1:
            return None
    column, rank, _ = best
    name, choice, ranks = columns[column]
    above = [is_affected(trial) for trial, own in zip(trials, ranks, strict=True) if own > rank]
    upper = sum(above) / len(above) > (sum(flags) - sum(above)) / (len(flags) - len(above))
    if choice is not None:
        return Condition(name, "=" if upper else "!=", choice[0])
    values = [trial.params[name] for trial in trials]
    lower_end = max(value for value, own in zip(values, ranks, strict=True) if own <= rank)
    upper_end = min(value for value, own in zip(values, ranks, strict=True) if own > rank)
    bound = _choose_bound(lower_end, upper_end, trials[0].distributions[name])
    return Condition(name, ">=" if upper else "<", bound)


def _build_split_columns(trials: Sequence[FrozenTrial]) -> list[tuple[str, tuple[Any] | None, list[int]]]:
    """Return what a split may use: the name of a parameter, a choice of it if it has choices, and the trials' ranks.

    Ranks, since a split is the same on any scale. Parameters that only some of the trials have are left out.
    """
    columns: list[tuple[str, tuple[Any] | None, list[int]]] = []
    for name, distribution in trials[0].distributions.items():
        if not all(name in trial.params for trial in trials):
            continue
        values = [trial.params[name] for trial in trials]
        if isinstance(distribution, CategoricalDistribution):
            columns += [
                (name, (choice,), [int(value == choice) for value in values]) for choice in distribution.choices
            ]
        else:
            order = {value: rank for rank, value in enumerate(sorted(set(values)))}
            columns.append((name, None, [order[value] for value in values]))
    return [column for column in columns if len(set(column[2])) > 1]


def _find_best_split(table: Any, flags: Sequence[bool]) -> tuple[int, float, float] | None:
    """Return column, bound and gain of the best split of the rows of `table`, or None if a side would be too small."""
    from sklearn.tree import DecisionTreeClassifier  # takes a second, and most searches need it never

    stump = DecisionTreeClassifier(max_depth=1, min_samples_leaf=FEWEST, random_state=0).fit(table, flags).tree_
    if stump.node_count == 1:
        return None
    share = stump.weighted_n_node_samples[1:] / stump.weighted_n_node_samples[0]
    return int(stump.feature[0]), float(stump.threshold[0]), float(stump.impurity[0] - share @ stump.impurity[1:])


def _choose_bound(low: Any, high: Any, distribution: BaseDistribution) -> float | int:
    """Return the shortest number above `low`, and at most `high`, near to their middle."""
    log = getattr(distribution, "log", False)
    middle = math.sqrt(low * high) if log else (low + high) / 2
    if isinstance(distribution, IntDistribution):
        return math.ceil(middle)
    rounded = (float(f"{middle:.{digits}e}") for digits in range(16))
    return next((number for number in rounded if low < number <= high), float(high))
