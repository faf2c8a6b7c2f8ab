"""Uploads a driver's local files to a bucket, since the driver's disk may be lost at any moment."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from searchlight.search.errors import StoreError
from searchlight.trainables.filesystem.paths import StoragePath, copy

logger = logging.getLogger(__name__)
EVERY_S = 5.0
SHARE = 0.1  # largest share of the time spent on uploads
OWN = ("ray", "__pycache__")  # not uploaded


class Uploader:
    """Copies changed files of `folder` to `to`, on request and every few seconds.

    Files that are removed in the folder are also removed in the bucket. Other files in the bucket stay.

    Args:
        folder: The local folder of the search. At first, the bucket has all of its files.
        to: The location of the search. If it is `folder`, nothing is copied.
    """

    def __init__(self, folder: Path, to: StoragePath) -> None:
        self._folder = folder
        self._to = to
        self._say: Callable[[str], None] = logger.warning
        # Modification time and size of the files in the bucket, by name.
        self._there: dict[str, tuple[int, int]] = dict(_list_files(folder)) if folder != to else {}
        self._failed = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run_upload_loop, daemon=True, name="upload")

    @contextmanager
    def flush_on_exit(self, say: Callable[[str], None]) -> Iterator[None]:
        """Copy the last changes when the block ends. `say` shows a line if a file cannot be copied."""
        self._say = say
        is_lost = False
        try:
            yield
        except StoreError:
            is_lost = True  # another driver may continue the search by now
            raise
        finally:
            self._over.set()
            if self._thread.is_alive():
                self._thread.join()
            if not is_lost and (self._folder / "search.yaml").exists():  # otherwise, the search never began
                self._try_copy("what has changed is not there")

    def start(self) -> None:
        """Start a thread that copies changed files every few seconds."""
        if self._folder != self._to:
            self._thread.start()

    def copy(self) -> None:
        """Copy the changed files.

        Raises:
            OSError: A file could not be copied.
        """
        if self._folder == self._to:
            return
        now = dict(_list_files(self._folder))
        for name, written in now.items():
            if self._there.get(name) != written and (self._folder / name).exists():
                copy(self._folder / name, self._to / name)
                self._there[name] = written
        for name in self._there.keys() - now.keys():  # last, so that a renamed file always exists under one name
            (self._to / name).unlink(missing_ok=True)
            del self._there[name]

    def _run_upload_loop(self) -> None:
        pause = EVERY_S
        while not self._over.wait(pause):
            start = time.monotonic()
            self._try_copy("the search continues")
            pause = max(EVERY_S, (time.monotonic() - start) / SHARE)

    def _try_copy(self, then: str) -> None:
        try:
            self.copy()
        except OSError as error:
            if self._failed != then:
                self._say(f"{self._to} cannot be written: {error}; {then}")
            self._failed = then
        else:
            self._failed = ""


def _list_files(folder: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the files to copy in a stable order. Incomplete files have names that end in .tmp."""
    for where, folders, names in os.walk(folder):
        # Ray's folder is skipped: it has thousands of short-lived files.
        own = OWN if Path(where) == folder else OWN[1:]
        folders[:] = sorted(name for name in folders if name not in own and not name.endswith(".tmp"))
        for path in sorted(Path(where, name) for name in names if not name.endswith(".tmp")):
            with suppress(FileNotFoundError):  # it was removed, or has its name by now
                about = path.stat()
                if path.is_file():
                    yield path.relative_to(folder).as_posix(), (about.st_mtime_ns, about.st_size)
