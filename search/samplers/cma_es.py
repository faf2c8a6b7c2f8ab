"""Optuna's CMA-ES, but its optimizer is computed from the trials of the study at each proposal.

Optuna keeps the optimizer in the study, as a pickle. Whoever may write the study could run code in the driver.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna import Study
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import CmaEsSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from searchlight.search.private_api import SearchSpaceTransform, set_system_attr

GENERATION = "cma:generation"  # Optuna's name of the generation that a trial was drawn from


class ReplayedCmaEsSampler(CmaEsSampler):
    """CMA-ES that proposes one trial, and stores nothing but the trial's generation.

    It proposes what Optuna's CMA-ES proposes if trials run one by one. Otherwise, the optimizer learns from the present
    values of the trials. Optuna's keeps the values that it first saw, even if a trial continues or fails later.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed, warn_independent_sampling=False)
        self._random = np.random.RandomState(seed)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return values of the numeric parameters that all completed trials have. Return none before there are any."""
        from cmaes import CMA  # imports SciPy, which takes half a second

        completed = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if not completed or not search_space:
            return {}
        generations = _group_by_generation(completed, search_space)
        if not any(generation > 0 for generation in generations):
            self._random.randint(1, 2**31 - 2)  # Optuna draws the seed of a new optimizer here, and then replaces it

        transform = SearchSpaceTransform(search_space, transform_0_1=True)
        size = len(transform.bounds)
        optimizer = CMA(np.full(size, 0.5), sigma=1 / 6, bounds=transform.bounds, n_max_resampling=10 * size)
        sign = 1 if study.direction == StudyDirection.MINIMIZE else -1
        while len(drawn := generations[optimizer.generation]) >= optimizer.population_size:
            told = drawn[: optimizer.population_size]
            optimizer.tell([(transform.transform(each.params), sign * each.values[0]) for each in told])

        optimizer.reseed_rng(self._random.randint(1, 2**16) + trial.number)
        values: NDArray[np.float64] = optimizer.ask()
        set_system_attr(study, trial, GENERATION, optimizer.generation)
        return dict(transform.untransform(values))


def _group_by_generation(
    trials: Sequence[FrozenTrial], search_space: Mapping[str, BaseDistribution]
) -> defaultdict[int, list[FrozenTrial]]:
    """Return the trials that CMA-ES has drawn, by generation. Leave out what it cannot have drawn."""
    generations = defaultdict[int, list[FrozenTrial]](list)
    for trial in trials:
        generation = trial.system_attrs.get(GENERATION)
        if type(generation) is int and not math.isnan(trial.values[0]) and _is_within(trial.params, search_space):
            generations[generation].append(trial)
    return generations


def _is_within(params: Mapping[str, Any], search_space: Mapping[str, BaseDistribution]) -> bool:
    """Return whether `params` has a value for each numeric parameter of `search_space`, in its range."""
    return (
        all(
            isinstance(each, FloatDistribution | IntDistribution) and each.low <= params[name] <= each.high
            for name, each in search_space.items()
            if name in params
        )
        and search_space.keys() <= params.keys()
    )
