"""Micro-batches: put together to windows, and moved to the device."""

import copy
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor

Batch = TypeVar("Batch")


def windows(batches: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    """Split `batches`, of known length or not, into lists of `size`; the last one is simply shorter.

    Never looks further ahead than the window that it hands over.
    """
    if size < 1:
        raise ValueError(f"window size must be at least 1, but got {size}.")
    iterator = iter(batches)
    while window := list(islice(iterator, size)):
        yield window


def to_device(batch: Any, device: torch.device, keeps_fp64: bool) -> Any:
    """`batch` with every tensor in its dicts, lists and tuples on `device`; anything else as it is.

    What has a `to` of its own, as a packed sequence or a batch of tokens, moves itself. fp64, which arrays of numpy
    come in, becomes fp32 unless a parameter is fp64.
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
        moved = copy.copy(batch)  # of its own type
        moved.update((key, to_device(value, device, keeps_fp64)) for key, value in batch.items())
        return moved
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # a named tuple takes its fields one by one
        return type(batch)(*(to_device(value, device, keeps_fp64) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)([to_device(value, device, keeps_fp64) for value in batch])
    return batch


def _is_all_on_device(parts: Iterable[Any], device: torch.device) -> bool:
    """Whether there is nothing to be done, as there mostly is not on a CPU, where looking is cheaper than copying."""
    for part in parts:  # noqa: SIM110 - a generator would cost more than the copies
        if type(part) is not Tensor or part.device != device or part.dtype is torch.float64:
            return False
    return True
