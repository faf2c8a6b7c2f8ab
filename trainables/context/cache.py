"""A bounded cache of values that a worker keeps between trials. Values that a trial changed are dropped."""

import logging
import operator
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch

from searchlight.trainables.private_api import get_nnz, get_tensor_version

logger = logging.getLogger(__name__)
ENTRIES = 32
PLAIN = (int, float, complex, bool, type(None), type, ModuleType)  # immutable


@dataclass
class Entry:
    """A cached value, its parts, and the state of these parts when the value was cached."""

    value: Any
    sizes: dict[str, int] = field(default_factory=dict)
    tensors: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    containers: list[tuple[Collection[Any], tuple[Any, ...]]] = field(default_factory=list)
    modules: dict[str, ModuleType | None] = field(default_factory=dict)

    def has_changed(self) -> bool:
        """Return whether a tensor was written to or an item of a container was replaced."""
        return any(version != _get_version(tensor) for tensor, version in self.tensors) or any(
            not _has_items(container, items) for container, items in self.containers
        )

    def find_stale_module(self) -> str:
        """Return a module that was imported again since, and whose class an object of the value has, or ""."""
        return next((name for name, module in self.modules.items() if sys.modules.get(name) is not module), "")


class Cache:
    """A least-recently-used cache of values by name.

    Args:
        limit: Largest size of all values together on a type of device, in bytes. Default: on the CPU, half of one CPU's
            share of the memory, since a worker has one CPU. On a GPU, a fourth of what the process may use of it.
        entries: Largest number of values.

    Attributes:
        seconds: What making the values that were kept took, which later trials need not repeat.
    """

    def __init__(self, limit: int | None = None, entries: int = ENTRIES) -> None:
        self.limit = limit
        self.entries = entries
        self.seconds = 0.0
        self._kept: OrderedDict[str, Entry] = OrderedDict()

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the value cached under `name`, or call `make` and cache its result."""
        entry = self._kept.pop(name, None)
        if entry is not None:
            stale = entry.find_stale_module()
            if not stale:
                self._kept[name] = entry
                return entry.value
            logger.info(
                "the cache rebuilds %s: it holds an object of a class in %s, which is imported again for each trial. "
                "Cache its parts instead",
                name,
                stale,
            )
        start, before = time.perf_counter(), self.seconds
        entry = _build_entry(make())
        for kind, size in entry.sizes.items():
            if size > (limit := self.get_limit(kind)):
                logger.info(
                    "the cache holds %.1f GiB at most, but %s takes %.1f: it is made for each trial",
                    limit / 2**30,
                    name,
                    size / 2**30,
                )
                return entry.value
        self._kept[name] = entry
        self.seconds = before + time.perf_counter() - start  # with the values that `make` cached in turn
        while len(self._kept) > self.entries or any(self.get_size(kind) > self.get_limit(kind) for kind in entry.sizes):
            self._kept.popitem(last=False)
        return entry.value

    def drop_changed(self) -> None:
        """Drop the values that a trial has changed, so that the next trial does not see the changes."""
        for name in [name for name, entry in self._kept.items() if entry.has_changed()]:
            del self._kept[name]
            logger.info("the trial changed the cached value %s, which is rebuilt. Copy it before", name)

    def get_size(self, kind: str) -> int:
        """Return the bytes on devices of a type, "cpu" or "cuda"."""
        return sum(entry.sizes.get(kind, 0) for entry in self._kept.values())

    def get_limit(self, kind: str) -> float:
        """Return the largest size of the values on a type of device, in bytes."""
        if self.limit is not None:
            return self.limit
        if kind == "cuda":
            total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
            return total * torch.cuda.get_per_process_memory_fraction() / 4
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // (os.cpu_count() or 1) / 2


def _build_entry(value: Any) -> Entry:
    """Return an entry with `value` and all its parts. Make its arrays read-only."""
    entry = Entry(value)
    seen: set[int] = set()
    storages: set[int] = set()
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, PLAIN) or id(item) in seen:
            continue
        seen.add(id(item))
        left += _record_item(item, entry, storages)
    return entry


def _record_item(item: Any, entry: Entry, storages: set[int]) -> Iterable[Any]:
    """Add `item` to `entry` and return its parts."""
    kind = "cpu"
    size = sys.getsizeof(item)
    inside: Iterable[Any] = ()
    entry.modules.setdefault(type(item).__module__, sys.modules.get(type(item).__module__))
    if isinstance(item, torch.Tensor):
        entry.tensors.append((item, _get_version(item)))
        kind = item.device.type
        if item.layout == torch.strided:  # views share their storage
            storage = item.untyped_storage()
            size = 0 if storage.data_ptr() in storages else storage.nbytes()
            storages.add(storage.data_ptr())
        else:
            size = item.element_size() * get_nnz(item)
    elif isinstance(item, np.ndarray):
        size = item.nbytes if item.base is None else 0
        item.flags.writeable = False
        inside = [*([] if item.base is None else [item.base]), *(item.flat if item.dtype == object else [])]
    elif not isinstance(item, str | bytes):
        items = _get_items(item)
        if items is not None:
            entry.containers.append((item, items))
            inside = [*items, *(item if isinstance(item, dict) else ())]
    entry.sizes[kind] = entry.sizes.get(kind, 0) + size
    return inside


def _get_items(item: Any) -> tuple[Any, ...] | None:
    """Return the items of a container or the attributes of an object, or None if it has neither."""
    if isinstance(item, dict):
        return (*item.values(), *vars(item).values()) if hasattr(item, "__dict__") else tuple(item.values())
    if isinstance(item, list | tuple | set | frozenset):
        return tuple(item)
    return tuple(vars(item).values()) if hasattr(item, "__dict__") else None


def _has_items(container: Any, before: tuple[Any, ...]) -> bool:
    now = _get_items(container)
    return now is not None and len(now) == len(before) and all(map(operator.is_, now, before))


def _get_version(tensor: torch.Tensor) -> int:
    version: int = -1 if tensor.is_inference() else get_tensor_version(tensor)
    return version
