"""The folder of a search on this disk: its own, or, of a search that lies in a bucket, one that the driver works in."""

import atexit
import fcntl
import functools
import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from search.errors import UsageError
from trainables.filesystem.paths import RemotePath, StoragePath, download, get_modified_ns

PREFIX = "searchlight-of-"
LOCK = "held"
# What the driver has no copy of: workers read and write it there.
NOT_HERE = ("checkpoints", "files", "study", "study.lock")


def local_path_of(place: StoragePath) -> Path:
    """Where the driver keeps the files of the search at `place`. For a bucket it is a folder of this process."""
    if isinstance(place, Path):
        return place
    return process_folder() / hashlib.blake2b(str(place.parent).encode(), digest_size=8).hexdigest() / place.name


@contextmanager
def working_copy(place: StoragePath) -> Iterator[Path]:
    """`local(place)`, which is there from now on if it belongs to a bucket, and removed in the end."""
    folder = local_path_of(place)
    if isinstance(place, Path) or folder.exists():  # the search runs in this process, and asks about itself
        yield folder
        return
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def downloaded_copy(place: StoragePath) -> Iterator[Path]:
    """Provide the working copy with the files that the bucket has.

    Raises:
        UsageError: The bucket cannot be read.
    """
    is_new = not local_path_of(place).exists()
    with working_copy(place) as folder:
        try:
            for path in place.iterdir() if is_new and isinstance(place, RemotePath) else ():
                if path.name not in NOT_HERE:
                    with suppress(FileNotFoundError):  # removed meanwhile, or what S3 is left with of an empty folder
                        download(path, folder / path.name)
        except OSError as error:
            raise UsageError(f"--storage must be a place that can be read, but {error}.") from error
        yield folder


def list_searches(storage: StoragePath) -> list[str]:
    """The searches in `storage` that have begun, oldest first.

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
    """Return a folder of this process. It is removed when the process ends, or by a later one if it was killed."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        # Another process that starts now may have removed it, and a driver that lives holds it.
        with suppress(FileNotFoundError, BlockingIOError), open(lock, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
    root = Path(tempfile.mkdtemp(prefix=PREFIX))
    claim = root / "claim"
    held = open(claim, "a")  # noqa: SIM115 (until the process ends: the kernel frees it)
    fcntl.flock(held, fcntl.LOCK_EX)
    claim.rename(root / LOCK)  # not before it is held
    atexit.register(held.close)  # last
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root
