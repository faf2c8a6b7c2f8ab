"""Grouping of micro-batches into windows, and their transfer to the device."""

import copy
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor

Batch = TypeVar("Batch")


def windows(batches: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    """Yield `batches` in lists of `size`. The last list may be shorter.

    A batch is read only when its window is requested, so an endless iterable is possible.

    Raises:
        ValueError: `size` is below 1.
    """
    if size < 1:
        raise ValueError(f"window size must be at least 1, but got {size}.")
    iterator = iter(batches)
    while window := list(islice(iterator, size)):
        yield window


def to_device(batch: Any, device: torch.device, keeps_fp64: bool) -> Any:
    """Move every tensor in the dicts, lists and tuples of `batch` to `device`. Return other objects unchanged.

    An object with a `to` method, such as a packed sequence or a batch of tokens, moves itself. fp64, the default of
    numpy, becomes fp32 unless `keeps_fp64` is set.
    """
    if isinstance(batch, Tensor):
        if batch.dtype is torch.float64 and not keeps_fp64:
            batch = batch.float()
        return batch if batch.device == device else batch.to(device, non_blocking=True)
    if type(batch) in (tuple, list) and _is_all_on_device(batch, device):
        return batch
    if type(batch) is dict:
        if _is_all_on_device(batch.values(), device):
            return batch
        return {key: to_device(value, device, keeps_fp64) for key, value in batch.items()}
    if callable(getattr(batch, "to", None)):
        return batch.to(device)
    if isinstance(batch, dict):
        moved = copy.copy(batch)  # keeps the type
        moved.update((key, to_device(value, device, keeps_fp64)) for key, value in batch.items())
        return moved
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # a named tuple takes fields, not an iterable
        return type(batch)(*(to_device(value, device, keeps_fp64) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)([to_device(value, device, keeps_fp64) for value in batch])
    return batch


def _is_all_on_device(parts: Iterable[Any], device: torch.device) -> bool:
    """Return whether nothing needs to move. On a CPU this is the usual case, and cheaper than a copy of the batch."""
    for part in parts:  # noqa: SIM110 - a generator would cost more than the copies
        if type(part) is not Tensor or part.device != device or part.dtype is torch.float64:
            return False
    return True
