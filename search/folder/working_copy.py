"""The local folder of a search: its own folder, or a temporary one for a search in a bucket."""

import atexit
import fcntl
import functools
import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from searchlight.search.errors import UsageError
from searchlight.trainables.filesystem.paths import RemotePath, StoragePath, download, get_modified_ns

PREFIX = "searchlight-of-"
LOCK = "held"
# Not copied, since workers read and write these in the bucket.
NOT_HERE = ("checkpoints", "files", "study", "study.lock")


def local_path_of(place: StoragePath) -> Path:
    """Return the local folder of the search at `place`. For a bucket, it is a temporary folder of this process."""
    if isinstance(place, Path):
        return place
    return process_folder() / hashlib.blake2b(str(place.parent).encode(), digest_size=8).hexdigest() / place.name


@contextmanager
def working_copy(place: StoragePath) -> Iterator[Path]:
    """Yield `local_path_of(place)`. For a bucket, create the folder and remove it at the end."""
    folder = local_path_of(place)
    if isinstance(place, Path) or folder.exists():  # the search runs in this process
        yield folder
        return
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def downloaded_copy(place: StoragePath) -> Iterator[Path]:
    """Yield the working copy with the files of the bucket.

    Raises:
        UsageError: The bucket cannot be read.
    """
    is_new = not local_path_of(place).exists()
    with working_copy(place) as folder:
        try:
            for path in place.iterdir() if is_new and isinstance(place, RemotePath) else ():
                if path.name not in NOT_HERE:
                    with suppress(FileNotFoundError):  # removed meanwhile, or S3's entry of an empty folder
                        download(path, folder / path.name)
        except OSError as error:
            raise UsageError(f"--storage must be a place that can be read, but {error}.") from error
        yield folder


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
