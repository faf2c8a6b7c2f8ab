"""The choice of the trials that TPE learns from if it knows trials of earlier searches.

Trials of earlier searches have negative numbers. They may mislead, for example if they used other data.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

FEWEST = 6  # trials of the search that can contradict earlier ones
MOST = 200  # of them, the newest, since each suggestion compares them
NEIGHBORS = 3


def select_trials(trials: Sequence[FrozenTrial], number: int) -> list[FrozenTrial]:
    """Return the trials that the proposal of trial `number` learns from: `trials` with or without earlier ones.

    Every second proposal ignores earlier trials. All proposals ignore them while they contradict the search's own.
    """
    own = [trial for trial in trials if trial.number >= 0]
    if len(own) == len(trials) or number % 2:
        return own
    agreement = measure_agreement([trial for trial in trials if trial.number < 0], own)
    return own if agreement is not None and agreement <= 0 else list(trials)


def measure_agreement(earlier: Sequence[FrozenTrial], own: Sequence[FrozenTrial]) -> float | None:
    """Return the rank correlation between values of `own` trials and of the earlier trials nearest to them.

    Own trials are compared at the highest step that enough of them reached. Return None if there are too few trials.
    """
    reports: dict[int, list[tuple[FrozenTrial, float]]] = defaultdict(list)
    for trial in own:
        if trial.state != TrialState.RUNNING:
            for step, value in trial.intermediate_values.items():
                reports[step].append((trial, value))
    steps = [step for step, found in reports.items() if len(found) >= FEWEST]
    known = [(trial, result) for trial in earlier if (result := _get_value(trial)) is not None]
    if not steps or len(known) < NEIGHBORS:
        return None
    compared = reports[max(steps)][-MOST:]
    squares = _measure_squares([trial for trial, _ in compared], [trial for trial, _ in known])
    nearest = np.argsort(squares, axis=1, kind="stable")[:, :NEIGHBORS]
    nearest.sort()  # the same neighbors in another order would have another mean by rounding, and so another rank
    expected = np.array([value for _, value in known])[nearest].mean(axis=1)
    return _correlate_ranks(expected, np.array([value for _, value in compared]))


def _get_value(trial: FrozenTrial) -> float | None:
    """Return the value of a completed trial, else its last one, or None if it has none."""
    if trial.state == TrialState.COMPLETE:
        return trial.value
    return trial.intermediate_values[max(trial.intermediate_values)] if trial.intermediate_values else None


def _correlate_ranks(first: NDArray[np.float64], second: NDArray[np.float64]) -> float | None:
    """Return Spearman's rank correlation, or None if one of the two is constant."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    # Twice the rank from 0, plus 1. Equal values share their mean rank.
    ranks = [(of[:, None] > of).sum(axis=1) + (of[:, None] >= of).sum(axis=1) for of in (first, second)]
    return float(np.corrcoef(ranks)[0, 1])


def _measure_squares(own: Sequence[FrozenTrial], earlier: Sequence[FrozenTrial]) -> NDArray[np.float64]:
    """Return the squared distances in the unit cube, (own, earlier). Different choices have the distance 1."""
    distributions = {name: found for trial in (*own, *earlier) for name, found in trial.distributions.items()}
    squares = np.zeros((len(own), len(earlier)))
    for name, distribution in distributions.items():
        mine, theirs = (_scale(distribution, [trial.params.get(name) for trial in some]) for some in (own, earlier))
        difference = np.subtract.outer(mine, theirs)
        if isinstance(distribution, CategoricalDistribution):
            difference = np.where(np.isnan(difference), difference, difference != 0)
        absent = np.not_equal.outer(np.isnan(mine), np.isnan(theirs))  # a conditional parameter of one of the two
        squares += np.where(np.isnan(difference), absent, difference**2)
    return squares


def _scale(distribution: BaseDistribution, values: Sequence[object]) -> NDArray[np.float64]:
    """Return `values` scaled to the unit interval, choices as indices, and NaN for None."""
    internal = np.array([np.nan if value is None else distribution.to_internal_repr(value) for value in values], float)
    if isinstance(distribution, CategoricalDistribution):
        return internal
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high = float(distribution.low), float(distribution.high)
    if distribution.log:
        internal, low, high = np.log(internal), np.log(low), np.log(high)
    return np.asarray((internal - low) / max(high - low, 1e-12), dtype=np.float64)
