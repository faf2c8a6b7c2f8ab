"""A sampler that suggests no config twice, unless all configs were tried."""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from searchlight.search.space.search_space import Parameter, Space, list_values

FIXED = "fixed_params"  # the system attribute of a trial that holds its enqueued values
CLOSE = 1e-10  # relative difference of floats that may be equal except for rounding
DRAWN = 4  # draws from the sampler, before an untried config is chosen at random
DRAWN_OF_ALLOWED = 40  # the same where not every config is allowed
DRAWN_AT_RANDOM = 1000  # uniform draws for one that is allowed


class DistinctSampler(BaseSampler):
    """A wrapper of a sampler that draws again if a suggestion was tried before or is being tried.

    A search is deterministic: the same values would give the same result. To measure the spread between seeds, search
    over `seed`. All values of a trial are drawn at once, so that whole configs can be compared.

    Args:
        allows: Whether a config may be suggested, or None if all may. Enqueued values may in any case.
    """

    def __init__(
        self, sampler: BaseSampler, space: Space, allows: Callable[[dict[str, Any]], bool] | None = None
    ) -> None:
        self.sampler = sampler
        self.space = space
        self.allows = allows

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {parameter.name: parameter.distribution for parameter in self.space.parameters}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        others = study.get_trials(deepcopy=False)  # enqueued ones have no parameters yet
        tried = [params for other in others if (params := other.params) and other.number != trial.number]
        enqueued = trial.system_attrs.get(FIXED, {})
        allows = self.allows if self.allows is not None and not enqueued else None
        for _ in range(DRAWN if allows is None else DRAWN_OF_ALLOWED):
            values = self._draw(self.sampler, study, trial)
            if not _is_tried(values, tried) and (allows is None or allows(values)):
                return values
        fixed, combinations = build_key(enqueued), self.space.list_combinations() or []
        keys = {build_key(values): values for values in combinations if allows is None or allows(values)}
        own = [other.params for other in others if 0 <= other.number != trial.number]
        for known in (tried, own):  # if earlier searches have tried all that is left, it is tried again
            known_keys = {build_key(params) for params in known if params}
            if left := [combination for key, combination in keys.items() if key not in known_keys and fixed <= key]:
                return random.Random(trial.number).choice(left)
        sampler = RandomSampler(seed=trial.number)
        for _ in range(1 if allows is None else DRAWN_AT_RANDOM):
            values = self._draw(sampler, study, trial)
            if allows is None or allows(values):
                break
        return values

    def sample_independent(self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: Any) -> Any:
        return self.sampler.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self.sampler.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        self.sampler.after_trial(study, trial, state, values)

    def _draw(self, sampler: BaseSampler, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        """Draw the values of all parameters that apply, by the same calls that Optuna makes."""
        known = sampler.infer_relative_search_space(study, trial)
        values = sampler.sample_relative(study, trial, known) | trial.system_attrs.get(FIXED, {})

        def draw_value(parameter: Parameter) -> Any:
            if parameter.name in values:
                return values[parameter.name]
            if parameter.distribution.single():
                return list_values(parameter.distribution)[0]
            return sampler.sample_independent(study, trial, parameter.name, parameter.distribution)

        return self.space.choose(draw_value)


def _is_tried(values: dict[str, Any], tried: Sequence[dict[str, Any]]) -> bool:
    """Return whether one of `tried` has the same key as `values`. A float tells most of them apart in one pass."""
    if name := next((name for name in values if isinstance(values[name], float)), None):
        value = values[name]
        low, high = value - CLOSE * abs(value), value + CLOSE * abs(value)
        tried = [params for params in tried if isinstance(params.get(name), float) and low <= params[name] <= high]
    return any(_is_duplicate(values, params) for params in tried)


def _is_duplicate(values: dict[str, Any], others: dict[str, Any]) -> bool:
    """Return whether both have the same key. Keys are slow, so they are built for nearly equal values only."""
    nearly = values.keys() == others.keys() and all(_is_nearly_equal(values[name], others[name]) for name in values)
    return nearly and build_key(values) == build_key(others)


def _is_nearly_equal(value: Any, other: Any) -> bool:
    both_float = isinstance(value, float) and isinstance(other, float)
    return math.isclose(value, other, rel_tol=CLOSE) if both_float else bool(value == other)


def build_key(values: dict[str, Any]) -> frozenset[tuple[str, Any]]:
    """Return a key that is equal for values that differ by rounding only, such as sums of steps of 0.1."""
    return frozenset((name, f"{value:.12g}" if isinstance(value, float) else value) for name, value in values.items())
