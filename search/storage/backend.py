"""The interface of the storages of a study."""

import fcntl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage

from searchlight.search.errors import UsageError
from searchlight.trainables.filesystem.paths import StoragePath

TRIES, TRY_S = 5, 0.02  # of a lock: who looks whether a driver holds it has it for an instant


@dataclass(frozen=True)
class StudyStore:
    """An open storage.

    Attributes:
        close: Allows another driver to open the study.
        commit: Waits until all writes are durable.
    """

    storage: BaseStorage
    close: Callable[[], None]
    commit: Callable[[], None] = field(default=lambda: None)


class StudyBackend(ABC):
    """One kind of storage, for the study of one search. Errors that a user can fix are raised as UsageError.

    Args:
        place: The folder of the search. Its name is also the name of the study.
        url: The database, or "" for a journal in the folder.

    Attributes:
        missing: The missing study, for a message.
        collision: Why no second study can have this name, for a message.
    """

    missing: str
    collision: str

    def __init__(self, place: StoragePath, url: str = "") -> None:
        self.place = place
        self.url = url
        self.name = place.name

    @abstractmethod
    def check(self) -> None:
        """Check that a new study can be stored here, without writing anything."""

    @abstractmethod
    def exists(self) -> bool:
        """Return whether the study exists."""

    @abstractmethod
    def open(self) -> StudyStore:
        """Open the study to write to it, and create it if it is missing. Raise if another process has it open."""

    def is_open(self) -> bool | None:
        """Return whether a driver has the study open, or None if that cannot be told."""
        return None

    @abstractmethod
    def read(self) -> BaseStorage:
        """Open the study to read it, also while a driver writes to it."""


def has_study(storage: BaseStorage, name: str) -> bool:
    """Return whether `storage` has a study of this name."""
    return any(study.study_name == name for study in storage.get_all_studies())


def check_name(names: Sequence[str], place: StoragePath) -> None:
    """Check that `names` contains the study of the search at `place`.

    Raises:
        UsageError: It does not, since the folder was renamed.
    """
    if place.name not in names:
        raise UsageError(f"the folder of a search must have its name, {names[0]}, but is {place}. Rename it.")


def running_error(name: str) -> UsageError:
    """Return the error for a study that another driver has open."""
    return UsageError(f"{name} must not be running, but another process has it open.")


def lock_study_file(path: Path | str, name: str) -> IO[str]:
    """Lock a file until it is closed. The kernel frees the lock of a driver that dies.

    Raises:
        UsageError: Another process has the study `name` open.
    """
    lock = open(path, "a")  # noqa: SIM115 (closing it would free the lock)
    for _ in range(TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            time.sleep(TRY_S)
    lock.close()
    raise running_error(name)


def is_locked(path: Path | str) -> bool | None:
    """Return whether a driver holds the lock of `lock_study_file`, or None if that cannot be told."""
    try:
        with open(path) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:  # it may not be read, or its file system has no locks
        return None
    return False


def format_reason(error: BaseException) -> str:
    """Return the message of a database or file system error in one line."""
    while isinstance(error, StorageInternalError) and error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(getattr(error, "orig", None) or error).split()).rstrip(".")
