"""Checkpoint directories: like checkpoint files, published whole or not at all, and verified when they are read.

On a disk all ranks copy into one folder, which one rename publishes. A bucket has no rename: each rank uploads its own
files to where they stay, and what is known of the checkpoint follows last.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainables.checkpoint.file import ABOUT, CheckpointError
from trainables.context import Context
from trainables.filesystem.paths import RemotePath, StoragePath, compute_digest, list_files, upload


def add(source: Path, staging: Path) -> None:
    """Copy the content of `source` into `staging`, beside what other ranks put there."""
    shutil.copytree(source, staging, dirs_exist_ok=True)


def publish(staging: Path, path: Path, about: dict[str, Any]) -> None:
    """Make `staging` the checkpoint at `path`, with `about`, plain values, to be found by who reads it."""
    files = {name: _sync(staging / name) for name in list_files(staging) if name != ABOUT}
    with open(staging / ABOUT, "w", encoding="utf-8") as file:
        json.dump({**about, "files": files}, file)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():  # reported again, since it could not be read
        shutil.rmtree(path)
    staging.rename(path)


def compute_digests(source: Path) -> dict[str, str]:
    """The SHA-256 of each file that a rank has for a checkpoint, by name."""
    return {name: compute_digest(source / name) for name in list_files(source) if name != ABOUT}


def assign_files(parts: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Which files each rank is to put into a bucket, of those that it has: the last that has one of a name does."""
    last = {name: rank for rank, part in enumerate(parts) for name in part}
    return [{name: part[name] for name in part if last[name] == rank} for rank, part in enumerate(parts)]


def put(
    source: Path | None, path: RemotePath, parts: Sequence[Mapping[str, str]], about: dict[str, Any], context: Context
) -> None:
    """Make `parts`, the files of all ranks as `digests` has them, the checkpoint at `path`. Called on all ranks.

    Args:
        source: Of this rank's files, if it has any.
        path: Before this is over, what is there is no checkpoint.
        parts: By rank.
        about: As for `publish`.
        context: Of this rank.

    Raises:
        OSError: Not all could be written; on all ranks, whichever of them it was.
    """
    claimed, failed = assign_files(parts), ""
    try:
        if source is not None:
            upload(source, path, [*claimed[context.rank]])
    except OSError as error:
        failed = str(error)
    if reasons := [reason for reason in context.gather(failed) if reason]:
        raise OSError(reasons[0])
    if context.rank == 0:
        files = {name: digest for part in claimed for name, digest in part.items()}
        (path / ABOUT).write_text(json.dumps({**about, "files": files}))


def read(path: StoragePath) -> dict[str, Any]:
    """What was published about the checkpoint at `path`.

    Raises:
        CheckpointError: It is missing or its files are not what was published.
        OSError: It lies in a bucket that cannot be read.
    """
    try:
        about: dict[str, Any] = json.loads((path / ABOUT).read_text(encoding="utf-8"))
        found = {name: compute_digest(path / name) for name in about["files"]}
    except (OSError, ValueError, KeyError) as error:
        if isinstance(path, RemotePath) and isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            raise  # as for a checkpoint file
        raise CheckpointError(f"checkpoint {path} must be readable with its {ABOUT}: {error}.") from error
    wrong = [name for name, expected in about["files"].items() if found[name] != expected]
    if wrong:
        raise CheckpointError(f"checkpoint {path} must be what was written, but {', '.join(wrong)} is corrupt.")
    return about


def _sync(path: Path) -> str:
    """The SHA-256 of a file that is on the disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return compute_digest(path)
