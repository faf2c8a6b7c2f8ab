"""What the regrets of two sides say: ratio of the ends, wins over seeds, time, and how sure that is.

Regrets of a side are an array of shape (seeds, moments). Both sides have the same seeds in the same order, so that
pairs of rows are of one seed.
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
    """The regrets of a side and of its peer on one problem, each (seeds, moments), as shares of the range of values."""

    ours: Array
    theirs: Array


class Interval(NamedTuple):
    """An estimate with its bootstrap intervals: over seeds alone, and over seeds and problems."""

    value: float
    seeds: tuple[float, float]
    both: tuple[float, float]


def get_time_to(target: float, regrets: Array) -> float:
    """Return the share of the budget after which the median stays at most `target`, infinite if it never does."""
    median = np.median(regrets, axis=0)
    above = np.flatnonzero(median > target)
    first = above[-1] + 1 if len(above) else 0
    return float(first + 1) / len(median) if first < len(median) else float("inf")


def get_relative_time(pair: Pair) -> float:
    """Return the time to the peer's final median, as a share of the time that the peer takes for it."""
    target = float(np.median(pair.theirs[:, -1]))
    return get_time_to(target, pair.ours) / get_time_to(target, pair.theirs)


def get_final_ratio(pair: Pair) -> float:
    """Return the ratio of the final medians. Both count as FLOOR at least."""
    ours, theirs = (max(float(np.median(regrets[:, -1])), FLOOR) for regrets in pair)
    return ours / theirs


def count_wins(pair: Pair) -> tuple[int, int, int]:
    """Return in how many seeds the side ends lower than its peer, equal, and higher."""
    ours, theirs = pair.ours[:, -1], pair.theirs[:, -1]
    return int((ours < theirs).sum()), int((ours == theirs).sum()), int((ours > theirs).sum())


def get_win_share(pair: Pair) -> float:
    """Return the share of seeds in which the side ends lower. An equal end counts half."""
    wins, ties, losses = count_wins(pair)
    return (wins + ties / 2) / (wins + ties + losses)


def average_ratios(pairs: Sequence[Pair]) -> float:
    """Return the geometric mean over problems of the ratio of final medians."""
    return float(np.exp(np.mean(np.log([get_final_ratio(pair) for pair in pairs]))))


def average_win_shares(pairs: Sequence[Pair]) -> float:
    """Return the mean over problems of the share of seeds that are won."""
    return float(np.mean([get_win_share(pair) for pair in pairs]))


def average_times(pairs: Sequence[Pair]) -> float:
    """Return the median over problems of the relative time. Of an even number of problems, the higher middle one.

    A mean with an infinite time would be infinite.
    """
    times = sorted(get_relative_time(pair) for pair in pairs)
    return times[len(times) // 2]


def bootstrap(statistic: Callable[[Sequence[Pair]], float], pairs: Sequence[Pair], resamples: int) -> Interval:
    """Return `statistic` of `pairs` with its intervals at LEVEL, by percentiles.

    Seeds are drawn within each problem, the same for both sides. Problems are drawn with their seeds drawn anew.
    """
    draw = np.random.default_rng(0)

    def resample(pair: Pair) -> Pair:
        rows = draw.integers(len(pair.ours), size=len(pair.ours))
        return Pair(pair.ours[rows], pair.theirs[rows])

    seeds = [statistic([resample(pair) for pair in pairs]) for _ in range(resamples)]
    both = [
        statistic([resample(pairs[number]) for number in draw.integers(len(pairs), size=len(pairs))])
        for _ in range(resamples)
    ]
    return Interval(statistic(pairs), _get_middle(seeds), _get_middle(both))


def _get_middle(values: Sequence[float]) -> tuple[float, float]:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(values, (tail, 1 - tail), method="nearest")  # between two of them may lie infinity
    return float(low), float(high)


def get_p_value(pair: Pair) -> float:
    """Return the p of no difference in the final regret, paired by seed: Wilcoxon's signed-rank test, two-sided."""
    ours, theirs = pair.ours[:, -1], pair.theirs[:, -1]
    return float(wilcoxon(ours, theirs).pvalue) if (ours != theirs).any() else 1.0


def correct_by_holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values corrected by Holm's step-down method, in the given order."""
    corrected, highest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = highest
    return corrected
