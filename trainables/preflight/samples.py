"""The samples of a micro-batch: to split it, to multiply it, and to tell samples apart by their digests."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Indices = Sequence[int]
SHORTEST = 3  # numbers of a row that tell it from others


def count_samples(batch: Any) -> int:
    """Return the length of the first tensor, array or list in `batch`, or 0 if there is none."""
    for part in _leaves(batch):
        return len(part)
    return 0


def select(batch: Any, indices: Indices) -> Any:
    """Return the samples of `batch` at `indices`.

    A part of another length than the first one belongs to no sample and stays as it is.

    Raises:
        TypeError: The batch is made of something that cannot be split.
    """
    count = count_samples(batch)
    return _map(batch, lambda part: _take(part, indices) if len(part) == count else part)


def count_in_second_dimension(batch: Any) -> int:
    """Return the size of the second dimension of the first tensor or array in `batch` that has one, else 0."""
    return next((part.shape[1] for part in _leaves(batch) if _is_leaf(part) and part.ndim > 1), 0)


def select_in_second_dimension(batch: Any, indices: Indices) -> Any:
    """Return the samples of `batch` at `indices` if samples are in the second dimension, after the time.

    A part whose first dimension has as many, such as one label for each sample, is split there.
    """
    count = count_in_second_dimension(batch)

    def take(part: Any) -> Any:
        if _is_leaf(part) and part.ndim > 1 and part.shape[1] == count:
            return _take(part.swapaxes(0, 1), indices).swapaxes(0, 1)
        return _take(part, indices) if len(part) == count else part

    return _map(batch, take)


def join(first: Any, second: Any) -> Any:
    """Return the samples of two micro-batches as one.

    Raises:
        TypeError: They are made of something that cannot be joined.
        RuntimeError, ValueError: Their parts differ in shape.
    """
    counts = count_samples(first), count_samples(second)

    def join_parts(one: Any, two: Any) -> Any:
        if isinstance(one, dict) and one.keys() == two.keys():
            return {key: join_parts(one[key], two[key]) for key in one}
        if isinstance(one, tuple | list) and type(one) is type(two) and any(_has_tensor(part) for part in one):
            items = [join_parts(*parts) for parts in zip(one, two, strict=True)]
            return type(one)(*items) if hasattr(one, "_fields") else type(one)(items)
        if isinstance(one, Tensor | np.ndarray | list) and (len(one), len(two)) == counts:
            if isinstance(one, list):
                return one + two
            return torch.cat([one, two]) if isinstance(one, Tensor) else np.concatenate([one, two])
        if isinstance(one, int | float | str | None) and one == two:
            return one
        raise TypeError(f"two parts of micro-batches must be alike to be joined, but got {type(one)} and {type(two)}")

    return join_parts(first, second)


def digest_samples(value: Any) -> list[str]:
    """Return a digest of each sample in `value`: a batch, or the arguments of a module."""
    leaves = list(_leaves(value))
    if not leaves:
        return []
    count = len(leaves[0])
    rows = [_row_bytes(leaf) for leaf in leaves if len(leaf) == count]
    return [hashlib.blake2b(b"|".join(parts), digest_size=12).hexdigest() for parts in zip(*rows, strict=True)]


def digest_parts(value: Any) -> Iterator[str]:
    """Yield a digest of each row of each tensor in `value` that is long enough to tell samples apart."""
    for leaf in _leaves(value):
        if isinstance(leaf, Tensor | np.ndarray) and leaf.ndim > 1:
            for row in _row_bytes(leaf) if _row_length(leaf) >= SHORTEST else ():
                yield hashlib.blake2b(row, digest_size=12).hexdigest()


def _row_length(leaf: Any) -> int:
    return int(np.prod(leaf.shape[1:]))


def _row_bytes(leaf: Any) -> list[bytes]:
    if isinstance(leaf, Tensor):
        array = leaf.detach().cpu()
        leaf = (array.float() if array.is_floating_point() else array).numpy()
    if isinstance(leaf, np.ndarray):
        rows = leaf.astype(np.float32) if leaf.dtype.kind == "f" else leaf  # as a batch is moved to the device
        return [str(rows.shape[1:]).encode() + np.ascontiguousarray(row).tobytes() for row in rows]
    return [_item_bytes(item) for item in leaf]


def _item_bytes(item: Any) -> bytes:
    if isinstance(item, Tensor):
        return str(tuple(item.shape)).encode() + item.detach().cpu().float().numpy().tobytes()
    return repr(item).encode()


def _is_leaf(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray) and value.ndim > 0


def _leaves(value: Any) -> Iterator[Any]:
    if _is_leaf(value):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, tuple) or (isinstance(value, list) and any(_has_tensor(item) for item in value)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, list) and value:
        yield value


def _has_tensor(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray | dict | tuple | list)


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    if _is_leaf(value):
        return change(value)
    if isinstance(value, dict):
        return {key: _map(item, change) for key, item in value.items()}
    if isinstance(value, tuple):
        items = [_map(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [_map(item, change) for item in value] if any(_has_tensor(item) for item in value) else change(value)
    if value is None or isinstance(value, int | float | str | bool | Tensor | np.ndarray):
        return value
    raise TypeError(f"a micro-batch must be made of tensors, arrays, tuples, lists and dicts, but has {type(value)}")


def _take(part: Any, indices: Indices) -> Any:
    if isinstance(part, Tensor):
        return part[torch.as_tensor(indices, device=part.device)]
    if isinstance(part, np.ndarray):
        return part[np.asarray(indices)]
    return [part[index] for index in indices]
