"""Analysis of diverged trials: by precision, region of the search space, kind and first epoch."""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial

from searchlight.search.study.trial import get_outcome

FEWEST = 3  # diverged trials, others, and trials on either side of a split: fewer show nothing
SHUFFLES = 99  # of which trials diverged; a region is told if at most one of them gives as clear a split

Relation = Literal[">=", "<", "is", "is not"]


@dataclass(frozen=True)
class Condition:
    """A bound of a number, or a choice."""

    parameter: str
    relation: Relation
    value: Any

    def is_met(self, values: Mapping[str, Any]) -> bool:
        """Return whether the parameters of a trial meet the condition. They do not if the parameter does not apply."""
        if self.parameter not in values:
            return False
        value = values[self.parameter]
        if self.relation in (">=", "<"):
            return bool((value >= self.value) == (self.relation == ">="))
        return bool((value == self.value) == (self.relation == "is"))

    def __str__(self) -> str:
        value = f"{self.value:.4g}" if isinstance(self.value, float) else self.value
        return f"{self.parameter} {self.relation} {value}"


@dataclass(frozen=True)
class Region:
    """A region in which most trials diverge, and the counts of trials inside and outside of all `conditions`."""

    conditions: tuple[Condition, ...]
    diverged: int
    trials: int
    diverged_elsewhere: int
    trials_elsewhere: int


@dataclass(frozen=True)
class Divergence:
    """The diverged trials of one precision, or of all.

    Attributes:
        precision: The precision. None: all trials.
        diverged: The number of diverged trials.
        trials: The number of all trials, without failed and interrupted ones, whose end is unknown.
        region: The region that separates diverged trials best. None: no region is clear.
        kinds: The number of trials by kind of divergence, the most frequent first. See docs/tasks.md.
        first_epoch: The earliest epoch in which a trial diverged.
    """

    precision: str | None
    diverged: int
    trials: int
    region: Region | None
    kinds: dict[str, int]
    first_epoch: int | None

    def __str__(self) -> str:
        text = f"{self.precision or 'all'} {self.diverged} of {self.trials}"
        if self.region is not None:
            inside = f"{self.region.diverged} of {self.region.trials} there"
            outside = f"{self.region.diverged_elsewhere} of {self.region.trials_elsewhere} elsewhere"
            text += f", where {' and '.join(map(str, self.region.conditions))} ({inside}, {outside})"
        if self.kinds:
            text += "; " + ", ".join(f"{kind} {count}" for kind, count in self.kinds.items())
        return text + (f"; first in epoch {self.first_epoch}" if self.first_epoch else "")


def find_divergence(trials: Sequence[FrozenTrial]) -> list[Divergence]:
    """Return the diverged trials, for each precision if it is searched. The list is empty if no trial diverged.

    If no single precision has enough trials for a region, all trials are analyzed together.
    """
    known = [trial for trial in trials if get_outcome(trial) in ("completed", "pruned", "diverged")]
    if not any(map(_is_diverged, known)):
        return []
    groups: defaultdict[str | None, list[FrozenTrial]] = defaultdict(list)
    for trial in known:
        groups[trial.params.get("precision")].append(trial)
    divergences = [_summarize_divergence(precision, groups[precision]) for precision in sorted(groups, key=str)]
    if len(divergences) > 1 and not any(divergence.region for divergence in divergences):
        together = _summarize_divergence(None, known)
        divergences += [together] if together.region else []
    return divergences


def _summarize_divergence(precision: str | None, trials: Sequence[FrozenTrial]) -> Divergence:
    diverged = [trial for trial in trials if _is_diverged(trial)]
    seen = [trial.user_attrs.get("divergence") or {"kind": "other", "epoch": 0} for trial in diverged]
    kinds = dict(Counter(details["kind"] for details in seen).most_common())
    first = min((details["epoch"] for details in seen if details["epoch"]), default=None)
    return Divergence(precision, len(diverged), len(trials), _find_region(trials), kinds, first)


def _find_region(trials: Sequence[FrozenTrial]) -> Region | None:
    """Return at most two conditions. The second divides the trials of the first. Then the first is found again."""
    first = _find_condition(trials)
    if first is None:
        return None
    conditions = [first]
    second = _find_condition(_select_inside(trials, first))
    if second is not None:
        conditions = [_find_condition(_select_inside(trials, second)) or first, second]
    inside = _select_inside(trials, *conditions)
    numbers = {trial.number for trial in inside}
    outside = [trial for trial in trials if trial.number not in numbers]
    counts = sum(map(_is_diverged, inside)), len(inside), sum(map(_is_diverged, outside)), len(outside)
    clear = counts[0] > counts[1] / 2 and counts[2] <= counts[3] / 4
    return Region(tuple(conditions), *counts) if clear else None


def _select_inside(trials: Sequence[FrozenTrial], *conditions: Condition) -> list[FrozenTrial]:
    return [trial for trial in trials if all(condition.is_met(trial.params) for condition in conditions)]


def _find_condition(trials: Sequence[FrozenTrial]) -> Condition | None:
    """Return the condition that divides diverged trials from others best, or None if chance would do as well."""
    flags = [_is_diverged(trial) for trial in trials]
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
    above = [_is_diverged(trial) for trial, own in zip(trials, ranks, strict=True) if own > rank]
    upper = sum(above) / len(above) > (sum(flags) - sum(above)) / (len(flags) - len(above))
    if choice is not None:
        return Condition(name, "is" if upper else "is not", choice[0])
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


def _is_diverged(trial: FrozenTrial) -> bool:
    return get_outcome(trial) == "diverged"
