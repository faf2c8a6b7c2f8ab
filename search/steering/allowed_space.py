"""The part of a search space in which commands let a search propose trials."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import CategoricalDistribution

from searchlight.search.errors import UsageError, suggest_nearest
from searchlight.search.samplers.perturbation import resample
from searchlight.search.space.search_space import Parameter, Space
from searchlight.search.steering.region import Condition, Region, parse_region
from searchlight.search.steering.state import SteeringState, are_allowed

DRAWN = 1000  # random configs, of which some must be left by regions to avoid
FEW, FEWEST = 0.05, 0.01  # shares of the space: with fewer, a sampler may find no config that is left


def check_rest(regions: Sequence[Region], space: Space) -> list[str]:
    """Return a warning if `regions` leave little of the space.

    Raises:
        UsageError: They leave nearly nothing.
    """
    draw, combinations = random.Random(0), space.list_combinations()
    points = combinations or [space.choose(lambda p: resample(p.distribution, draw)) for _ in range(DRAWN)]
    left = sum(are_allowed(regions, point) for point in points) / len(points)
    if left < FEWEST and not (combinations and left):  # of few combinations, each one is found
        kind = "configs" if combinations else "random configs"
        raise UsageError(
            f"a region must leave some of the space, but {left:.1%} of {len(points)} {kind} are left. Leave more, or "
            "begin a search over a smaller space."
        )
    return [f"about {100 * left:.0f} % of the space is left"] if left < FEW else []


def list_regions(state: SteeringState, space: Space) -> list[Region]:
    """Return the regions in which no trial is proposed. A later range of a parameter replaces an earlier one."""
    ranges: dict[str, str] = {}
    for command in state.find("narrow"):
        ranges |= command.args["ranges"]
    regions = [parse_region_of(command.args["region"], space) for command in state.find("avoid")]
    return regions + build_regions(ranges, space)


def parse_region_of(text: str, space: Space) -> Region:
    """Return a region of the searched parameters.

    Raises:
        UsageError: The text has another form, or names no searched parameter.
    """
    try:
        return parse_region(text, lambda name, value: space.value_parser(_find(name, space).name)(value))
    except UsageError:  # of a name or a value
        raise
    except ValueError as error:
        raise UsageError(f"a region {error}.") from error


def build_regions(ranges: Mapping[str, str], space: Space) -> list[Region]:
    """Return the regions outside of `ranges`.

    Raises:
        UsageError: A range names no searched parameter, has another form, or is wider than the searched one.
    """
    regions = []
    for name, text in ranges.items():
        parameter, parse = _find(name, space), space.value_parser(name)
        if isinstance(parameter.distribution, CategoricalDistribution):
            kept = [parse(part.strip()) for part in text.split(",")]
            outside = [Condition(name, "=", c) for c in parameter.distribution.choices if c not in kept]
        else:
            low, mark, high = text.partition("..")
            if not mark:
                raise UsageError(f"a range of {name} must be like {parameter}, but got {text!r}.")
            kept = [parse(low), parse(high)]
            if not kept[0] < kept[1]:
                raise UsageError(f"a range of {name} must have low < high, but got {text!r}.")
            outside = [Condition(name, "<", kept[0]), Condition(name, ">", kept[1])]
        for value in kept:
            _check_within(parameter, value)
        regions += [Region((condition,)) for condition in outside]
    return regions


def _check_within(parameter: Parameter, value: Any) -> None:
    d = parameter.distribution
    is_inside = value in d.choices if isinstance(d, CategoricalDistribution) else d.low <= value <= d.high  # type: ignore[attr-defined]
    if not is_inside:
        raise UsageError(
            f"a range of {parameter.name} must lie in {parameter}, but got {value}: samplers compare trials of one "
            "space. Begin a wider search with --warm-start."
        )


def _find(name: str, space: Space) -> Parameter:
    parameters = {parameter.name: parameter for parameter in space.parameters}
    if name not in parameters:
        raise UsageError(f"{name} must be a searched parameter, but is not. {suggest_nearest(name, parameters)}")
    return parameters[name]
