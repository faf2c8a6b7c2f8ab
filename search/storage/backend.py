"""The interface of the storages that a study can be kept in."""

import fcntl
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage

from search.errors import UsageError
from trainables.filesystem.paths import StoragePath


@dataclass(frozen=True)
class StudyStore:
    """An open storage.

    Attributes:
        close: Lets another driver open the study.
        commit: Returns when all that was written is kept.
    """

    storage: BaseStorage
    close: Callable[[], None]
    commit: Callable[[], None] = field(default=lambda: None)


class StudyBackend(ABC):
    """One kind of storage, for the study of one search. What a user can mend is raised as UsageError.

    Args:
        place: The folder of the search. Its name is also the name of the study.
        url: The database, or "" for a journal in the folder.

    Attributes:
        missing: What a search without this study lacks, for a message.
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
        """Check that a new study can be kept here. Writes nothing."""

    @abstractmethod
    def exists(self) -> bool:
        """Return whether the study exists."""

    @abstractmethod
    def open(self) -> StudyStore:
        """Open the study to write to it, and create what is missing. Refused while another process has it open."""

    @abstractmethod
    def read(self) -> BaseStorage:
        """Open the study to read it, also while a driver writes to it."""


def has_study(storage: BaseStorage, name: str) -> bool:
    """Return whether `storage` has a study of this name."""
    return any(study.study_name == name for study in storage.get_all_studies())


def check_name(names: Sequence[str], place: StoragePath) -> None:
    """Check that the study of the search at `place` is among those with these `names`, of which there are some.

    Raises:
        UsageError: It is not, as the folder was renamed.
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
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise running_error(name) from None
    return lock


def format_reason(error: BaseException) -> str:
    """Return what a database or a file system said, in one line."""
    while isinstance(error, StorageInternalError) and error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(getattr(error, "orig", None) or error).split()).rstrip(".")
