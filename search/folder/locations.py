"""The location of a search, in a folder or in a bucket: parsed, checked, listed, and its local folder."""

import atexit
import fcntl
import functools
import hashlib
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from searchlight.search.errors import UsageError
from searchlight.search.option import read_yaml
from searchlight.trainables.filesystem.paths import RemotePath, StoragePath, get_modified_ns, parse_path

LONGEST_NAME = 200  # a file system takes 255, and files are named after the search
PREFIX = "searchlight-of-"
LOCK = "held"
LADDER = "ladder.yaml"  # the options of searches at several sizes


def parse_location(value: Any) -> Any:
    """Return the path that a text names. Return other values unchanged.

    Raises:
        ValueError: The URI cannot be used.
    """
    try:
        return parse_path(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"must be a folder or a bucket, but {error}") from None


def parse_storage(text: str) -> StoragePath:
    """Return the value of --storage as an absolute path.

    Raises:
        UsageError: It is neither a folder nor a bucket.
    """
    try:
        storage: StoragePath = parse_location(text).expanduser().absolute()
        return storage
    except ValueError as error:
        raise UsageError(f"--storage {error}") from error


def resolve_place(name: str, storage: StoragePath) -> StoragePath:
    """Return the folder of the search `name`, a name in `storage` or a path.

    Raises:
        UsageError: It is in a bucket that cannot be read, or has several searches.
    """
    named = storage / name
    try:
        place = parse_storage(name) if "://" in name or ("/" in name and not named.is_dir()) else named
    except OSError as error:
        raise UsageError(f"--storage must be a place that can be read, but {error}.") from error
    if searches := list_sized_searches(place):
        raise UsageError(f"name must be one search, but {place.name} has one at each size: {', '.join(searches)}.")
    return place


def list_sized_searches(place: StoragePath) -> list[str]:
    """Return the names of the searches at several sizes whose result is in the folder `place`, or none.

    Raises:
        UsageError: The place cannot be read.
    """
    try:
        sizes = read_yaml((place / LADDER).read_text(encoding="utf-8"))["sizes"]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UsageError(f"--storage must be a place that can be read, but {error}.") from error
    return [f"{place.name}-{size}" for size in sizes]


def parse_warm_start_source(text: str, storage: StoragePath) -> str:
    """Return the path of an earlier search's folder, or an MLflow experiment unchanged.

    Raises:
        UsageError: The URI cannot be used. It may hold credentials, which search.yaml would store.
    """
    if text.startswith("mlflow:"):
        return text
    if "://" in text:
        try:
            return str(parse_path(text))
        except ValueError as error:
            raise UsageError(f"--warm-start must name an earlier search, but {error}") from None
    named = storage.expanduser().absolute() / text
    if "/" not in text or (isinstance(named, Path) and named.exists()):
        return str(named)
    return str(Path(text).expanduser().absolute())


def check_location(storage: StoragePath, name: str) -> None:
    """Check that the folder of a new search can be created.

    Raises:
        UsageError: The name is no file name or exists, or the storage folder is not writable.
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


def check_writable(folder: StoragePath, subfolders: Sequence[str]) -> None:
    """Write a temporary file to `folder` and its `subfolders` on a disk, as far as they exist.

    Raises:
        OSError: One of them cannot be written.
    """
    for path in (folder, *(folder / name for name in subfolders)):
        if isinstance(path, Path) and path.exists():
            tempfile.NamedTemporaryFile(dir=path, prefix="writable-").close()


def _is_in_bucket(storage: RemotePath, name: str) -> bool:
    """Return whether files of a search `name` exist. Write and remove a small object as a test."""
    probe = storage / f".searchlight-{uuid.uuid4().hex}"
    try:
        probe.write_bytes(b"")
        probe.unlink()
        # Not `exists`: S3 keeps an entry of a folder whose last file was removed.
        return any(True for _ in (storage / name).iterdir())
    except FileNotFoundError as error:
        raise UsageError(f"--storage must be in a bucket that exists, but there is none at {storage}.") from error
    except OSError as error:
        reason = error.strerror or str(error).removeprefix(f"{probe}: ")
        raise UsageError(f"--storage must be a bucket that can be written to, but {storage}: {reason}") from error


def local_path_of(place: StoragePath) -> Path:
    """Return the local folder of the search at `place`. For a bucket, it is a temporary folder of this process."""
    if isinstance(place, Path):
        return place
    return process_folder() / hashlib.blake2b(str(place.parent).encode(), digest_size=8).hexdigest() / place.name


def list_searches(storage: StoragePath) -> list[str]:
    """Return the names of the searches in `storage`, the oldest first.

    Raises:
        OSError: The bucket cannot be read.
    """
    begun: dict[str, int] = {}
    for place in storage.iterdir() if storage.is_dir() else ():
        if isinstance(place, Path):
            if (place / "study.journal").exists() or (place / "search.yaml").exists():
                begun[place.name] = place.stat().st_mtime_ns
        else:
            with suppress(FileNotFoundError):
                begun[place.name] = get_modified_ns(place / "search.yaml")
    return sorted(begun, key=lambda name: begun[name])


@functools.cache
def process_folder() -> Path:
    """Return a temporary folder of this process. It is removed when the process ends, or by a later process."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        # Another process may have removed it, and a running driver holds the lock.
        with suppress(FileNotFoundError, BlockingIOError), open(lock, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
    root = Path(tempfile.mkdtemp(prefix=PREFIX))
    claim = root / "claim"
    held = open(claim, "a")  # noqa: SIM115 (until the process ends: the kernel frees it)
    fcntl.flock(held, fcntl.LOCK_EX)
    claim.rename(root / LOCK)  # after it is locked
    atexit.register(held.close)  # last
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root
