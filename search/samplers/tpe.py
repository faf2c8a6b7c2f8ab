"""Optuna's TPE, but it reads a trial only when it has changed, and compares candidates faster."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna import Study
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import TPESampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from searchlight.search.private_api import (
    ParzenEstimator,
    default_gamma,
    default_gamma_multiobjective,
    get_mixture,
    split_trials,
)
from searchlight.search.samplers.belief import WIDTH, Beliefs, choose_centers, draw_near
from searchlight.search.samplers.earlier import select_trials

DrawValue = Callable[[str, BaseDistribution], Any]  # draws the value of a parameter

COMPLETE, PRUNED, INFEASIBLE, RUNNING, OTHER = range(5)  # in the order in which TPE prefers them; it ignores OTHER


class TrialTable:
    """The parameters of a study's trials and their order as arrays, kept from one suggestion to the next.

    Most trials do not change between two suggestions. A trial that changes is another object.

    Attributes:
        numbers: The numbers of the trials.
        groups: COMPLETE, PRUNED, INFEASIBLE, RUNNING or OTHER, of each trial.
    """

    def __init__(self) -> None:
        self.trials: Sequence[FrozenTrial] = []
        self.numbers: NDArray[np.int64] = np.empty(0, np.int64)
        self.groups: NDArray[np.int64] = np.empty(0, np.int64)
        self._scores: NDArray[np.float64] = np.empty((0, 2))  # less is better, the first column counts first
        self._values: dict[str, NDArray[np.float64]] = {}  # Optuna's internal representation, NaN if absent

    def update(self, trials: Sequence[FrozenTrial], direction: StudyDirection) -> None:
        """Read the trials that have changed. `direction` is that of the first objective."""
        if len(trials) > len(self.numbers):
            more = 2 * len(trials) - len(self.numbers)  # so that most suggestions copy no array
            self.numbers = np.append(self.numbers, np.zeros(more, int))
            self.groups = np.append(self.groups, np.zeros(more, int))
            self._scores = np.append(self._scores, np.zeros((more, 2)), axis=0)
            self._values = {name: np.append(values, np.full(more, np.nan)) for name, values in self._values.items()}
        known = len(self.trials)
        for index, trial in enumerate(trials):
            if index >= known or trial is not self.trials[index]:
                self._read(index, trial, -1 if direction == StudyDirection.MAXIMIZE else 1)
        self.trials = trials

    def _read(self, index: int, trial: FrozenTrial, sign: int) -> None:
        self.numbers[index] = trial.number
        self.groups[index], first, second = _rank(trial, sign)
        self._scores[index] = first, second
        for values in self._values.values():
            values[index] = np.nan
        for name, value in trial.params.items():
            if name not in self._values:
                self._values[name] = np.full(len(self.numbers), np.nan)
            distribution = trial.distributions[name]
            is_choice = isinstance(distribution, CategoricalDistribution)
            self._values[name][index] = distribution.to_internal_repr(value) if is_choice else value

    def sort(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return `indices` of trials as TPE sorts them with one objective, the best first."""
        first, second = self._scores[indices].T
        return indices[np.lexsort((second, first, self.groups[indices]))]

    def get_values(self, name: str, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the values of parameter `name`, of the trials at `indices` that have it."""
        values = self._values[name][indices] if name in self._values else np.empty(0)
        return values[~np.isnan(values)]


def _rank(trial: FrozenTrial, sign: int) -> tuple[int, float, float]:
    """Return the group of a trial and its two scores in the group, as `split_trials` of Optuna compares them.

    Args:
        trial: The trial.
        sign: 1 if less is better, else -1.
    """
    if trial.state == TrialState.RUNNING:
        return RUNNING, 0.0, 0.0
    if trial.state not in (TrialState.COMPLETE, TrialState.PRUNED):
        return OTHER, 0.0, 0.0
    if (violation := sum(value for value in trial.constraints.values() if value > 0)) > 0:
        return INFEASIBLE, violation, 0.0
    if trial.state == TrialState.COMPLETE:
        return COMPLETE, sign * trial.values[0], 0.0
    if not trial.intermediate_values:
        return PRUNED, 1.0, 0.0
    step, value = max(trial.intermediate_values.items())
    return PRUNED, -step, np.inf if np.isnan(value) else sign * value


class FastTPESampler(TPESampler):
    """TPE that proposes one trial, each parameter independently, as Optuna's TPE does.

    Optuna's TPE reads the study and splits off the good trials again for every parameter. This sampler is created for
    one trial, and no other thread writes to the study while it samples. It differs from Optuna's only if the study has
    trials of earlier searches, see `searchlight.search.samplers.earlier`, or if the user believes in values.

    Args:
        seed: Of the trial's random numbers.
        table: The trials of the study, as the sampler of another trial has left them.

    Attributes:
        running_beliefs: What commands to the running search say, by parameter. They come before all else.
    """

    def __init__(self, seed: int, table: TrialTable | None = None) -> None:
        super().__init__(seed=seed, multivariate=False, constant_liar=True)
        self.running_beliefs: Beliefs = {}
        self._table = table or TrialTable()
        self._split: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        self._draw_value: DrawValue | None = None

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        self._draw_value = None  # a proposal begins
        return super().infer_relative_search_space(study, trial)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        if self._draw_value is None:
            self._draw_value = self._follow_beliefs(self._choose_proposal(study, trial), trial.number)
        return self._draw_value(param_name, param_distribution)

    def _choose_proposal(self, study: Study, trial: FrozenTrial) -> DrawValue:
        """Return the function that draws the value of each parameter of this proposal."""
        if not self._has_learned(study, trial.number):
            return partial(self._random_sampler.sample_independent, study, trial)
        return lambda name, distribution: self._sample(study, trial, {name: distribution})[name]

    def _follow_beliefs(self, draw_value: DrawValue, number: int) -> DrawValue:
        """Return a function that draws some values near what commands say, and the others by `draw_value`."""
        random = self._rng.rng
        centers = choose_centers(self.running_beliefs, number, random)

        def draw_believed(name: str, distribution: BaseDistribution) -> Any:
            if name not in centers:
                return draw_value(name, distribution)
            is_choice = isinstance(distribution, CategoricalDistribution)
            return centers[name] if is_choice else draw_near(random, centers[name], WIDTH, name, distribution)

        return draw_believed if centers else draw_value

    def _has_learned(self, study: Study, number: int) -> bool:
        """Split the trials that trial `number` learns from. Return False if there are too few."""
        if self._split is None:
            self._table.update(study.get_trials(deepcopy=False), study.directions[0])
            indices = self._select_indices(number)
            ended = int((self._table.groups[indices] < RUNNING).sum())
            if ended < self._n_startup_trials:
                return False
            self._split = self._split_indices(study, indices, ended)
        return True

    def _select_indices(self, number: int) -> NDArray[np.int64]:
        """Return the indices of the trials that trial `number` learns from."""
        table, count = self._table, len(self._table.trials)
        indices = np.flatnonzero((table.groups[:count] < OTHER) & (table.numbers[:count] != number))
        own = indices[table.numbers[indices] >= 0]
        if len(own) < len(indices):
            learned = select_trials([table.trials[index] for index in indices.tolist()], number)
            return own if len(learned) == len(own) else indices
        return indices

    def _split_indices(
        self, study: Study, indices: NDArray[np.int64], ended: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the indices of the good trials and those of the others."""
        if len(study.directions) == 1:
            good = self._table.sort(indices)[: default_gamma(ended)]
            good = np.sort(good[self._table.groups[good] < RUNNING])
        else:
            chosen = [self._table.trials[index] for index in indices]
            split_off, _ = split_trials(study, chosen, default_gamma_multiobjective(ended))
            good = indices[np.isin(self._table.numbers[indices], [trial.number for trial in split_off])]
        return good, np.setdiff1d(indices, good, assume_unique=True)

    def _sample(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> dict[str, Any]:
        ((name, distribution),) = search_space.items()
        of_good, of_others = self._estimate(study, name, distribution)
        samples = of_good.sample(self._rng.rng, self._n_ei_candidates)
        candidates, inverse = np.unique(samples[name], return_inverse=True)  # few for integers and choices
        gains = compute_log_density(of_good, name, candidates) - compute_log_density(of_others, name, candidates)
        chosen = self._compare(samples, gains[inverse])
        return {name: distribution.to_external_repr(chosen[name])}

    def _estimate(
        self, study: Study, name: str, distribution: BaseDistribution
    ) -> tuple[ParzenEstimator, ParzenEstimator]:
        """Return the densities of a parameter among the good trials and among the others."""
        assert self._split is not None
        good, others = (self._table.get_values(name, indices) for indices in self._split)
        space, parameters = {name: distribution}, self._parzen_estimator_parameters
        weights = np.ones(len(good)) if len(study.directions) > 1 else None
        of_good = ParzenEstimator({name: good}, space, parameters, weights)
        return of_good, ParzenEstimator({name: others}, space, parameters)


def compute_log_density(estimator: ParzenEstimator, name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the logarithm of the density of `estimator` but for a summand.

    Optuna adds up logarithms, since the densities of many parameters together may be too small. The density of one
    parameter is not, because of the prior's kernel. Choices often have equal densities, which must not be rounded in
    another way than Optuna's.

    Args:
        estimator: The estimator of the parameter `name` alone.
        name: The name of the parameter.
        values: The values in Optuna's internal representation.
    """
    from scipy.special import ndtr  # half a second, which --help does not need

    weights, (kernels,) = get_mixture(estimator)
    if not hasattr(kernels, "mu"):
        return np.asarray(estimator.log_pdf({name: values}))
    mu, sigma, scale = kernels.mu, kernels.sigma, np.log if kernels.is_log else np.asarray
    weights = weights / (ndtr((kernels.adapted_high - mu) / sigma) - ndtr((kernels.adapted_low - mu) / sigma))
    if kernels.step:
        low, high = (scale(values + side * kernels.step / 2)[:, None] for side in (-1, 1))
        densities = ndtr((high - mu) / sigma) - ndtr((low - mu) / sigma)
    else:
        distances = (scale(values)[:, None] - mu) / sigma
        densities, weights = np.exp(-0.5 * distances * distances), weights / sigma
    return np.asarray(np.log(np.einsum("ij,j->i", densities, weights)))  # starts no threads, unlike a product
