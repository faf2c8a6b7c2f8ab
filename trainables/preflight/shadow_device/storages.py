"""The place of each tensor: which storages count as being on the GPU."""

import os
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from searchlight.trainables.private_api import (
    DisableTorchFunction,
    StorageWeakRef,
    functorch,
    get_sparse_indices,
    get_sparse_values,
    get_storage_id,
)

Place = Literal["cpu", "cuda", "any"]
SWEEP = 20_000  # tags, after which those of freed storages are dropped

FORKED = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start "
    "method"
)


class WrongDevice(RuntimeError):
    """The error that CUDA would raise, since tensors or generators are on devices that do not fit together."""


def find_place(device: Any) -> Place | None:
    """Return the place that a user names by `device`, or None for one that is neither CPU nor GPU.

    Raises:
        WrongDevice: A worker with one GPU has no such device.
    """
    if isinstance(device, int):
        device = torch.device("cuda", device)
    device = torch.device(device)
    if device.type == "cuda" and (device.index or 0) > 0:
        raise WrongDevice(f"CUDA error: invalid device ordinal: {device}, but a worker sees its own GPU as cuda:0")
    return device.type if device.type in ("cpu", "cuda") else None


class StorageTags:
    """The place of each storage.

    A storage without a tag is on the CPU. One "anywhere" was made by torch's own C++ code, which asks no mode for the
    device, e.g. the zeros of an undefined gradient. It is where the first tensor is that it meets.
    """

    def __init__(self) -> None:
        self._tags: dict[int, tuple[Any, Place]] = {}  # by address, which the weak reference keeps from being reused
        self._count = 0
        self._process = os.getpid()

    def get(self, tensor: Tensor) -> Place:
        """Return the place of `tensor`."""
        try:
            tag = self._tags.get(get_storage_id(tensor))
        except (NotImplementedError, RuntimeError):  # it has no storage of its own
            return self._get_inner(tensor)
        return self._check_process(tag[1]) if tag else "cpu"

    def get_of_storage(self, storage: Any) -> Place:
        """Return the place of `storage`."""
        tag = self._tags.get(StorageWeakRef(storage).cdata)
        return tag[1] if tag else "cpu"

    def put(self, tensor: Tensor, place: Place) -> None:
        """Declare that `tensor`, and all that shares its memory, is in `place`."""
        try:
            key = get_storage_id(tensor)
        except (NotImplementedError, RuntimeError):
            for inner in _iterate_inner(tensor):
                self.put(inner, place)
            return
        if place == "cpu":
            self._tags.pop(key, None)
            return
        with DisableTorchFunction():
            self._put_storage(tensor.untyped_storage(), place)

    def put_storage(self, storage: Any) -> None:
        """Declare that `storage` is on the GPU."""
        self._put_storage(storage, "cuda")

    def _put_storage(self, storage: Any, place: Place) -> None:
        reference = StorageWeakRef(storage)
        self._tags[reference.cdata] = (reference, self._check_process(place))
        self._count += 1
        if self._count % SWEEP == 0:
            self._tags = {key: tag for key, tag in self._tags.items() if not tag[0].expired()}

    def _check_process(self, place: Place) -> Place:
        if place == "cuda" and os.getpid() != self._process:  # e.g. a worker of a DataLoader
            raise WrongDevice(FORKED)
        return place

    def _get_inner(self, tensor: Tensor) -> Place:
        places = [self.get(inner) for inner in _iterate_inner(tensor)]
        return places[0] if places else "any"


def _iterate_inner(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors that hold the values of `tensor`, which has no storage: a sparse one, or one under vmap."""
    with DisableTorchFunction():
        if functorch.is_functorch_wrapped_tensor(tensor):
            yield functorch.get_unwrapped(tensor)
        elif tensor.layout is torch.sparse_coo:
            yield from (get_sparse_values(tensor), get_sparse_indices(tensor))
        elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            yield from (tensor.values(), tensor.crow_indices(), tensor.col_indices())
        elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
            yield from (tensor.values(), tensor.ccol_indices(), tensor.row_indices())
