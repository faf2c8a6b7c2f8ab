"""Checks and conversions of the values of options."""

import re
from typing import Any

from pydantic import (
    ValidationInfo,
)

from search.config.stop_condition import StopCondition
from search.errors import UsageError


def parse_duration(value: Any) -> Any:
    """ "90s", "30m", "2h", "1d" or a number of seconds."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d+\.?\d*)\s*([smhd]?)", value.strip())
    if match is None:
        raise ValueError(f"must be like 90s, 30m or 2h, but got {value!r}")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]


def parse_fidelity(value: Any, info: ValidationInfo) -> Any:
    """A number in the unit of fidelity: of seconds also "10m"."""
    return parse_duration(value) if info.data.get("fidelity") == "gpu-seconds" else value


def join_choices(value: Any) -> Any:
    """A list of choices, as YAML has it, as the command line has it: "a,b"."""
    return ",".join(str(item) for item in value) if isinstance(value, list) else value


def as_list(value: Any) -> Any:
    """One text is a list of one."""
    return ([value] if value else []) if isinstance(value, str) else value


def wrap_in_list(value: Any) -> Any:
    """One of a kind, as the list that it is in."""
    return value if isinstance(value, list) else [value]


def parse_point(value: Any) -> Any:
    """ "lr=1e-3,precision=bf16", or parameters by name."""
    if isinstance(value, dict):
        return {str(name): one for name, one in value.items()}
    parts = [part.partition("=") for part in str(value).split(",")]
    if not all(equals and name.strip() for name, equals, _ in parts):
        raise ValueError(f"must be like name=value,name=value, but got {value!r}")
    return {name.strip(): text.strip() for name, _, text in parts}


def parse_stop_condition(value: Any) -> Any:
    """ "val/score>=0.4" """
    return str(StopCondition.from_text(value)) if isinstance(value, str) and value else value


def parse_model_name(value: Any) -> Any:
    """A name that MLflow's registry takes.

    Raises:
        ValueError: It is none.
    """
    if isinstance(value, str) and not re.fullmatch(r"\w[\w.\- ]{0,199}", value):
        raise ValueError(f"must be a name of letters, digits, spaces, '.', '_' or '-', but got {value!r}")
    return value


def check_model_name(name: str | None) -> None:
    """Whether MLflow's registry takes a model of that name, if there is one.

    Raises:
        UsageError: It does not.
    """
    try:
        parse_model_name(name)
    except ValueError as error:
        raise UsageError(f"--register {error}.") from error
