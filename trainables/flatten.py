"""Conversion between nested values and values by dotted name."""

import functools
from collections.abc import Mapping
from typing import Any


def flatten(values: Mapping[str, Any], separator: str = ".") -> dict[str, Any]:
    """Return nested values by dotted name, or with another `separator` between the names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}{separator}{inner}": leaf for inner, leaf in flatten(value, separator).items()}
        else:
            flat[str(name)] = value
    return flat


def get_nested(values: Mapping[str, Any], name: str) -> Any:
    """Return the item of nested `values` at the dotted `name`."""
    return functools.reduce(lambda inner, part: inner[part], name.split("."), values)


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted name as nested dicts."""
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *path, last = name.split(".")
        inner = nested
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return nested
