"""Checkpoint directories: published completely or not at all, and verified when they are read.

On a disk, all ranks copy into one folder, and one rename publishes it. A bucket has no rename: each rank uploads its
files to their final path, and the file with their digests is written last.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

from searchlight.trainables.checkpoint.file import ABOUT, CheckpointError
from searchlight.trainables.filesystem.atomic_file import write_durable
from searchlight.trainables.filesystem.paths import (
    RemotePath,
    StoragePath,
    compute_digest,
    list_files,
    upload,
    with_suffix_added,
)
from searchlight.trainables.filesystem.storage_errors import (
    CONFLICTS,
    UnreadableError,
    UnwritableError,
    get_storage_errno,
    unreadable_errors,
    unwritable_errors,
)
from searchlight.trainables.ranks import Ranks

CHUNK = 2**20
STAGING = ".tmp"  # suffix of an incomplete checkpoint on a disk


def open_staging(path: StoragePath, context: Ranks, stack: ExitStack) -> Path:
    """Create the folder in which this rank writes its files of the checkpoint at `path`. Call it on all ranks.

    On a disk, all ranks share it. In a bucket, each rank has its own on this machine until `stack` ends.
    """
    if isinstance(path, RemotePath):
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="searchlight-")))
    staging = with_suffix_added(path, STAGING)
    if context.rank == 0:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
    return staging


def publish_staged(staging: Path, path: StoragePath, expected: Collection[str], context: Ranks) -> None:
    """Make the content of `open_staging` the checkpoint at `path`. On rank 0, `expected` names the files of all ranks.

    Raises:
        OSError: As for `publish_parts`.
    """
    is_remote = isinstance(path, RemotePath)
    parts = context.gather(_compute_digests(staging)) if is_remote else [dict.fromkeys(expected, "")]
    publish_parts(staging, path, parts, {}, context)


def add_part(source: Path, path: StoragePath) -> dict[str, str]:
    """Return the SHA-256 of the files in `source`, a rank's part of a checkpoint, by name.

    On a disk, copy the files to those of other ranks instead. Their digests are then "".
    """
    if isinstance(path, RemotePath):
        return _compute_digests(source)
    _copy_files(source, with_suffix_added(path, STAGING), path)
    return dict.fromkeys(list_files(source), "")


def publish_parts(
    source: Path | None, path: StoragePath, parts: Sequence[Mapping[str, str]], about: dict[str, Any], context: Ranks
) -> None:
    """Make `parts`, the files of all ranks, the checkpoint at `path`. Call it on all ranks.

    Args:
        source: The folder of this rank's files, or None if it has no files.
        path: Becomes a checkpoint at the end of the call.
        parts: The results of `add_part`, by rank.
        about: Plain values for its readers.
        context: Of this rank.

    Raises:
        OSError: A rank could not write its files, e.g. a UnwritableError. In a bucket, all ranks raise it.
    """
    if isinstance(path, RemotePath):
        _upload(source, path, parts, about, context)
    elif context.rank == 0:
        with unwritable_errors(path):
            _publish(with_suffix_added(path, STAGING), path, about, {*chain.from_iterable(parts)})


def _copy_files(source: Path, staging: Path, path: Path) -> None:
    """Copy the files in `source`. Only an error of a write is one of the storage of `path`."""

    def refuse(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(source, onerror=refuse, followlinks=True):
        target = staging / Path(folder).relative_to(source)
        with unwritable_errors(path, () if target == staging else CONFLICTS):
            target.mkdir(parents=True, exist_ok=True)
        for name in names:
            with (
                open(Path(folder, name), "rb") as file,
                unwritable_errors(path, CONFLICTS),
                open(target / name, "wb") as copy,
            ):
                shutil.copyfileobj(file, copy, CHUNK)


def delete_staging(folder: StoragePath, attempt: str) -> None:
    """Remove the parts of unpublished checkpoints by `attempt`, also those of lost workers.

    In a bucket, parts have the name of the checkpoint. They are deleted when the trial has ended.
    """
    if isinstance(folder, Path):
        for left in folder.glob(f"epoch-*-{attempt}{STAGING}"):
            shutil.rmtree(left, ignore_errors=True)


def _publish(staging: Path, path: Path, about: dict[str, Any], expected: Collection[str]) -> None:
    """Make `staging` a checkpoint and rename it to `path`. Refuse it without a file in `expected`, of another node."""
    if missing := sorted({*expected} - {*list_files(staging)}):
        raise OSError(
            f"all workers of a trial must write to one folder, but {staging} does not have {missing[0]} of another "
            "worker. Use a folder that all nodes share, or a bucket."
        )
    files = {name: _sync(staging / name) for name in list_files(staging) if name != ABOUT}
    write_durable(staging / ABOUT, json.dumps({**about, "files": files}).encode())
    if path.exists():  # it could not be read, so the epoch was repeated
        shutil.rmtree(path)
    staging.rename(path)


def _compute_digests(source: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a rank's part of a checkpoint, by name."""
    return {name: compute_digest(source / name) for name in list_files(source) if name != ABOUT}


def assign_files(parts: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return which of its files each rank uploads. The last rank that has a file of a name uploads it."""
    last = {name: rank for rank, part in enumerate(parts) for name in part}
    return [{name: part[name] for name in part if last[name] == rank} for rank, part in enumerate(parts)]


def _upload(
    source: Path | None, path: RemotePath, parts: Sequence[Mapping[str, str]], about: dict[str, Any], context: Ranks
) -> None:
    """Upload `parts`, the files of all ranks, and then what makes them a checkpoint. See `publish_parts`."""
    claimed, failed, number = assign_files(parts), "", 0
    try:
        with unwritable_errors(path):
            if source is not None:
                upload(source, path, [*claimed[context.rank]])
    except OSError as error:
        failed, number = error.strerror or str(error), get_storage_errno(error)
    if reasons := [(number, reason) for reason, number in context.gather((failed, number)) if reason]:
        number, reason = max(reasons)
        raise UnwritableError(number, reason, str(path)) if number else OSError(reason)
    if context.rank == 0:
        files = {name: digest for part in claimed for name, digest in part.items()}
        (path / ABOUT).write_text(json.dumps({**about, "files": files}))


def read(path: StoragePath) -> dict[str, Any]:
    """Return the `about` of the checkpoint at `path`.

    Raises:
        CheckpointError: It is missing, or its files differ from the published ones.
        UnreadableError: Its storage cannot be read.
    """
    try:
        with unreadable_errors(path):
            about: dict[str, Any] = json.loads((path / ABOUT).read_text(encoding="utf-8"))
            found = {name: compute_digest(path / name) for name in about["files"]}
    except UnreadableError:  # does not mean that the checkpoint is broken
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"checkpoint {path} must be readable with its {ABOUT}: {error}.") from error
    wrong = [name for name, expected in about["files"].items() if found[name] != expected]
    if wrong:
        raise CheckpointError(f"checkpoint {path} must be what was written, but {', '.join(wrong)} is corrupt.")
    return about


def _sync(path: Path) -> str:
    """Write a file to the disk with fsync and return its SHA-256."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return compute_digest(path)
