"""Nested states of a trial, as they are saved."""

import copy
from collections.abc import Callable
from typing import Any


def map_parts(value: Any, change: Callable[[str, Any], Any], key: str = "") -> Any:
    """Return `value` after `change` was applied to each part and its path."""
    changed = change(key, value)
    if changed is not value:
        return changed
    prefix = f"{key}/" if key else ""
    if isinstance(value, dict):
        copied = copy.copy(value)  # keeps the attributes of a module's state dict
        for name, part in value.items():  # one by one, since a Counter adds what it is updated with
            copied[name] = map_parts(part, change, f"{prefix}{name}")
        return copied
    if isinstance(value, list | tuple):
        parts = [map_parts(part, change, f"{prefix}{index}") for index, part in enumerate(value)]
        return (
            type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        )  # a named tuple takes them apart
    return value
