"""Checkpoints that a thread writes while training continues."""

import copy
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from searchlight.trainables.checkpoint.file import delete, save
from searchlight.trainables.checkpoint.state_dict import map_parts
from searchlight.trainables.device_errors import is_out_of_memory
from searchlight.trainables.filesystem.paths import StoragePath, start_deletion

logger = logging.getLogger(__name__)


class Writer:
    """Writes checkpoints in a thread while training continues, one after another."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None
        self._error: BaseException | None = None  # of a write

    @property
    def is_idle(self) -> bool:
        """Whether the last checkpoint is written, or has failed."""
        return self._pending is None or self._pending.done()

    def save(self, state: dict[str, Any], path: StoragePath, replaced: StoragePath | None = None) -> None:
        """Copy `state` and write it in the background. Wait for the checkpoint before it.

        Args:
            replaced: A checkpoint that is deleted once the new one is written.

        Raises:
            OSError: An earlier checkpoint could not be written.
        """
        self.wait()
        snapshot = take_snapshot(state)  # now, since the next update changes the tensors in place
        self._pending = self._pool.submit(_write, snapshot, path, replaced)

    def delete(self, path: StoragePath) -> None:
        """Delete a checkpoint after all pending writes, in a bucket in the background. Log a warning on an error.

        Raises:
            OSError: An earlier checkpoint could not be written.
        """
        self.wait()
        self._pending = start_deletion(self._pool, _try_delete, path)

    def wait(self) -> None:
        """Wait until all checkpoints are written.

        Raises:
            OSError: A checkpoint could not be written. Every later call raises it, too, since it may be that of another
                checkpoint than its caller waits for.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            self._error = pending.exception()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Wait, and end the thread.

        Raises:
            OSError: A checkpoint could not be written, and no call has raised this before.
        """
        self._pool.shutdown()
        if self._error is None:
            self.wait()


@dataclass(frozen=True)
class Snapshot:
    """A copy of a state on the host. Copies from GPUs are complete after the events `copied`."""

    state: dict[str, Any]
    copied: list[torch.cuda.Event]

    def wait(self) -> dict[str, Any]:
        """Return the state when it is complete."""
        for event in self.copied:
            event.synchronize()
        return self.state


@torch.no_grad()
def take_snapshot(state: dict[str, Any]) -> Snapshot:
    """Copy `state` to the memory of the host. Tensors that share memory share it in the copy, too.

    The copies from a GPU are put into its current stream, before the update that changes the tensors. The caller does
    not wait for them, because they go to pinned memory.
    """
    copies: dict[int, Any] = {}  # by the id of the original, as copy.deepcopy keeps them
    storages: dict[tuple[int, int], UntypedStorage] = {}
    devices = set[torch.device]()

    def copy_tensor(path: str, value: Any) -> Any:
        if type(value) is not Tensor or id(value) in copies:
            return value
        if not _has_plain_memory(value):
            copied = value.detach().clone()
        else:
            storage = value.untyped_storage()
            key = storage.data_ptr(), storage.nbytes()
            if key not in storages:
                storages[key] = _allocate(storage.nbytes(), pinned=storage.is_cuda)
                storages[key].copy_(storage, non_blocking=True)
                devices.update([storage.device] if storage.is_cuda else [])
            copied = torch.empty(0, dtype=value.dtype, device="cpu")
            copied.set_(storages[key], value.storage_offset(), value.size(), value.stride())
        copies[id(value)] = copied.requires_grad_(value.requires_grad)
        vars(copied).update(copy.deepcopy(vars(value), copies))  # e.g. the marks of a compiled optimizer
        return value

    map_parts(state, copy_tensor)
    whole = copy.deepcopy(state, copies)  # copies the rest
    return Snapshot(whole, [torch.cuda.current_stream(device).record_event() for device in devices])


def _has_plain_memory(value: Tensor) -> bool:
    is_lazy = value.is_conj() or value.is_neg()
    return value.layout == torch.strided and not (is_lazy or value.is_nested or value.is_quantized)


def _allocate(size: int, pinned: bool) -> UntypedStorage:
    try:
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pinned).untyped_storage()
    except RuntimeError as error:
        if not pinned or not is_out_of_memory(error):
            raise
        return _allocate(size, pinned=False)  # a system may pin less than it has: the copy then waits


def _write(snapshot: Snapshot, path: StoragePath, replaced: StoragePath | None) -> None:
    save(snapshot.wait(), path)
    if replaced is not None:
        _try_delete(replaced)


def _try_delete(path: StoragePath) -> None:
    try:
        delete(path)
    except OSError as error:
        logger.warning("an unneeded checkpoint could not be deleted: %s", error)
