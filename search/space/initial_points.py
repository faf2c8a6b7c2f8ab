"""The first points of a search: the task's defaults, then those of the user."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from searchlight.search.errors import UsageError, format_validation_errors, suggest_nearest
from searchlight.search.formatting import pluralize
from searchlight.search.space.search_space import Space
from searchlight.search.space.space_parsing import COMMA


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


def parse_beliefs(space: Space, told: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the different values that a user believes in, by parameter.

    Args:
        told: A value by parameter, or a list of them, or a text with several values between commas.

    Raises:
        UsageError: They are not values of searched parameters. The message has a line for each problem.
    """
    found, problems = dict[str, list[Any]](), list[str]()
    for name, value in told.items():
        values = value if isinstance(value, list) else _split_values(space, name, value)
        if not values:
            problems.append(f"{name} must have a value, but has none.")
        for each in values:
            try:
                parsed = _parse_value(space, name, each)
                found.setdefault(name, []).extend([parsed] if parsed not in found.get(name, []) else [])
            except UsageError as error:
                problems.extend(problem for problem in error.problems if problem not in problems)
    if problems:
        raise UsageError(*problems)
    return found


def _split_values(space: Space, name: str, value: Any) -> list[Any]:
    """Return the values between commas, but a choice that has commas itself, such as [64,64], as one value."""
    try:
        _parse_value(space, name, value)
    except UsageError:
        return [part.strip() for part in COMMA.split(value)] if isinstance(value, str) else [value]
    return [value]


def _parse_value(space: Space, name: str, text: Any) -> Any:
    """Return the value of a searched parameter.

    Raises:
        UsageError: The parameter is not searched, or its range does not contain the value.
    """
    searched, constants = {parameter.name: parameter for parameter in space.parameters}, space.fixed_values()
    if name in constants:
        raise UsageError(f"{name} must be searched, but it is fixed to {constants[name]}. Leave it out.")
    if name not in searched:
        raise UsageError(f"{name} must name a parameter, but there is no {name!r}. {suggest_nearest(name, searched)}")
    value = space.value_parser(name)(text)
    if not searched[name].contains(value):
        raise UsageError(f"{name} must lie in the searched range, {searched[name]}, but got {text}.")
    return value


def parse_named_point(space: Space, named: Mapping[str, Any]) -> dict[str, Any]:
    searched, constants = {parameter.name: parameter for parameter in space.parameters}, space.fixed_values()
    values, problems = dict[str, Any](), list[str]()
    for name, text in named.items():
        try:
            values[name] = _parse_value(space, name, text)
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
