"""Where searches lie: a folder or a bucket, as the user names it, checked before anything is written there."""

import os
import re
import uuid
from pathlib import Path
from typing import Any

from search.errors import UsageError
from trainables.filesystem.paths import RemotePath, StoragePath, parse_path

LONGEST_NAME = 200  # a file system takes 255, and files are named after the search


def parse_location(value: Any) -> Any:
    """The place that a text names; whatever else is given, as it is.

    Raises:
        ValueError: It is a URI that cannot be used.
    """
    try:
        return parse_path(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"must be a folder or a bucket, but {error}") from None


def make_absolute(storage: StoragePath) -> StoragePath:
    """The folder wherever a process runs; a bucket is the same everywhere."""
    return storage if isinstance(storage, RemotePath) else storage.expanduser().absolute()


def parse_storage(text: str) -> StoragePath:
    """What --storage says.

    Raises:
        UsageError: It is neither a folder nor a bucket.
    """
    try:
        return make_absolute(parse_location(text))
    except ValueError as error:
        raise UsageError(f"--storage {error}") from error


def parse_warm_start_source(text: str, storage: StoragePath) -> str:
    """An earlier search by the place of its folder; an experiment of MLflow as it is.

    Raises:
        UsageError: It is a URI that cannot be used, and may have credentials in it: it would be kept in search.yaml.
    """
    if text.startswith("mlflow:"):
        return text
    if "://" in text:
        try:
            return str(parse_path(text))
        except ValueError as error:
            raise UsageError(f"--warm-start must name an earlier search, but {error}") from None
    named = make_absolute(storage) / text
    if "/" not in text or (isinstance(named, Path) and named.exists()):
        return str(named)
    return str(Path(text).expanduser().absolute())


def check_location(storage: StoragePath, name: str) -> None:
    """Whether the folder of a new search can be made.

    Raises:
        UsageError: The name is no file name or is taken, or the storage folder cannot be written to.
    """
    if not re.fullmatch(r"[A-Za-z0-9][\w.\-]*", name):
        raise UsageError(f"--name must be letters, digits, '.', '_' or '-', but got {name!r}.")
    if len(name.encode()) > LONGEST_NAME:
        raise UsageError(f"--name must have at most {LONGEST_NAME} bytes, but got {len(name.encode())}: {name[:20]}...")
    taken = _is_in_bucket(storage, name) if isinstance(storage, RemotePath) else (storage / name).exists()
    if taken:
        raise UsageError(f"--name must be new, but {name} exists in {storage}. Choose another.")
    if isinstance(storage, Path):
        parent = next(parent for parent in (storage, *storage.parents) if parent.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise UsageError(f"--storage must be a folder that can be written to, but got {storage}.")


def _is_in_bucket(storage: RemotePath, name: str) -> bool:
    """Whether there is something of a search `name`, in a bucket that can be written to: a small object is, and is
    removed again."""
    probe = storage / f".searchlight-{uuid.uuid4().hex}"
    try:
        probe.write_bytes(b"")
        probe.unlink()
        # Not `exists`, which sees what S3 is left with where the last file of a folder was removed.
        return any(True for _ in (storage / name).iterdir())
    except FileNotFoundError as error:
        raise UsageError(f"--storage must be in a bucket that exists, but there is none at {storage}.") from error
    except OSError as error:
        reason = error.strerror or str(error).removeprefix(f"{probe}: ")
        raise UsageError(f"--storage must be a bucket that can be written to, but {storage}: {reason}") from error
