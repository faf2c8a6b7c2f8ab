"""Checkpoint directories: like checkpoint files, published whole or not at all, and verified when they are read."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from trainables.checkpoint import CheckpointError

ABOUT = ".searchlight.json"  # inside, so that one rename publishes it with the rest


def add(source: Path, staging: Path) -> None:
    """Copy the content of `source` into `staging`, beside what other ranks put there."""
    shutil.copytree(source, staging, dirs_exist_ok=True)


def publish(staging: Path, path: Path, about: dict[str, Any]) -> None:
    """Make `staging` the checkpoint at `path`, with `about`, plain values, to be found by who reads it."""
    files = {file.relative_to(staging).as_posix(): _sync(file) for file in _files(staging)}
    with open(staging / ABOUT, "w", encoding="utf-8") as file:
        json.dump({**about, "files": files}, file)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():  # reported again, since it could not be read
        shutil.rmtree(path)
    staging.rename(path)


def read(path: Path) -> dict[str, Any]:
    """What was published about the checkpoint at `path`.

    Raises:
        CheckpointError: It is missing or its files are not what was published.
    """
    try:
        about: dict[str, Any] = json.loads((path / ABOUT).read_text(encoding="utf-8"))
        found = {name: _digest(path / name) for name in about["files"]}
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"checkpoint {path} must be readable with its {ABOUT}: {error}.") from error
    wrong = [name for name, digest in about["files"].items() if found[name] != digest]
    if wrong:
        raise CheckpointError(f"checkpoint {path} must be what was written, but {', '.join(wrong)} is corrupt.")
    return about


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / ABOUT)


def _sync(path: Path) -> str:
    """The SHA-256 of a file that is on the disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return _digest(path)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
