"""Comparison of the regrets of two sides: ratio of final values, wins over seeds, time, and uncertainty.

The regrets of a side are an array of shape (seeds, moments). Both sides have the same seeds in the same order, so that
rows are paired by seed.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import wilcoxon

Array = NDArray[np.float64]
RESAMPLES = 1000
LEVEL = 0.95
FLOOR = 1e-3  # of the range of a problem's values: regrets below it are equally good


class Pair(NamedTuple):
    """The regrets of a side and its peer on one problem, each (..., seeds, moments), as shares of the range of values.

    Results have the shape of the axes before the last two: one number for one pair, and one for each resample.
    """

    ours: Array
    theirs: Array

    @property
    def finals(self) -> tuple[Array, Array]:
        """The final regrets of both sides, FLOOR at least, (..., seeds)."""
        return np.maximum(self.ours[..., -1], FLOOR), np.maximum(self.theirs[..., -1], FLOOR)


class Measure(NamedTuple):
    """A function for each problem, and one for several, of an array whose last axis is the problems."""

    of_problem: Callable[[Pair], Array]
    of_problems: Callable[[Array], Array]

    def compute(self, pairs: Sequence[Pair]) -> float:
        return float(self.of_problems(np.array([self.of_problem(pair) for pair in pairs])))


class Interval(NamedTuple):
    """An estimate with its bootstrap intervals: over seeds alone, and over seeds and problems."""

    value: float
    seeds: tuple[float, float]
    both: tuple[float, float]


def get_time_to(target: Array | float, regrets: Array) -> Array:
    """Return the share of the budget after which the median stays at most `target`, or infinity."""
    median = np.median(regrets, axis=-2)
    moments = median.shape[-1]
    above = median > np.asarray(target)[..., None]
    first = np.where(above.any(-1), moments - above[..., ::-1].argmax(-1), 0)
    return np.where(first < moments, (first + 1) / moments, np.inf)


def get_relative_time(pair: Pair) -> Array:
    """Return the time to the peer's final median, as a share of the peer's own time to it."""
    target = np.median(pair.theirs[..., -1], axis=-1)
    return get_time_to(target, pair.ours) / get_time_to(target, pair.theirs)


def get_final_ratio(pair: Pair) -> Array:
    """Return the ratio of the final medians."""
    ours, theirs = (np.median(finals, axis=-1) for finals in pair.finals)
    ratio: Array = ours / theirs
    return ratio


def get_single_ratio(pair: Pair) -> Array:
    """Return the geometric mean over seeds of the ratios of final values, which few seeds disturb less."""
    ours, theirs = pair.finals
    return _compute_geometric_mean(ours / theirs)


def get_win_share(pair: Pair) -> Array:
    """Return the share of seeds in which the side ends lower. Ties count half."""
    ours, theirs = pair.finals
    share: Array = ((ours < theirs) + 0.5 * (ours == theirs)).mean(-1)
    return share


def count_wins(pair: Pair) -> tuple[int, int, int]:
    """Return the numbers of seeds of a single pair in which the side ends lower than, equal to and above its peer."""
    ours, theirs = pair.finals
    return int((ours < theirs).sum()), int((ours == theirs).sum()), int((ours > theirs).sum())


def _compute_geometric_mean(values: Array) -> Array:
    mean: Array = np.exp(np.log(values).mean(-1))
    return mean


def _choose_upper_median(values: Array) -> Array:
    """Return the upper median, since the mean of the two middle values is infinite if one is."""
    middle: Array = np.sort(values, axis=-1)[..., values.shape[-1] // 2]
    return middle


MEASURES = {
    "single_ratio": Measure(get_single_ratio, _compute_geometric_mean),
    "final_ratio": Measure(get_final_ratio, _compute_geometric_mean),
    "wins": Measure(get_win_share, lambda shares: shares.mean(-1)),
    "time": Measure(get_relative_time, _choose_upper_median),
}


class Choice(NamedTuple):
    """A choice of a side on some problems, and the geometric means of all sides' ratios on those and on the others."""

    chosen: int
    on_these: Array
    on_others: Array


def choose_side(ratios: Array, these: Array) -> Choice:
    """Choose the side with the lowest geometric mean.

    Args:
        ratios: (sides, problems).
        these: Whether the choice is based on a problem, (problems,).
    """
    on_these, on_others = (_compute_geometric_mean(ratios[:, among]) for among in (these, ~these))
    return Choice(int(on_these.argmin()), on_these, on_others)


def choose_on_halves(ratios: Array, halves: int = RESAMPLES) -> list[Choice]:
    """Return the choices on random halves of the problems. `ratios` is (sides, problems)."""
    draw, problems = np.random.default_rng(0), ratios.shape[1]
    return [choose_side(ratios, draw.permutation(problems) < problems // 2) for _ in range(halves)]


def bootstrap(measure: Measure, pairs: Sequence[Pair], resamples: int = RESAMPLES) -> Interval:
    """Return `measure` of `pairs` with its intervals at LEVEL, by percentiles.

    Seeds are drawn within each problem, the same for both sides. For the second interval, problems are drawn too.
    """
    draw = np.random.default_rng(0)
    found = []
    for pair in pairs:
        seeds = len(pair.ours)
        rows = draw.integers(seeds, size=(resamples, seeds))
        found.append(measure.of_problem(Pair(pair.ours[rows], pair.theirs[rows])))
    by_problem = np.array(found)  # (problems, resamples)
    size = (resamples, len(pairs))
    drawn = by_problem[draw.integers(len(pairs), size=size), draw.integers(resamples, size=size)]
    seeds_alone, both = measure.of_problems(by_problem.T), measure.of_problems(drawn)
    return Interval(measure.compute(pairs), _get_percentiles(seeds_alone), _get_percentiles(both))


def _get_percentiles(values: Array) -> tuple[float, float]:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(values, (tail, 1 - tail), method="nearest")  # interpolation could give infinity
    return float(low), float(high)


def get_p_value(pair: Pair) -> float:
    """Return the p of no difference in the final regret, paired by seed: Wilcoxon's signed-rank test, two-sided."""
    ours, theirs = pair.finals
    return float(wilcoxon(ours, theirs).pvalue) if (ours != theirs).any() else 1.0


def correct_by_holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values corrected by Holm's step-down method, in the given order."""
    corrected, highest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = highest
    return corrected
