"""Parsing of the range or the choices of a parameter, from text or from its field."""

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from searchlight.search.errors import UsageError, format_validation_errors

NUMBER = r"([-+]?[\d.]+(?:[eE][-+]?\d+)?)"
RANGE = re.compile(rf"[\[(]?\s*{NUMBER}\s*[:,-]\s*{NUMBER}\s*[\])]?(:log)?")  # which other tools take for one
# As in Python code, e.g. tune.loguniform(0.1, 1).
FUNCTION = re.compile(rf"(?:\w+\.)*(?P<log>q?log_?)?(?:uniform|float|range)\({NUMBER},\s*{NUMBER}\)", re.IGNORECASE)
COMMA = re.compile(r",(?![^\[\]()]*[\])])")  # but none within a list like [64,64]

NO_DEFAULT: dict[str, Any] = {"has_default": False}  # the schema of a field whose default, None, nobody has chosen


def get_declaration(field: FieldInfo) -> dict[str, Any] | None:
    extra = field.json_schema_extra
    space = extra.get("search") if isinstance(extra, dict) else None
    return space if isinstance(space, dict) else None


def get_conditions(field: FieldInfo) -> dict[str, Sequence[Any]]:
    return dict((get_declaration(field) or {}).get("when") or {})


def build_distribution(declared: Mapping[str, Any], field: FieldInfo) -> BaseDistribution:
    if "choices" in declared:
        return CategoricalDistribution(declared["choices"])
    low, high, log, step = declared["low"], declared["high"], declared["log"], declared["step"]
    if int in _get_types(field):
        return IntDistribution(int(low), int(high), log=log, step=int(step or 1))
    return FloatDistribution(low, high, log=log, step=step)


def parse_distribution(name: str, text: str, field: FieldInfo) -> BaseDistribution:
    """Return the distribution of a range or a list of choices for `field`.

    Raises:
        UsageError: `text` is invalid for the field.
    """
    body, *options = text.split(":")
    where = f"--search {name}"
    if ".." not in body or str in _get_types(field):
        return _parse_choices(name, text, field)
    if not {int, float} & _get_types(field):
        raise UsageError(f"{where} must be a list of choices like a,b, but got {text!r}: it is not a number.")
    declared = get_declaration(field) or {}
    log, step = bool(declared.get("log", False)), None
    for option in options:
        if option in ("log", "linear"):
            log = option == "log"
        elif option.startswith("step="):
            step = option.removeprefix("step=")
        else:
            raise UsageError(f"{where} must have the options log, linear or step=..., but got {option!r}.")
    if step is not None and "log" in options:
        raise UsageError(f"{where} must have a step or a log scale, but got both in {text!r}.")
    log = log and step is None
    adapter = build_type_adapter(field)
    low, high = (validate(where, adapter, bound) for bound in body.split("..", 1))
    width = None if step is None else validate(where, TypeAdapter(int if int in _get_types(field) else float), step)
    if low is None or high is None or not low < high:
        raise UsageError(f"{where} must have low < high, but got {body}. {'Swap the bounds.' if low != high else ''}")
    if log and low <= 0:
        raise UsageError(
            f"{where} must be above 0 on a log scale, but got {body}. Raise the lower bound or say :linear."
        )
    if width is not None and not 0 < width <= (high - low) * (1 + 1e-9):
        raise UsageError(f"{where} must have a step between 0 and {high - low:g}, but got {width:g}.")
    if width is not None and abs(round((high - low) / width) * width - (high - low)) > 1e-9 * (high - low):
        raise UsageError(f"{where} must have a step that leads from {low:g} to {high:g}, but got {width:g}.")
    return build_distribution({"low": low, "high": high, "log": log, "step": width}, field)


def _parse_choices(name: str, text: str, field: FieldInfo) -> BaseDistribution:
    adapter = build_type_adapter(field)
    choices = [choice.strip() for choice in COMMA.split(text)]
    try:
        values = [validate(f"--search {name}", adapter, choice) for choice in choices]
    except UsageError:
        if len(choices) == 1 and {int, float} & _get_types(field):  # e.g. 8-64, which is no range
            raise UsageError(f"--search {name} must be like 1..8 or 1,2,4, but got {text!r}.") from None
        raise
    values = [value.value if isinstance(value, Enum) else value for value in values]
    if len(set(values)) < max(2, len(values)):
        remedy = f"Fix one value with --set {name}={text}"
        if meant := RANGE.fullmatch(text):
            remedy = f"Use {name}={meant[1]}..{meant[2]}{meant[3] or ''}"
        if called := FUNCTION.fullmatch(text):
            remedy = f"Use {name}={called[2]}..{called[3]}{':log' if called['log'] else ''}"
        raise UsageError(
            f"--search {name} must be a range low..high or at least two different choices, but got {text!r}. {remedy}."
        )
    return CategoricalDistribution(values)


def build_type_adapter(field: FieldInfo) -> TypeAdapter[Any]:
    """Return the type of `field` with its bounds. An optional field parses "none" and "null" as None."""
    can_be_none = NoneType in _get_types(field)

    def read_none(value: Any) -> Any:
        return None if can_be_none and isinstance(value, str) and value.lower() in ("none", "null") else value

    typed: Any = Annotated[field.annotation, *field.metadata, BeforeValidator(read_none)]
    return TypeAdapter(typed, config=ConfigDict(allow_inf_nan=False))


def validate(label: str, adapter: TypeAdapter[Any], value: Any) -> Any:
    """Return `value` as the type of `adapter`.

    Raises:
        UsageError: It is not of that type. The message begins with `label` and has one problem, also for a union.
    """
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        problem = format_validation_errors(error)[0]
        rule = f"must {problem.split(' must ', 1)[1]}" if " must " in problem else problem
        raise UsageError(f"{label} {rule}") from error


def _get_types(field: FieldInfo) -> set[Any]:
    annotation = field.annotation
    return set(get_args(annotation)) if get_origin(annotation) in (Union, UnionType) else {annotation}
