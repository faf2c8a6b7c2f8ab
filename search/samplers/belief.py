"""What a user believes about a parameter while the search runs: it fades, and results may contradict it."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from searchlight.search.private_api import SearchSpaceTransform
from searchlight.search.samplers.predicted_ends import predict_ends

SHARE = 0.5  # of the first proposals after the command that have a value near the center
HALVED = 10  # trials after which half of this share is left
WIDTH = 0.1  # standard deviation of these values around the center, as a share of the range
NEAR = 0.2  # values that are compared with all others: two standard deviations
FEWEST = 4  # trials near the center, and others, to compare
DOUBT = 0.01  # largest probability of such results if values near the center were as good as others


class RunningBelief(NamedTuple):
    """The belief that good values of a parameter are near `center`, held since the trial of number `since`."""

    center: Any
    since: int

    def compute_share(self, number: int) -> float:
        """Return the share of proposals for trial `number` that have a value near the center."""
        return float(SHARE * 0.5 ** (max(0, number - self.since) / HALVED))

    def build_test(self, distribution: BaseDistribution) -> Callable[[Any], bool]:
        """Return a function that returns whether a value of the distribution is near the center."""
        if isinstance(distribution, CategoricalDistribution):
            return lambda value: bool(value == self.center)
        assert isinstance(distribution, FloatDistribution | IntDistribution)
        ((low, high),) = SearchSpaceTransform({"": distribution}).bounds
        scale = math.log if distribution.log else float
        center, width = scale(self.center), NEAR * (high - low)
        return lambda value: bool(abs(scale(value) - center) <= width)


Beliefs = Mapping[str, Sequence[RunningBelief]]  # by parameter, of which good values may be near several centers


def choose_centers(beliefs: Beliefs, number: int, random: np.random.RandomState) -> dict[str, Any]:
    """Return the centers near which trial `number` has values, by parameter, without those that it draws as ever."""
    chosen = dict[str, Any]()
    for name, held in beliefs.items():
        shares = np.array([belief.compute_share(number) for belief in held])
        # The share is that of the newest belief, so that more centers leave as much to the sampler.
        ends = shares.cumsum() / (shares.sum() or 1.0) * shares.max()  # shares fade to 0
        if (index := int(np.searchsorted(ends, random.random(), side="right"))) < len(held):
            chosen[name] = held[index].center
    return chosen


def draw_near(
    random: np.random.RandomState, center: Any, width: float, name: str, distribution: BaseDistribution
) -> Any:
    """Draw from a normal distribution that is truncated to the range, on its scale. `width` is a share of it."""
    transform = SearchSpaceTransform({name: distribution}, transform_0_1=True)
    place = transform.transform({name: center})
    while not 0 <= (drawn := random.normal(place[0], width)) <= 1:
        pass
    place[0] = drawn
    return transform.untransform(place)[name]


def find_contradiction(
    name: str, belief: RunningBelief, trials: Sequence[FrozenTrial], losses: Mapping[int, float]
) -> str:
    """Return why results contradict a belief, or "" if they do not.

    They do if trials with a value near its center are worse than others by the test of Mann and Whitney. A trial
    that diverged, or had no result, is worse than all others.

    Args:
        trials: As samplers see them.
        losses: What `compute_losses` returns for these trials.
    """
    near, others = list[float](), list[float]()
    build_test = functools.cache(belief.build_test)  # one for most searches, which may have thousands of trials
    for trial in trials:
        if name in trial.params and trial.number in losses:
            is_near = build_test(trial.distributions[name])
            (near if is_near(trial.params[name]) else others).append(losses[trial.number])
    if min(len(near), len(others)) < FEWEST:
        return ""
    from scipy.stats import mannwhitneyu  # half a second, which --help does not need

    doubt = float(mannwhitneyu(near, others, alternative="greater").pvalue)
    if not doubt < DOUBT:
        return ""
    return f"{len(near)} trials near {name}={belief.center} are worse than {len(others)} others, p = {doubt:.1g}"


def compute_losses(trials: Sequence[FrozenTrial], direction: StudyDirection) -> Mapping[int, float]:
    """Return the predicted end of each trial by number, less is better, and infinity for one without an end.

    Trials that have not ended and wait at no rung are left out, and those of earlier searches.
    """
    states = TrialState.COMPLETE, TrialState.PRUNED
    trials = [trial for trial in trials if trial.state in states and trial.number >= 0]
    curves = {
        trial.number: trial.intermediate_values
        for trial in trials
        if not any(value > 0 for value in trial.constraints.values())
    }
    ends = predict_ends(curves, sorted({max(curve) for curve in curves.values() if curve}))
    sign = -1.0 if direction == StudyDirection.MAXIMIZE else 1.0
    losses = {number: sign * end for number, end in ends.items()}
    return dict.fromkeys((trial.number for trial in trials), math.inf) | losses
