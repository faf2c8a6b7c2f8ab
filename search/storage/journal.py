"""A study in Optuna's journal: a file in the search's folder, written by the driver that holds its lock."""

import difflib
import itertools
import json
import logging
import os
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import BaseJournalBackend

from searchlight.search.errors import StoreError, UsageError
from searchlight.search.folder.locations import list_searches
from searchlight.search.storage.backend import StudyBackend, StudyStore, check_name, is_locked, lock_study_file
from searchlight.trainables.filesystem.atomic_file import atomic_path
from searchlight.trainables.filesystem.paths import StoragePath

logger = logging.getLogger(__name__)
SYNC_S = 0.5  # records that a power failure may lose; a killed process loses none
RECORD_START = b'{"op_code":'
LINE = "line"  # the key of a record's number, from 1 on, which Optuna ignores. Records of older versions have none
CREATE_STUDY = 0  # Optuna's code of the first record


class OrderError(Exception):
    """A journal does not have each of its records once and in order."""


class JournalRecords(BaseJournalBackend):
    """A read-only journal of `records`. Subclasses write, and read their own records from memory."""

    def __init__(self, records: Sequence[bytes] = ()) -> None:
        self._records = records
        self._unread = list(records)  # from record `_first` on
        self._first = 0
        self._failure: Exception | None = None  # after which nothing is written

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        if self._failure is not None:
            raise self._failure
        count = self._first + len(self._unread)
        numbered = [{**log, LINE: number} for number, log in enumerate(logs, start=count + 1)]
        lines = [json.dumps(log, separators=(",", ":")).encode() + b"\n" for log in numbered]
        self._write(lines)
        self._unread += lines

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        if log_number_from < self._first:
            return _parse_records(itertools.islice(self.read_all(), log_number_from, None), log_number_from + 1)
        del self._unread[: log_number_from - self._first]
        self._first = log_number_from
        return _parse_records(list(self._unread), log_number_from + 1)

    def _write(self, lines: list[bytes]) -> None:
        raise RuntimeError("a study that was opened to be read must not be written to")

    def read_all(self) -> Iterable[bytes]:
        """Return all records, one a line."""
        return self._records

    def close(self) -> None:
        """Do nothing, since nothing is open."""


class Journal(JournalRecords):
    """A journal with one writer, which holds a lock until it is closed.

    Optuna's own file backend reads back what it wrote and waits for the disk at every record, since it may have several
    writers. Its lock is a file that a killed writer leaves, and the next writer waits 30 s for it. The kernel releases
    this one.

    Raises:
        UsageError: Another process has the study open, or the file is broken.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._lock = lock_study_file(f"{path}.lock", path.parent.name)
        try:
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (until `close`)
            self._cut_broken_end()
        except (OSError, UsageError):
            self._lock.close()
            raise
        self._first = sum(1 for _ in self.read_all())
        self._written = threading.Event()
        self._closed = threading.Event()
        self._syncing = threading.Thread(target=self._sync, daemon=True, name="journal")
        self._syncing.start()

    def _write(self, lines: list[bytes]) -> None:
        try:
            left = memoryview(b"".join(lines))
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._failure = StoreError(f"{self._path} cannot be written: {error}")
            raise self._failure from error
        self._written.set()

    def close(self) -> None:
        """Close the file and release the lock. Further calls have no effect.

        Raises:
            StoreError: The last records could not be written.
        """
        if self._closed.is_set():
            return
        self._closed.set()
        self._syncing.join()
        self._file.close()
        self._lock.close()
        if self._failure is not None:
            raise self._failure

    def read_all(self) -> Iterator[bytes]:
        with open(self._path, "rb") as file:
            yield from file

    def _cut_broken_end(self) -> None:
        """Cut the file after the last complete record, since no later record could be read.

        A killed writer leaves one torn record. A power failure may leave anything: the file is then copied first, and a
        warning is logged.

        Raises:
            UsageError: Records follow the broken part, or no line is a record: no writer leaves such a file.
        """
        whole, broken, lines = 0, "", list[bytes]()
        for number, line in enumerate(self.read_all(), start=1):
            if not _is_record(line):
                broken = broken or f"line {number} of {self._path}"
                lines.append(line)
            elif broken:
                raise UsageError(
                    f"{broken} must be a record, but is not, and more records follow. Restore the file, or cut it "
                    f"before that line to resume from there."
                )
            else:
                whole += len(line)
        end = b"".join(lines)
        is_torn_record = end[: len(RECORD_START)] == RECORD_START[: len(end)] and b"\n" not in end and b"\0" not in end
        if not whole and not is_torn_record:
            raise UsageError(f"{self._path} must be the journal of a study, but no line of it is a record. Restore it.")
        if not is_torn_record:
            copy = next(path for n in itertools.count(1) if not (path := Path(f"{self._path}.broken-{n}")).exists())
            with atomic_path(copy) as unfinished:
                shutil.copy(self._path, unfinished)
            logger.warning("%s and all that follows is broken, and is cut. The file as it was is %s.", broken, copy)
        os.truncate(self._path, whole)

    def _sync(self) -> None:
        while not self._closed.wait(SYNC_S) or self._written.is_set():
            if self._written.is_set():
                self._written.clear()
                try:
                    os.fsync(self._file.fileno())
                except OSError as error:  # the next write raises it
                    self._failure = StoreError(f"{self._path} cannot be written: {error}")
                    self._failure.__cause__ = error


def _parse_records(lines: Iterable[bytes], first: int) -> Iterator[dict[str, Any]]:
    """Yield the records in `lines` of a journal, from its line `first` on.

    Raises:
        OrderError: A record is missing, repeated or at another line than it was written to.
    """
    for number, line in enumerate(lines, start=first):
        record = json.loads(line, object_hook=_share_keys)
        if record.get(LINE, number) != number:
            raise OrderError(f"line {number} is record {record[LINE]} of it")
        if number == 1 and record.get("op_code", CREATE_STUDY) != CREATE_STUDY:
            raise OrderError("line 1 does not create a study")
        yield record


def _share_keys(content: dict[str, Any]) -> dict[str, Any]:
    """Return `content` with keys that all records share: the names of its metrics are a third of a report's memory."""
    return {sys.intern(key): value for key, value in content.items()}


def _is_record(line: bytes) -> bool:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return line.endswith(b"\n") and isinstance(record, dict) and "op_code" in record


class JournalBackend(StudyBackend):
    """A journal in the search's folder."""

    file_name = "study.journal"

    def __init__(self, place: StoragePath) -> None:
        super().__init__(place)
        self.path = place / self.file_name
        self.missing = str(self.path)
        self.collision = f"{place} exists"

    def check(self) -> None:
        """Do nothing, since the folder is new."""

    def exists(self) -> bool:
        return self.path.is_file()

    def open(self) -> StudyStore:
        journal = Journal(Path(str(self.path)))
        return StudyStore(self._load(journal), journal.close)

    def _suggest_name(self) -> str:
        """Return "Did you mean ...?" with the nearest name of a search beside this place, or ""."""
        near = difflib.get_close_matches(self.place.name, list_searches(self.place.parent), n=1)
        return f"Did you mean {near[0]}?" if near else ""

    def is_open(self) -> bool | None:
        return is_locked(f"{self.path}.lock")

    def read(self) -> BaseStorage:
        with self.usage_errors():
            if not self.exists():
                raise UsageError(
                    f"name must be a search in {self.place.parent}, but there is no {self.path}. "
                    f"{self._suggest_name()}".rstrip()
                )
            storage = self._load(JournalRecords(self._read_records()))
        names = [study.study_name for study in storage.get_all_studies()]
        if not names:
            raise UsageError(f"name must be a search that has begun, but {self.path} is empty.")
        check_name(names, self.place)
        return storage

    def _load(self, journal: JournalRecords) -> JournalStorage:
        """Return the storage of `journal`. Close the journal if there is an error.

        Raises:
            UsageError: A record was not written by Optuna, or records are missing.
        """
        try:
            return JournalStorage(journal)
        except Exception as error:  # Optuna raises any error for a record that it did not write
            journal.close()
            if isinstance(error, OSError):
                raise
            broken = (n for n, line in enumerate(journal.read_all(), start=1) if not _is_record(line))
            reason = str(error) if isinstance(error, OrderError) else f"Optuna raises {error!r}"
            reason = f"line {number} is no record" if (number := next(broken, None)) else reason
            raise UsageError(f"{self.path} must be the journal of a study, but {reason}. Restore it.") from error

    def _read_records(self) -> list[bytes]:
        records = self.path.read_bytes().splitlines(keepends=True)
        return records if not records or records[-1].endswith(b"\n") else records[:-1]  # the driver may be writing it

    @contextmanager
    def usage_errors(self) -> Iterator[None]:
        """Raise a UsageError in place of the errors of a folder or a bucket that cannot be used."""
        try:
            yield
        except OSError as error:
            raise UsageError(f"--storage must be a place that can be used, but {error}.") from error
