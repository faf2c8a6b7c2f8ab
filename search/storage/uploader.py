"""Keeps a bucket up to date with what a driver writes on its own disk, which may go away at any moment."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from search.errors import StoreError
from trainables.filesystem.paths import RemotePath, StoragePath, upload

logger = logging.getLogger(__name__)
EVERY_S = 5.0
SHARE = 0.1  # of the time, at most: a search with large files is copied less often
OWN = ("ray", "__pycache__")  # of this machine alone


class Uploader:
    """Copies what is in `folder` to `to`: at once when it is asked to, and every few seconds what has changed.

    What is removed in the folder is removed there. What was there before, and never in the folder, stays.

    Args:
        folder: Of the search, on this disk, with nothing in it that the bucket has not.
        to: Where the search lies, in a bucket. If that is a folder, there is nothing to copy.
    """

    def __init__(self, folder: Path, to: StoragePath) -> None:
        self._folder = folder
        self._to = to
        self._say: Callable[[str], None] = logger.warning
        # What the bucket has, by name: when it was written, and its size.
        self._there: dict[str, tuple[int, int]] = dict(_list_files(folder)) if isinstance(to, RemotePath) else {}
        self._failed = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run_upload_loop, daemon=True, name="upload")

    @contextmanager
    def flush_on_exit(self, say: Callable[[str], None]) -> Iterator[None]:
        """Copies what came last, when the search ends. `say` shows a line if anything cannot be copied."""
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
            if not is_lost and (self._folder / "search.yaml").exists():  # else it never began
                self._try_copy("what has changed is not there")

    def start(self) -> None:
        """Copy what has changed from now on, every few seconds."""
        if isinstance(self._to, RemotePath):
            self._thread.start()

    def copy(self) -> None:
        """Copy what has changed.

        Raises:
            OSError: Some of it could not be.
        """
        if isinstance(self._to, Path):
            return
        now = dict(_list_files(self._folder))
        for name, written in now.items():
            if self._there.get(name) != written and (self._folder / name).exists():
                upload(self._folder / name, self._to / name)
                self._there[name] = written
        for name in self._there.keys() - now.keys():  # last: what was renamed is there under one name or the other
            (self._to / name).unlink(missing_ok=True)
            del self._there[name]

    def _run_upload_loop(self) -> None:
        pause = EVERY_S
        while not self._over.wait(pause):
            start = time.monotonic()
            self._try_copy("the search goes on")
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
    """Those to be copied, in a stable order: what is half written has a name that ends in .tmp."""
    for where, folders, names in os.walk(folder):
        # Ray's is not even looked into: thousands of files come and go there meanwhile.
        own = OWN if Path(where) == folder else OWN[1:]
        folders[:] = sorted(name for name in folders if name not in own and not name.endswith(".tmp"))
        for path in sorted(Path(where, name) for name in names if not name.endswith(".tmp")):
            with suppress(FileNotFoundError):  # it was removed, or has its name by now
                about = path.stat()
                if path.is_file():
                    yield path.relative_to(folder).as_posix(), (about.st_mtime_ns, about.st_size)
