"""Perturbation of the hyperparameters of a good trial: the explore step of Jaderberg et al. 2017."""

import math
import random
from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from searchlight.search.space.search_space import Parameter, Space

RESAMPLED = 0.25  # probability of resampling a value
FACTOR = 0.2  # a number is multiplied by 0.8 or 1.2


def perturb(space: Space, values: Mapping[str, Any], draw: random.Random) -> dict[str, Any]:
    """Return a neighbor of each value in `values` that applies. Parameters without a value are sampled."""

    def perturb_value(parameter: Parameter) -> Any:
        if parameter.name not in values or draw.random() < RESAMPLED:
            return resample(parameter.distribution, draw)
        return neighbor(parameter.distribution, values[parameter.name], draw)

    return space.choose(perturb_value)


def neighbor(distribution: BaseDistribution, value: Any, draw: random.Random) -> Any:
    """Return `value` moved one step up or down at random. At a bound, the step goes the other way."""
    first = draw.choice((-1, 1))
    moved = step_value(distribution, value, first)
    return moved if moved != value else step_value(distribution, value, -first)


def step_value(distribution: BaseDistribution, value: Any, direction: int) -> Any:
    if isinstance(distribution, CategoricalDistribution):
        index = distribution.choices.index(value) + direction
        return distribution.choices[min(max(index, 0), len(distribution.choices) - 1)]
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high = distribution.low, distribution.high
    moved = value + direction * (FACTOR * abs(value) or (high - low) / 10)
    if distribution.step is not None:
        steps, before = (round((number - low) / distribution.step) for number in (moved, value))
        moved = low + (steps if steps != before else before + direction) * distribution.step
    return min(max(moved, low), high)


def resample(distribution: BaseDistribution, draw: random.Random) -> Any:
    if isinstance(distribution, CategoricalDistribution):
        return draw.choice(distribution.choices)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high = distribution.low, distribution.high
    if distribution.log:
        value = math.exp(draw.uniform(math.log(low), math.log(high)))
        return min(max(round(value) if isinstance(distribution, IntDistribution) else value, low), high)
    if distribution.step is not None:
        value = low + draw.randint(0, round((high - low) / distribution.step)) * distribution.step
        return min(value, high)  # 0.1 + 2 * 0.1 is above 0.3
    return draw.uniform(low, high)
