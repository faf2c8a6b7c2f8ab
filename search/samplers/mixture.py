"""A mixture of TPE, changes to the best trial so far, draws near the user's defaults, and random draws.

Few trials teach TPE little. Then it pays to change some parameters of the best trial, and to try values near those
that the user wrote (Mallik et al. 2023, arXiv 2306.12370). The shares and widths were chosen on recorded trainings of
others: see docs/development/search-quality.md.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from searchlight.search.errors import UsageError, suggest_nearest
from searchlight.search.samplers.belief import draw_near
from searchlight.search.samplers.predicted_ends import predict_ends
from searchlight.search.samplers.tpe import (
    INFEASIBLE,
    RUNNING,
    DrawValue,
    FastTPESampler,
    TrialTable,
    compute_log_density,
)
from searchlight.search.space.search_space import Space
from searchlight.trainables.trust import Trust

LOCAL = 0.6  # share of proposals that start from the best trial or from the defaults, and not from TPE
NEAR_DEFAULTS = 0.3  # share of those that start from the defaults
FIRST_NEAR_DEFAULTS = 0.5  # share of the first proposals, as long as TPE would draw at random
CANDIDATES = 4  # changes of the best trial and draws near the defaults, of which one is proposed
FEWEST = 5  # trials with a value, before one of them counts as the best
STEPS = (0.03, 0.3)  # the smallest and the largest standard deviation of a change, as shares of a range
WIDTHS: dict[Trust, float] = {"low": 0.5, "medium": 0.25, "high": 0.1}  # standard deviations around a default
KEPT: dict[Trust, float] = {"low": 0.25, "medium": 0.5, "high": 0.75}  # share of draws that take the default choice

Params = Mapping[str, Any]


class Belief(NamedTuple):
    """The default of a parameter, and how much the user trusts that good values are near it."""

    center: Any
    trust: Trust


def build_beliefs(space: Space, given: Mapping[str, Trust]) -> dict[str, Belief]:
    """Return the beliefs in the defaults of `space`. Those in `given` replace what the parameters declare.

    Raises:
        UsageError: `given` names no searched parameter.
    """
    searched, defaults = {parameter.name: parameter for parameter in space.parameters}, space.get_defaults()
    if unknown := [name for name in given if name not in searched]:
        raise UsageError(
            *(f"--trust must name a searched parameter, but got {n!r}. {suggest_nearest(n, searched)}" for n in unknown)
        )
    return {name: Belief(value, given.get(name, searched[name].trust)) for name, value in defaults.items()}


class MixtureSampler(FastTPESampler):
    """TPE, mixed with changes to the best trial and draws near the defaults. With several objectives, TPE alone.

    Of CANDIDATES changes and draws, it proposes the one that TPE expects most from.

    Args:
        seed: Of the trial's random numbers.
        table: The trials of the study, as the sampler of another trial has left them.
        beliefs: By parameter. A parameter without one is drawn at random near the defaults of the others.
    """

    def __init__(self, seed: int, table: TrialTable | None = None, beliefs: Mapping[str, Belief] | None = None) -> None:
        super().__init__(seed, table)
        self._beliefs = {name: belief for name, belief in (beliefs or {}).items() if belief.trust != "none"}

    def _choose_proposal(self, study: Study, trial: FrozenTrial) -> DrawValue:
        by_tpe = super()._choose_proposal(study, trial)
        draw_random = partial(self._random_sampler.sample_independent, study, trial)
        near_defaults = partial(self._draw_near_default, draw_random) if self._beliefs else draw_random
        if len(study.directions) > 1:
            return by_tpe
        random, has_learned = self._rng.rng, self._has_learned(study, trial.number)
        if not has_learned and random.random() < FIRST_NEAR_DEFAULTS:
            return near_defaults
        if random.random() >= LOCAL:
            return by_tpe
        others = [other for other in self._list_feasible() if 0 <= other.number != trial.number]
        best = find_best(others, study.directions[0])
        if best is None:
            return near_defaults
        known = {name: found for other in others for name, found in other.distributions.items()}
        candidates = [
            {name: near_defaults(name, known[name]) for name in self._beliefs if name in known}
            if self._beliefs and random.random() < NEAR_DEFAULTS
            else self._change_some(best.params, known)
            for _ in range(CANDIDATES if has_learned else 1)
        ]
        chosen = self._choose_candidate(study, candidates, known) if has_learned else candidates[0]
        return lambda name, distribution: chosen[name] if name in chosen else draw_random(name, distribution)

    def _list_feasible(self) -> list[FrozenTrial]:
        """Return the trials that have ended with a result or are running."""
        groups = self._table.groups[: len(self._table.trials)]
        return [
            self._table.trials[index] for index in np.flatnonzero((groups < INFEASIBLE) | (groups == RUNNING)).tolist()
        ]

    def _choose_candidate(
        self, study: Study, candidates: Sequence[Params], known: Mapping[str, BaseDistribution]
    ) -> Params:
        """Return the candidate with the largest ratio of the densities of good trials and of others."""
        gains = np.zeros(len(candidates))
        for name, distribution in known.items():
            having = [index for index, candidate in enumerate(candidates) if name in candidate]
            if having and not distribution.single():
                values = np.array([distribution.to_internal_repr(candidates[index][name]) for index in having])
                good, others = (
                    compute_log_density(density, name, values) for density in self._estimate(study, name, distribution)
                )
                gains[having] += good - others
        return candidates[int(gains.argmax())]

    def _draw_near_default(self, draw_random: DrawValue, name: str, distribution: BaseDistribution) -> Any:
        belief = self._beliefs.get(name)
        if belief is None:
            return draw_random(name, distribution)
        if isinstance(distribution, CategoricalDistribution):
            keeps = self._rng.rng.random() < KEPT[belief.trust]
            return belief.center if keeps else draw_random(name, distribution)
        return draw_near(self._rng.rng, belief.center, WIDTHS[belief.trust], name, distribution)

    def _change_some(self, params: Params, known: Mapping[str, BaseDistribution]) -> Params:
        """Return `params` with a random number of them changed, by steps of a random size."""
        random = self._rng.rng
        names = [name for name in params if not known[name].single()]
        changed = random.permutation(names)[: random.randint(1, len(names) + 1)].tolist() if names else []
        step = math.exp(random.uniform(math.log(STEPS[0]), math.log(STEPS[1])))
        drawn = dict(params)
        for name in changed:
            distribution = known[name]
            if isinstance(distribution, CategoricalDistribution):
                others = [choice for choice in distribution.choices if choice != params[name]]
                drawn[name] = others[random.randint(len(others))]
            else:
                drawn[name] = draw_near(random, params[name], step, name, distribution)
        return drawn


def find_best(trials: Sequence[FrozenTrial], direction: StudyDirection) -> FrozenTrial | None:
    """Return the trial with the best predicted end, or None if fewer than FEWEST have a value at a rung."""
    rungs = {
        max(trial.intermediate_values)
        for trial in trials
        if trial.state != TrialState.RUNNING and trial.intermediate_values
    }
    ends = predict_ends({trial.number: trial.intermediate_values for trial in trials}, sorted(rungs))
    if len(ends) < FEWEST:
        return None
    sign = -1 if direction == StudyDirection.MAXIMIZE else 1
    best = min(ends, key=lambda number: (sign * ends[number], number))
    return next(trial for trial in trials if trial.number == best)
