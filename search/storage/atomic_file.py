"""Files that are there whole, or not at all."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from trainables.filesystem.paths import RemotePath, StoragePath, upload

LEFT_AFTER_S = 60.0


@contextmanager
def atomic_path(path: StoragePath) -> Iterator[Path]:
    """Where to write what is to be `path`: in the end it takes its place, and readers have the one before until then.

    What a process that was killed left of it goes.

    Raises:
        OSError: It cannot be written; the one before stays.
    """
    if isinstance(path, RemotePath):
        with tempfile.TemporaryDirectory(prefix="searchlight-") as folder:
            yield Path(folder, path.name)
            upload(Path(folder, path.name), path)
        return
    _remove_leftovers(path)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")  # another process may write the same file
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # what a full disk left of it


def write_atomic(path: StoragePath, text: str) -> None:
    """Write `text`, all of it or nothing.

    Raises:
        OSError: It cannot be written; the one before stays.
    """
    with atomic_path(path) as file:
        file.write_text(text, encoding="utf-8")


def _remove_leftovers(path: Path) -> None:
    """Remove the temporary files beside `path` of processes that are gone.

    One that is written now is let alone, as it may be on another machine, where processes have other numbers.
    """
    for file in path.parent.glob(f"{path.name}.*.tmp"):
        number = file.name.removeprefix(f"{path.name}.").removesuffix(".tmp")
        with suppress(FileNotFoundError):  # another process removed it
            old = time.time() - file.stat().st_mtime > LEFT_AFTER_S
            if old and number.isdigit() and not psutil.pid_exists(int(number)):
                file.unlink()
