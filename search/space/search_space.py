"""The search space: declared by a task's config, and overridden by the user."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from searchlight.search.errors import UsageError, format_validation_errors, suggest_nearest
from searchlight.search.space.space_parsing import (
    NO_DEFAULT,
    build_distribution,
    build_type_adapter,
    get_conditions,
    get_declaration,
    parse_distribution,
    validate,
)
from searchlight.trainables.flatten import get_nested, nest
from searchlight.trainables.trust import Trust

MANY = 10_000  # combinations above which a space counts as infinite


@dataclass(frozen=True)
class Parameter:
    """A searched parameter."""

    name: str
    distribution: BaseDistribution
    when: Mapping[str, Sequence[Any]]  # by other parameter: the values, any of which it must have
    trust: Trust = "medium"  # how near to the default good values are expected

    def is_active(self, known: Mapping[str, Any]) -> bool:
        """Return whether it is searched, given the values of other parameters in `known`."""
        return all(name in known and known[name] in values for name, values in self.when.items())

    def contains(self, value: Any) -> bool:
        """Return whether `value` can be suggested."""
        d = self.distribution
        if isinstance(d, CategoricalDistribution):
            return value in d.choices
        assert isinstance(d, FloatDistribution | IntDistribution)
        if not isinstance(value, int | float) or not d.low <= value <= d.high:
            return False
        return not d.step or abs((steps := (value - d.low) / d.step) - round(steps)) < 1e-8

    def __str__(self) -> str:
        d = self.distribution
        if isinstance(d, CategoricalDistribution):
            return ",".join(str(choice) for choice in d.choices)
        assert isinstance(d, FloatDistribution | IntDistribution)
        step = "" if d.step is None or (isinstance(d, IntDistribution) and d.step == 1) else f":step={d.step:g}"
        return f"{d.low:g}..{d.high:g}{':log' if d.log else ''}{step}"


@dataclass(frozen=True)
class Space:
    """The searched parameters, the fixed ones, and the config class that validates both."""

    config_class: type[BaseModel]
    parameters: tuple[Parameter, ...]
    fixed: Mapping[str, Any]

    def suggest(self, trial: optuna.Trial) -> dict[str, Any]:
        """Return the suggested values of all active parameters for `trial`."""
        return self.choose(lambda parameter: _suggest(trial, parameter.name, parameter.distribution))

    def choose(self, value_of: Callable[[Parameter], Any]) -> dict[str, Any]:
        """Return the result of `value_of` for each parameter that is active given those before it."""
        known, values = self.fixed_values(), dict[str, Any]()
        for parameter in self.parameters:
            if parameter.is_active(known):
                known[parameter.name] = values[parameter.name] = value_of(parameter)
        return values

    def build_config(self, values: Mapping[str, Any]) -> BaseModel:
        """Return the config of a trial with `values`.

        Raises:
            pydantic.ValidationError: The task refuses this combination.
        """
        return self.config_class.model_validate(nest({**self.fixed, **values}))

    def parse_point(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the searched parameters with the values in `given`, or else with the task's defaults.

        Omit inactive parameters, and defaults that lie outside of the searched range.
        """
        config, known = self.build_config({}).model_dump(mode="json"), self.fixed_values()
        point = {
            name: get_nested(config, name)
            for name, field in _collect_fields(self.config_class).items()
            if field.json_schema_extra != NO_DEFAULT or name in self.fixed
        } | dict(given)
        values: dict[str, Any] = {}
        for parameter in self.parameters:
            name = parameter.name
            if name in point and parameter.is_active(known) and parameter.contains(point[name]):
                known[name] = values[name] = point[name]
        return values

    def get_defaults(self) -> dict[str, Any]:
        """Return the point of the task's defaults."""
        return self.parse_point({})

    def with_defaults(self, values: Mapping[str, Any]) -> "Space":
        """Return the space with other defaults of searched parameters.

        Raises:
            UsageError: A value is no searched one.
        """
        searched = {parameter.name: parameter for parameter in self.parameters}
        parsed = {name: self.value_parser(name)(value) for name, value in values.items() if name in searched}
        problems = [
            f"defaults must be of searched parameters, but got {name}." for name in sorted({*values} - {*parsed})
        ]
        problems += [
            f"defaults must have {name} in {searched[name]}, but got {value}."
            for name, value in parsed.items()
            if not searched[name].contains(value)
        ]
        if problems:
            raise UsageError(*problems)
        return replace(self, fixed={**self.fixed, **parsed})

    def value_parser(self, name: str) -> Callable[[Any], Any]:
        """Return a function that parses a value of parameter `name`. It raises UsageError for invalid values."""
        adapter = build_type_adapter(_collect_fields(self.config_class)[name])
        return lambda value: adapter.dump_python(validate(name, adapter, value), mode="json")

    def list_combinations(self) -> list[dict[str, Any]] | None:
        """Return all combinations that `suggest` can return, or None if there are more than MANY."""
        known, found = self.fixed_values(), [dict[str, Any]()]
        for parameter in self.parameters:
            choices = list_values(parameter.distribution)
            longer = []
            for values in found:
                applies = parameter.is_active({**known, **values})
                if applies and not choices:
                    return None
                longer += [{**values, parameter.name: choice} for choice in choices] if applies else [values]
                if len(longer) > MANY:
                    return None
            found = longer
        return found

    @property
    def epochs(self) -> int | None:
        """The largest number of epochs of a trial, or None if only its function decides."""
        searched = next((p.distribution for p in self.parameters if p.name == "epochs"), None)
        if isinstance(searched, CategoricalDistribution):
            return max(choice for choice in searched.choices if isinstance(choice, int))
        if isinstance(searched, IntDistribution):
            return searched.high
        return getattr(self.build_config({}), "epochs", None)

    def fixed_values(self) -> dict[str, Any]:
        """Return the values of fields that are not searched, by dotted name. A value may be a dict."""
        config = self.build_config({}).model_dump(mode="json")
        searched = {parameter.name for parameter in self.parameters}
        return {name: get_nested(config, name) for name in _collect_fields(self.config_class) if name not in searched}


def resolve_space(config_class: type[BaseModel], fixed: Mapping[str, Any], searched: Mapping[str, str]) -> Space:
    """Return the space that `config_class` declares with `searchable`, with the user's overrides.

    Args:
        fixed: Values by dotted name. Strings are parsed as the field's type.
        searched: Ranges by dotted name: "1e-5..1e-2", "1e-5..1e-2:log", "8..64:step=8", "fp32,bf16".

    Raises:
        UsageError: Overrides are invalid. The message has a line for each problem.
    """
    fields = _collect_fields(config_class)
    problems = [
        f"{option} {name} must name a parameter, but there is no {name!r}. {suggest_nearest(name, fields)}"
        for option, named in (("--set", fixed), ("--search", searched))
        for name in named
        if name not in fields
    ]
    values, parameters = dict[str, Any](), list[Parameter]()
    for name in (name for name in fixed if name in fields):
        if name in searched:
            problems.append(f"{name} must be set or searched, but got both. Drop one of them.")
            continue
        try:
            values[name] = validate(f"--set {name}", build_type_adapter(fields[name]), fixed[name])
        except UsageError as error:
            problems.extend(error.problems)
    for name in (name for name in searched if name in fields):
        try:
            distribution = parse_distribution(name, str(searched[name]), fields[name])
            parameters.append(_build_parameter(name, distribution, fields[name]))
        except UsageError as error:
            problems.extend(error.problems)
    if problems:
        raise UsageError(*problems)
    for name, field in fields.items():
        declared = get_declaration(field)
        if declared is not None and name not in values and name not in searched:
            parameters.append(_build_parameter(name, build_distribution(declared, field), field))
    for parameter in parameters:
        for parent in (parent for parent in parameter.when if parent not in fields):
            raise UsageError(f"{parameter.name} must depend on a parameter, but there is no {parent!r}.")
    return _build_space(config_class, topological_order(parameters), values, "--set ")


def restore_space(
    config_class: type[BaseModel], distributions: Mapping[str, BaseDistribution], fixed: Mapping[str, Any]
) -> Space:
    """Return the space of an earlier search with these distributions, even if `config_class` has changed since.

    Omit values in `fixed` whose field is gone.

    Raises:
        UsageError: A searched field or choice is gone, or a value is refused. The message has a line for each problem.
    """
    fields = _collect_fields(config_class)
    gone = [
        f"the task must have the parameter {name}, which is searched, but no longer has it. "
        "Restore it, or start a search under another name."
        for name in distributions
        if name not in fields
    ]
    gone += [
        f"the task must accept {name}={','.join(refused)}, which is searched, but no longer does. "
        "Start a search under another name. --warm-start takes over the trials that fit."
        for name, searched in distributions.items()
        if name in fields and (refused := _list_refused(searched, fields[name]))
    ]
    if gone:
        raise UsageError(*gone)
    parameters = [_build_parameter(name, searched, fields[name]) for name, searched in distributions.items()]
    kept = {name: value for name, value in fixed.items() if name in fields}
    return _build_space(config_class, parameters, kept, "the search began with what the task refuses now: ")


def _build_parameter(name: str, distribution: BaseDistribution, field: FieldInfo) -> Parameter:
    declared = get_declaration(field) or {}
    return Parameter(name, distribution, get_conditions(field), declared.get("trust", "medium"))


def _list_refused(distribution: BaseDistribution, field: FieldInfo) -> list[str]:
    """Return the choices of a parameter that its field does not accept."""
    refused = []
    for choice in distribution.choices if isinstance(distribution, CategoricalDistribution) else ():
        try:
            validate("choice", build_type_adapter(field), choice)
        except UsageError:
            refused.append(str(choice))
    return refused


def _build_space(
    config_class: type[BaseModel], parameters: Sequence[Parameter], fixed: Mapping[str, Any], prefix: str
) -> Space:
    """Return the space. Raise a UsageError with `prefix` if the config class refuses the fixed values."""
    space = Space(config_class, tuple(parameters), fixed)
    try:
        space.build_config({})
    except ValidationError as error:
        raise UsageError(*format_validation_errors(error, prefix)) from error
    return space


def _collect_fields(config_class: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    """Return all fields by dotted name, including those of nested configs."""
    fields: dict[str, FieldInfo] = {}
    for name, field in config_class.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            fields.update(_collect_fields(field.annotation, f"{prefix}{name}."))
        else:
            fields[prefix + name] = field
    return fields


def list_size_fields(config_class: type[BaseModel]) -> list[str]:
    """Return the dotted names of the fields that are declared as sizes."""
    extras = {name: field.json_schema_extra for name, field in _collect_fields(config_class).items()}
    return [name for name, extra in extras.items() if isinstance(extra, dict) and extra.get("size")]


def list_values(distribution: BaseDistribution) -> list[Any]:
    """Return all values of `distribution`, or an empty list if it is continuous or has more than MANY."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high, step = distribution.low, distribution.high, distribution.step
    if distribution.single():
        return [low]
    if step is None or (steps := round((high - low) / step)) >= MANY:
        return []
    return [min(low + index * step, high) for index in range(steps + 1)]  # 0.1 + 2 * 0.1 is above 0.3


def _suggest(trial: optuna.Trial, name: str, d: BaseDistribution) -> Any:
    if isinstance(d, CategoricalDistribution):
        return trial.suggest_categorical(name, d.choices)
    if isinstance(d, IntDistribution):
        return trial.suggest_int(name, d.low, d.high, log=d.log, step=d.step)
    assert isinstance(d, FloatDistribution)
    return trial.suggest_float(name, d.low, d.high, log=d.log, step=d.step)


def topological_order(parameters: Sequence[Parameter]) -> list[Parameter]:
    """Return the parameters sorted such that each follows those that it depends on.

    Raises:
        UsageError: The dependencies have a cycle.
    """
    by_name = {parameter.name: parameter for parameter in parameters}
    sorter = TopologicalSorter({name: [p for p in by_name[name].when if p in by_name] for name in by_name})
    try:
        return [by_name[name] for name in sorter.static_order()]
    except CycleError as error:
        circle = sorted(set(error.args[1]))
        raise UsageError(f"parameters must not depend on each other in a circle, but {circle} do.") from error
