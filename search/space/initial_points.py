"""The first points of a search: the task's defaults, then those of the user."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from searchlight.search.errors import UsageError, format_validation_errors, suggest_nearest
from searchlight.search.formatting import pluralize
from searchlight.search.space.search_space import Space


def initial_points(space: Space, given: Sequence[Mapping[str, Any]], trials: int) -> list[dict[str, Any]]:
    """Return the task's defaults and the points in `given`, without duplicates.

    A parameter that a point omits has the task's default if the searched range contains it. Otherwise, the sampler
    chooses it.

    Raises:
        UsageError: Points are invalid. The message has a line for each problem.
    """
    defaults, problems = space.get_defaults(), list[str]()
    points = [defaults] if defaults else []
    for named in given:
        try:
            point = parse_named_point(space, named)
            points += [point] if point not in points else []
        except UsageError as error:
            problems.extend(f"--try {problem}" for problem in error.problems)
    if not problems and given and len(points) > trials:
        wanted = describe_points(space, points)
        problems.append(
            f"--trials must be at least {len(points)} for {wanted}, but got {trials}. Raise it or leave out a --try."
        )
    if problems:
        raise UsageError(*problems)
    return points


def describe_points(space: Space, points: Sequence[Mapping[str, Any]]) -> str:
    """Return e.g. "the task's defaults and 2 points to try", or "2 points to try" of a task without defaults."""
    has_defaults = bool(space.get_defaults())
    return (
        ("the task's defaults and " if has_defaults else "")
        + pluralize(len(points) - has_defaults, "point")
        + " to try"
    )


def zip_points(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return points that have all `values` together. A parameter with fewer of them repeats its last one."""
    longest = max(map(len, values.values()), default=0)
    return [{name: each[min(n, len(each) - 1)] for name, each in values.items()} for n in range(longest)]


def parse_beliefs(space: Space, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values to believe in by parameter: one, a list of several different ones, or None for no value.

    Args:
        told: The same. A text may have several values, separated by commas.

    Raises:
        UsageError: They are not values of trials. The message has a line for each problem.
    """
    lists = {name: value.split(",") if isinstance(value, str) else list_believed(value) for name, value in told.items()}
    given = {name: values for name, values in lists.items() if values}
    found = {name: list[Any]() for name in told}
    for point in zip_points(given):
        parsed = parse_named_point(space, point)
        for name in given:
            found[name] += [parsed[name]] if parsed[name] not in found[name] else []
    return {name: values if len(values) > 1 else (values or [None])[0] for name, values in found.items()}


def list_believed(told: Any) -> list[Any]:
    """Return the values of what `parse_beliefs` returns for a parameter."""
    return told if isinstance(told, list) else [] if told is None else [told]


def parse_named_point(space: Space, named: Mapping[str, Any]) -> dict[str, Any]:
    searched, constants = {parameter.name: parameter for parameter in space.parameters}, space.fixed_values()
    values, problems = dict[str, Any](), list[str]()
    for name, text in named.items():
        if name in constants:
            problems.append(
                f"{name} must be searched, but it is fixed to {constants[name]}. Leave it out of the point."
            )
            continue
        if name not in searched:
            problems.append(
                f"{name} must name a parameter, but there is no {name!r}. {suggest_nearest(name, searched)}"
            )
            continue
        try:
            values[name] = space.value_parser(name)(text)
            if not searched[name].contains(values[name]):
                problems.append(f"{name} must lie in the searched range, {searched[name]}, but got {text}.")
        except UsageError as error:
            problems.extend(error.problems)
    if problems:
        raise UsageError(*problems)
    point = space.parse_point(values)
    known = {**constants, **point}
    for name in (name for name in values if name not in point):
        parent, wanted = next((p, v) for p, v in searched[name].when.items() if known.get(p) not in v)
        told = " or ".join(str(value) for value in wanted)
        raise UsageError(f"{name} must come with {parent}={told}, but got {parent}={known.get(parent, 'none')}.")
    try:
        space.build_config(point)
    except ValidationError as error:
        told = ",".join(f"{name}={value}" for name, value in named.items())
        raise UsageError(
            *(f"{told} must be what the task takes: {line}" for line in format_validation_errors(error))
        ) from error
    return point
