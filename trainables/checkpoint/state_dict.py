"""Nested states of a trial: what a checkpoint can hold of them."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from searchlight.trainables.checkpoint.file import CheckpointError


def make_plain(state: dict[str, Any]) -> dict[str, Any]:
    """Return `state` with Python numbers in the place of numpy's, so that a checkpoint of it can be loaded again.

    Schedules and optimizers have numbers of numpy if a learning rate was computed with it.

    Raises:
        CheckpointError: A part is neither a tensor nor a plain Python value.
    """
    converted: dict[str, Any] = map_parts(state, _convert_numbers)
    if not _is_plain(map_parts(converted, _leave_out_tensors)):
        refused = list[str]()

        def note(path: str, part: Any) -> Any:
            if not _is_plain(map_parts(part, _leave_out_tensors)):
                refused.append(f"{path} ({type(part).__name__})")
            return part

        map_parts(converted, note)
        raise CheckpointError(  # the last one is innermost
            f"state_dict must hold tensors and plain Python values only, but got {refused[-1]}. Convert it."
        )
    return converted


def _convert_numbers(path: str, part: Any) -> Any:
    if isinstance(part, np.generic):
        return part.item()
    if isinstance(part, dict) and any(isinstance(key, np.generic) for key in part):  # milestones of a schedule
        renamed = copy.copy(part)
        renamed.clear()
        for key, value in part.items():
            renamed[key.item() if isinstance(key, np.generic) else key] = value
        return map_parts(renamed, _convert_numbers, path)
    return part


def _leave_out_tensors(_: str, part: Any) -> Any:
    """Return None for a tensor, since a check of many large ones would take long. Other classes of tensors stay."""
    is_known = type(part) in (Tensor, nn.Parameter) or hasattr(part, "to_local")
    return None if is_known else part


def _is_plain(state: Any) -> bool:
    buffer = io.BytesIO()
    try:
        torch.save(state, buffer)
        torch.load(io.BytesIO(buffer.getbuffer()), map_location="cpu", weights_only=True)
    except (pickle.PickleError, AttributeError, TypeError):
        return False
    return True


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
