"""Files that are written completely or not at all."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from searchlight.trainables.filesystem.paths import RemotePath, StoragePath, replacing, upload

LEFT_AFTER_S = 60.0
JOURNALS = ("-journal", "-wal", "-shm")  # of SQLite
NO_PROCESS = 2**31  # no process has this number or a larger one


@contextmanager
def atomic_path(path: StoragePath) -> Iterator[Path]:
    """Yield a temporary path, which replaces `path` at the end. Leave `path` unchanged on an error.

    Raises:
        OSError: The file cannot be written.
    """
    if isinstance(path, RemotePath):
        with tempfile.TemporaryDirectory(prefix="searchlight-") as folder:
            yield Path(folder, path.name)
            upload(Path(folder, path.name), path)
        return
    remove_leftovers(path)
    with replacing(path) as temporary:
        yield temporary


def write_atomic(path: StoragePath, text: str) -> None:
    with atomic_path(path) as file:
        file.write_text(text, encoding="utf-8")


def remove_leftovers(path: Path) -> None:
    """Remove temporary files of killed processes next to `path`, with the journals of temporary databases.

    A recent file stays, since the process that writes it may run on another machine. So does a file whose number is no
    process's, such as a time.
    """
    for file in path.parent.glob(f"{path.name}.*.tmp*"):
        number, _, ending = file.name.removeprefix(f"{path.name}.").partition(".tmp")
        if not number.isdecimal() or int(number) >= NO_PROCESS:
            continue
        with suppress(FileNotFoundError, PermissionError):  # another process removed it, or another user owns it
            old = time.time() - file.stat().st_mtime > LEFT_AFTER_S
            if old and ending in ("", *JOURNALS) and not psutil.pid_exists(int(number)):
                file.unlink()
