"""The claim of a worker to run the program of a trial, so that no two run in one folder."""

import fcntl
import os
import time
import uuid
from pathlib import Path
from typing import Self

from searchlight.trainables.filesystem.storage_errors import unreadable_errors, unwritable_errors

POLL_S = 0.1


class Claim:
    """The right to run the program of a trial, as a context.

    A worker may hold the program of a trial that another worker continues. The newest claim wins: the worker that has
    lost its claim ends its program and releases the claim, and the other one waits for that.

    Args:
        folder: The folder of the trial. The file of the claim is beside it, and locked while the program runs.
    """

    def __init__(self, folder: Path) -> None:
        with unwritable_errors(folder.parent):
            folder.parent.mkdir(parents=True, exist_ok=True)
        self._path = folder.with_name(f".{folder.name}.claim")
        self._name = f"{uuid.uuid4().hex}\n"
        self._file: int | None = None

    def __enter__(self) -> Self:
        """Claim the trial, and wait until no other worker runs its program."""
        with unwritable_errors(self._path):
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)  # no program inherits it
            try:
                os.pwrite(file, self._name.encode(), 0)
                while not _try_lock(file):
                    time.sleep(POLL_S)
            except BaseException:  # whatever ends the wait, another worker must not wait for this file
                os.close(file)
                raise
        self._file = file
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def is_lost(self) -> bool:
        """Whether another worker has claimed the trial since."""
        try:
            with unreadable_errors(self._path):
                return self._path.read_text(encoding="utf-8") != self._name
        except FileNotFoundError:  # the search was deleted
            return True

    def release(self) -> None:
        """Let another worker run the program. Further calls have no effect."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
