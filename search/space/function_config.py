"""The search space of a Ray Train function, which the user names, since a function declares none."""

import contextlib
import math
import re
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from searchlight.search.errors import UsageError
from searchlight.search.formatting import join_words
from searchlight.search.option import read_yaml
from searchlight.search.space.search_space import Space
from searchlight.search.space.space_parsing import COMMA, NO_DEFAULT
from searchlight.trainables.flatten import nest

# What is read as YAML. In any other text, it would drop comments, anchors, marks and line breaks.
YAML = re.compile(r"(?i:true|false|null)|~|'.*'|\".*\"|\[(?s:.*)\]")
IDENTIFIER = re.compile(r"[^\W\d_]\w*")


class FunctionConfig(BaseModel):
    """The parameters of one trial of a function: the named ones and a seed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())

    seed: int = Field(0, ge=0, lt=2**31)


def build_function_config(
    fixed: Iterable[str], searched: Mapping[str, str], defaults: Mapping[str, Any] | None = None
) -> type[FunctionConfig]:
    """Return a config class with the named parameters. A range with two integer bounds is of type int.

    Args:
        defaults: Values of parameters that have a default.
    """
    known = defaults or {}
    fields: dict[str, tuple[Any, Any]] = {name: (Any, None) for name in fixed}
    fields |= {
        name: (_infer_type(text), known[name] if name in known else Field(None, json_schema_extra=NO_DEFAULT))
        for name, text in searched.items()
    }
    if "epochs" in fields:
        fields["epochs"] = (int, Field(known.get("epochs"), ge=1))
    fields.pop("seed", None)
    return _build_model("Config", FunctionConfig, nest(fields))


def parse_fixed_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fixed values, with the types that YAML gives them."""
    return {name: _parse_value(value, list, str) for name, value in values.items()}


def parse_defaults(space: Space, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of `texts` for the searched parameters, or {} unless each has one in its range."""
    values = _read_defaults(space, texts)
    return values if len(values) == len(space.parameters) else {}


def explain_no_defaults(space: Space, texts: Mapping[str, str]) -> str:
    """Return why `parse_defaults` gives none."""
    values = _read_defaults(space, texts)
    others = [parameter.name for parameter in space.parameters if parameter.name not in values]
    unknown = [name for name in others if not texts.get(name)]
    outside = [f"{name} is {texts[name]}, which is none of the searched values" for name in others if texts.get(name)]
    known = [f"the program's own value of {join_words(unknown)} is not known"] if unknown else []
    return f"the defaults are neither tried nor compared: {', and '.join([*known, *outside])}"


def _read_defaults(space: Space, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of `texts` that the searched parameters can have, by name."""
    values: dict[str, Any] = {}
    for parameter in space.parameters:
        text = texts.get(parameter.name, "")
        with contextlib.suppress(UsageError):  # it is of another type
            value = space.value_parser(parameter.name)("null" if text == "None" else text)
            if parameter.name in texts and parameter.contains(value):
                values[parameter.name] = value
    return values


def _build_model(name: str, base: type[Any], fields: Mapping[str, Any]) -> type[Any]:
    own = {key: field for key, field in fields.items() if not isinstance(field, dict)}
    groups = {key: _build_model(key, _Group, inner) for key, inner in fields.items() if isinstance(inner, dict)}
    own |= {key: (group, Field(default_factory=group)) for key, group in groups.items()}
    return create_model(name, __base__=base, **own)


class _Group(BaseModel):
    model_config = FunctionConfig.model_config


def check_parameter_names(flags: Mapping[str, str], part: re.Pattern[str] = IDENTIFIER) -> list[str]:
    """Return a line for each parameter in `flags`, options by the parameter's name, that no function can have.

    `part` is what the parts of a dotted name must match.
    """
    problems = []
    for name, flag in flags.items():
        parts = name.split(".")
        if not all(map(part.fullmatch, parts)):
            problems.append(f"{flag} {name} must be a parameter's name, like lr or model.depth. Rename it.")
        elif kept := [kept for kept in parts if hasattr(BaseModel, kept)]:
            problems.append(f"{flag} {name} must not be a name that pydantic keeps, but got {kept[0]!r}. Rename it.")
        elif clash := [other for other in flags if other.startswith(f"{name}.")]:
            problems.append(f"{flag} {name} must be a value or a group of them, but there is {clash[0]} too.")
    return problems


def _infer_type(text: str) -> Any:
    """Return the type of the values in the search space `text`: int or float for a range, else the type of choices."""
    body, *options = text.split(":")
    low, dots, high = body.partition("..")
    steps = [option.removeprefix("step=") for option in options if option.startswith("step=")]
    numbers = [_parse_value(number) for number in (low, high, *steps)]
    if dots and all(type(number) is int for number in numbers):
        return int
    if dots and all(isinstance(number, int | float) for number in numbers):
        return float
    choices = [_parse_value(choice.strip(), str) for choice in COMMA.split(text)]
    texts = [choice for choice in choices if isinstance(choice, str)]  # a trial gets them without their quotes
    return Annotated[Any, BeforeValidator(lambda choice: choice if choice in texts else _parse_value(choice, str))]


def _parse_value(value: Any, *kinds: type[Any]) -> Any:
    """Return a text as a number, a boolean, null, or one of `kinds` in quotes or brackets, else unchanged.

    YAML itself parses 1e-3 as text and 12:30 as a number.
    """
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            number = kind(value)
        except ValueError:
            continue
        if math.isfinite(number):
            return number
    if not YAML.fullmatch(value):
        return value
    try:
        read = read_yaml(value)
    except yaml.YAMLError:
        return value
    return read if isinstance(read, (bool, NoneType, *kinds)) else value
