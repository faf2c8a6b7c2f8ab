"""Declares the options of a search as fields of a model, and parses their values."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveFloat
from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True)
class Option:
    """An option of a search, as a field of `SearchConfig` declares it."""

    key: str  # in search.yaml
    default: Any
    help: str
    group: str  # the heading in --help and in docs/options.md
    metavar: str  # empty for a flag, and for a key that is no option of the command line
    resumable: bool  # whether --resume may override the option
    schedulers: tuple[str, ...]  # those that know the option; empty for all

    @property
    def name(self) -> str:
        return option_name(self.key)

    @property
    def is_on_command_line(self) -> bool:
        return self.metavar != "" or self.default is False


class Options(BaseModel):
    """The options that one package uses: each field declares an option of the command line and a key of YAML files."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
        populate_by_name=True,
        arbitrary_types_allowed=True,
    )

    def find_problems(self) -> Iterator[str]:
        """Yield a line for each contradiction between these options. A subclass adds its own to those of `super()`."""
        yield from ()


class Choice:
    """The annotation of a text that must be a key of `table`."""

    def __init__(self, table: Iterable[str]) -> None:
        self._names = list(table)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.literal_schema(self._names)


def option(
    group: str,
    default: Any,
    metavar: str,
    help: str,
    resumable: bool = False,
    schedulers: tuple[str, ...] = (),
    **constraints: Any,
) -> Any:
    """Return a pydantic field that declares an `Option`. `constraints` are further arguments of `pydantic.Field`."""
    if schedulers:
        help += f" Only with --scheduler {', '.join(schedulers)}."
    if isinstance(default, list | tuple | dict):
        help += " Can be repeated."
    elif default not in ("", None, ...) and not isinstance(default, bool):
        help += f" Default: {default}."
    extra: Any = {"group": group, "metavar": metavar, "resumable": resumable, "schedulers": schedulers}
    return Field(default, description=help, json_schema_extra=extra, **constraints)


def list_options(model: type[BaseModel]) -> list[Option]:
    """Return the options that the fields of `model` declare, in their order."""
    return [
        Option(field.alias or name, field.default, field.description or "", **cast(Any, field.json_schema_extra))
        for name, field in model.model_fields.items()
    ]


def option_name(key: str) -> str:
    """Return the command-line option of the key `key`."""
    return "--" + {"resources": "resource"}.get(key, key).rstrip("_").replace("_", "-")


def parse_duration(value: Any) -> Any:
    """Return the seconds of "90s", "30m", "2h" or "1d". Return a value that is not a text unchanged."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d+\.?\d*)\s*([smhd]?)", value.strip())
    if match is None:
        raise ValueError(f"must be like 90s, 30m or 2h, but got {value!r}")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]


def wrap_in_list(value: Any) -> Any:
    """Return a single value as a list of one, and an empty text as an empty list. Return a list unchanged."""
    return value if isinstance(value, list | tuple) else [value] if value != "" else []


YAML_BOOLEAN = "tag:yaml.org,2002:bool"


class YamlLoader(yaml.SafeLoader):
    """Reads YAML 1.2. PyYAML follows version 1.1, in which the choice "no" of a parameter is False."""


YamlLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != YAML_BOOLEAN]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
YamlLoader.add_implicit_resolver(YAML_BOOLEAN, re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def read_yaml(text: str) -> Any:
    """Parse `text` as YAML 1.2.

    Raises:
        yaml.YAMLError: It is not YAML.
    """
    return yaml.load(text, YamlLoader)


Count = Annotated[int, Field(ge=1, le=10**9)]
Duration = Annotated[PositiveFloat | None, BeforeValidator(parse_duration)]


REPLACED = {  # options of older versions, and what to use instead
    "--price-per-hour": "the hours of --preflight, times the price",
    "--mode": "--objective METRIC:min or METRIC:max",
    "--log-model": "--register MODEL, or log the model after the search: report NAME --log-model",
}
RETIRED_KEYS = {"memory_growth", "cold", "price_per_hour", "log_model", "mode"}  # older search.yaml files have them


def find_retired_keys(values: Mapping[str, Any]) -> list[str]:
    """Return the set keys of an older search.yaml that no option of this version stands for."""
    lost = ["price_per_hour", "log_model", *(() if values.get("objective") else ("mode",))]
    return [key for key in lost if values.get(key)]


def translate_retired_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` of an older search.yaml or study by the keys of this version."""
    current = {key: value for key, value in values.items() if key not in RETIRED_KEYS}
    if values.get("command"):
        current |= {"cold": bool(values.get("cold"))}
    elif values.get("cold"):
        current.setdefault("recycle_after", 1)
    objectives = wrap_in_list(current.get("objective") or [])
    if values.get("mode") and objectives and not str(objectives[0]).endswith((":min", ":max")):
        current["objective"] = [f"{objectives[0]}:{values['mode']}", *objectives[1:]]
    return current


def find_pair_problems(texts: Sequence[str], option: str = "", example: str = "name=value") -> Iterator[str]:
    """Yield a line for each text that is not like NAME=VALUE, and for each name that is given different values.

    Args:
        texts: What was given.
        option: What the lines name, e.g. --set, or empty for arguments.
        example: A text of the right form.
    """
    by_name: dict[str, list[str]] = {}
    for text in dict.fromkeys(texts):
        if text.find("=") < 1:
            yield f"{option or 'a value'} must be like {example}, but got {text!r}."
        else:
            by_name.setdefault(text.partition("=")[0], []).append(text)
    for name, same in by_name.items():
        if len(same) > 1:
            yield f"{option} {name}".lstrip() + f" must be given once, but got {' and '.join(same)}."
