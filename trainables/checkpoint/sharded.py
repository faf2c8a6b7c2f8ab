"""Checkpoints of trials with sharded modules: directories that torch.distributed.checkpoint writes.

Each rank writes its shards. `state.pt` holds the rest, with a reference in the place of each sharded tensor. Any
number of ranks can load the tensors. Each rank loads only its own shards.
"""

import contextlib
import errno
import io
import os
import pickle
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from searchlight.trainables.checkpoint import directory, file
from searchlight.trainables.checkpoint.file import CheckpointError
from searchlight.trainables.checkpoint.state_dict import map_parts
from searchlight.trainables.context import Context
from searchlight.trainables.filesystem.paths import StoragePath, local_copy, parse_path
from searchlight.trainables.filesystem.storage_errors import (
    UnwritableError,
    get_storage_errno,
    is_outage,
    unreadable_errors,
)

if TYPE_CHECKING:
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    from searchlight.trainables.task import Task

STATE = "state.pt"
METADATA = ".metadata"  # the name that torch.distributed.checkpoint gives it
REFERENCE = "sharded tensor"  # the only key of a reference
FOLDER = "sharded tensors"  # the key of the folder in a loaded state
SMALLEST_FREE_BYTES = 2**20  # a disk with less is full
# The classes in the metadata of torch.distributed.checkpoint. No other pickled object is read.
PLAIN = {
    "pathlib": {"Path", "PosixPath", "WindowsPath"},
    "torch": {"Size"} | {name for name, value in vars(torch).items() if isinstance(value, torch.dtype)},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.serialization": {"_get_layout"},
}


def save(state: dict[str, Any], path: StoragePath, context: Context) -> None:
    """Write `state`, in which tensors may be sharded, to the directory `path`. Call it on all ranks.

    A reader sees the old directory or the new one, or for a moment none.

    Raises:
        UnwritableError: The storage of a rank takes no checkpoint. All ranks raise it.
        OSError: A rank could not write its part for another reason. All ranks raise it.
    """
    from torch.distributed.checkpoint import state_dict_saver
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    tensors: dict[str, Tensor] = {}
    plain = map_parts(state, lambda key, value: _set_aside(key, value, tensors))
    with contextlib.ExitStack() as stack:
        with _agree_on_errors(context, path):
            staging = directory.open_staging(path, context, stack)
        with _agree_on_errors(context, path, staging):
            writer = FileSystemWriter(staging, single_file_per_rank=True)
            metadata = state_dict_saver.save(tensors, storage_writer=writer)
        with _agree_on_errors(context, path, staging):
            if context.rank == 0:
                torch.save(plain, staging / STATE)
        with _agree_on_errors(context, path, staging):
            expected = {part.relative_path for part in metadata.storage_data.values()} if context.rank == 0 else set()
            directory.publish_staged(staging, path, expected, context)


def load(path: StoragePath) -> dict[str, Any]:
    """Return the state that was saved at `path`, on the CPU. `fill` reads the sharded tensors of a directory.

    Raises:
        CheckpointError: The checkpoint is missing, or its content differs from what was written.
        UnreadableError: Its storage cannot be read.
    """
    with unreadable_errors(path):
        if not path.is_dir():
            return file.load(path)
        if missing := {METADATA, STATE} - directory.read(path)["files"].keys():
            raise CheckpointError(f"checkpoint {path} must have {METADATA} and {STATE}, but has no {min(missing)}.")
        saved = getattr(_read_metadata(path), "state_dict_metadata", None)
        state = file.parse_state((path / STATE).read_bytes(), path)
    if not isinstance(saved, dict) or any(key not in saved for key in _list_references(state)):
        raise CheckpointError(f"checkpoint {path} must have metadata with each of its tensors, but has not.")
    return {**state, FOLDER: str(path)}


def fill(state: dict[str, Any], layouts: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return `state`, the content of a checkpoint, with its tensors. Shard those that `layouts` has.

    Raises:
        CheckpointError: Its tensors cannot be read from its files.
        UnreadableError: Its storage cannot be read.
    """
    from torch.distributed.tensor import distribute_tensor

    rest = {key: value for key, value in state.items() if key != FOLDER}
    tensors: dict[str, Tensor] = {}
    if FOLDER in state:
        path = parse_path(state[FOLDER])
        with unreadable_errors(path), local_copy(path) as folder:
            tensors = _read_tensors(rest, folder, layouts)

    def place(key: str, value: Any) -> Any:
        if _is_reference(value):
            return tensors[value[REFERENCE]]
        if isinstance(value, Tensor) and (like := _find_layout(key, value.shape, layouts)) is not None:
            # All ranks have the whole tensor: each takes its part without communication.
            return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
        return value

    filled: dict[str, Any] = map_parts(rest, place)
    return filled


def _read_tensors(state: dict[str, Any], folder: Path, layouts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that `state` refers to, of each what this rank has of it."""
    from torch.distributed.checkpoint import state_dict_loader
    from torch.distributed.checkpoint.api import CheckpointException

    reader = _create_reader(folder)
    saved: dict[str, Any] = reader.read_metadata().state_dict_metadata
    tensors: dict[str, Tensor] = {}
    for key in _list_references(state):
        about = saved[key]
        like = _find_layout(key, about.size, layouts)
        dtype = about.properties.dtype
        tensors[key] = torch.empty(about.size, dtype=dtype) if like is None else torch.empty_like(like, dtype=dtype)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # each rank reads by itself
        try:
            state_dict_loader.load(tensors, storage_reader=reader, no_dist=True)
        except CheckpointException as error:  # a BaseException, which no caller catches
            if outage := next((cause for cause, _ in error.failures.values() if is_outage(cause, folder)), None):
                raise outage from error
            raise CheckpointError(f"{folder} cannot be read: {' '.join(str(error).split())}") from error
    return tensors


def gather(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return `state` with whole instead of sharded tensors. Call it on all ranks that have a part of them."""

    def make_whole(key: str, value: Any) -> Any:
        return value.full_tensor() if hasattr(value, "device_mesh") else value

    whole: dict[str, Any] = map_parts(dict(state), make_whole)
    return whole


def get_layouts(task: "Task[Any]") -> dict[str, Any]:
    """Return the sharded tensors of `task` by their path in its state. Moments have the path of their parameter."""
    named: list[tuple[str, Any]] = []
    for key, module in task.modules.items():
        named += [(f"modules/{key}/{name}", tensor) for name, tensor in module.state_dict().items()]
    for key, updater in task.updaters.items():
        if updater.ema is not None:
            named += [(f"updaters/{key}/ema/shadow/{n}", t) for n, t in updater.ema.state_dict()["shadow"].items()]
        for name, optimizer in updater.optimizers.items():
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            named += [(f"updaters/{key}/optimizers/{name}/state/{i}", p) for i, p in enumerate(parameters)]
    return {key: tensor.detach() for key, tensor in named if hasattr(tensor, "device_mesh")}


def _set_aside(key: str, value: Any, tensors: dict[str, Tensor]) -> Any:
    if not hasattr(value, "device_mesh"):
        return value
    tensors[key] = value.detach()
    return {REFERENCE: key}


def _list_references(state: dict[str, Any]) -> list[str]:
    """Return the keys of the sharded tensors that `state` refers to."""
    wanted: list[str] = []

    def note(_: str, value: Any) -> Any:
        if _is_reference(value):
            wanted.append(value[REFERENCE])
        return value

    map_parts(state, note)
    return wanted


def _is_reference(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {REFERENCE} and isinstance(value[REFERENCE], str)


def _find_layout(key: str, shape: torch.Size, layouts: Mapping[str, Any]) -> Any:
    like = layouts.get(key)
    if like is None:
        like = layouts.get(key.rpartition("/")[0])
    return like if like is not None and like.shape == shape else None


def _create_reader(path: Path) -> "FileSystemReader":
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    class Reader(FileSystemReader):
        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            metadata = _read_metadata(path)
            metadata.storage_meta.load_id = self.load_id
            return metadata

    return Reader(path)


def _read_metadata(path: StoragePath) -> Any:
    """Return the metadata of torch.distributed.checkpoint in the directory `path`.

    Raises:
        CheckpointError: It has other objects.
    """
    content = (path / METADATA).read_bytes()
    try:
        return _Unpickler(io.BytesIO(content)).load()
    except CheckpointError:
        raise
    except Exception as error:  # pickle raises any error for content that torch did not write
        raise CheckpointError(f"checkpoint {path} must have metadata that can be read, but has not.") from error


class _Unpickler(pickle.Unpickler):
    """Reads metadata of torch.distributed.checkpoint, and refuses any other object."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in PLAIN.get(module, ()):
            raise CheckpointError(f"metadata of a checkpoint must hold tensors' places only, but got {module}.{name}.")
        return super().find_class(module, name)


@contextlib.contextmanager
def _agree_on_errors(context: Context, path: StoragePath, staging: Path | None = None) -> Iterator[None]:
    """Raise an error of any rank on all ranks when the block ends, one of the storage as an UnwritableError."""
    from torch.distributed.checkpoint.api import CheckpointException

    failed, number = "", 0
    try:
        yield
    except (Exception, CheckpointException) as error:  # any error: the other ranks wait. PyTorch's is no Exception
        failed = str(error) or type(error).__name__
        causes = [cause for cause, _ in error.failures.values()] if isinstance(error, CheckpointException) else [error]
        number = max(map(get_storage_errno, causes), default=0)
        if not number and staging is not None:
            number = _find_storage_error(staging)
    reasons = [reason for reason in context.gather((failed, number)) if reason[0]]
    if reasons and staging is not None and context.rank == 0:
        shutil.rmtree(staging, ignore_errors=True)  # a full disk needs the room, and a resume writes elsewhere
    if number := max((number for _, number in reasons), default=0):
        written = path if staging is None or staging.parent == path.parent else staging
        raise UnwritableError(number, os.strerror(number), str(written))
    if reasons:
        raise OSError(f"checkpoint could not be written: {reasons[0][0]}")


def _find_storage_error(staging: Path) -> int:
    """Return the number of the error that a write to `staging` raises, or 0. PyTorch's writer hides it."""
    try:
        with tempfile.NamedTemporaryFile(dir=staging):  # its name is of this rank alone
            pass
        return errno.ENOSPC if shutil.disk_usage(staging).free < SMALLEST_FREE_BYTES else 0
    except OSError as error:
        return error.errno or 0
