"""The study's file: Optuna's journal, written by the one driver that holds it."""

import fcntl
import itertools
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend

from search.errors import UsageError

SYNC_S = 0.5  # what the machine itself may lose when its power goes; nothing is lost with this process


class Journal(BaseJournalBackend):
    """As Optuna's own file backend, which reads what it just wrote and waits for the disk at every record.

    There is one writer, so that neither is needed. The lock is held until the end, and freed by the kernel when the
    driver dies; Optuna's own is a file that a killed writer leaves behind, and the next one waits 30 s for it.

    Raises:
        UsageError: Another process has the study open, or the file is broken.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = open(f"{path}.lock", "a")  # noqa: SIM115 (closing it would free the lock)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{path.parent.name} must not be running, but another process has it open.") from None
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (until `close`)
        self._failure: OSError | None = None
        try:
            self._cut_torn_record()
        except UsageError:
            self._lock.close()
            raise
        self._unread: list[bytes] = []  # from record `_first` on
        self._first = sum(1 for _ in self._read_lines())
        self._written = threading.Event()
        self._closed = threading.Event()
        self._syncing = threading.Thread(target=self._sync, daemon=True, name="journal")
        self._syncing.start()

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Write `logs`.

        Raises:
            OSError: This cannot be written, or what went before could not be kept: nothing is written any more then.
        """
        if self._failure is not None:
            raise self._failure
        lines = [json.dumps(log, separators=(",", ":")).encode() + b"\n" for log in logs]
        try:
            left = memoryview(b"".join(lines))
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._failure = error
            raise
        self._written.set()
        self._unread += lines

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        if log_number_from < self._first:
            lines: Iterator[bytes] = itertools.islice(self._read_lines(), log_number_from, None)
        else:
            del self._unread[: log_number_from - self._first]
            self._first = log_number_from
            lines = iter(list(self._unread))
        for line in lines:
            yield json.loads(line)

    def close(self) -> None:
        """Let another process have the study. Closing it again changes nothing.

        Raises:
            OSError: What was written last could not be kept.
        """
        if self._closed.is_set():
            return
        self._closed.set()
        self._syncing.join()
        self._file.close()
        self._lock.close()
        if self._failure is not None:
            raise self._failure

    def _read_lines(self) -> Iterator[bytes]:
        with open(self._path, "rb") as file:
            yield from file

    def _cut_torn_record(self) -> None:
        """A writer that was killed may have left half a record, behind which nothing more could be read; a machine
        that lost its power, several.

        Raises:
            UsageError: Something is broken before what is whole: that was no writer.
        """
        whole, broken = 0, ""
        for number, line in enumerate(self._read_lines(), start=1):
            if not _is_record(line):
                broken = broken or f"line {number} of {self._path}"
            elif broken:
                raise UsageError(
                    f"{broken} must be a record, but is not, and more records follow. Restore the file, or cut it "
                    f"before that line to go on from there."
                )
            else:
                whole += len(line)
        os.truncate(self._path, whole)

    def _sync(self) -> None:
        while not self._closed.wait(SYNC_S) or self._written.is_set():
            if self._written.is_set():
                self._written.clear()
                try:
                    os.fsync(self._file.fileno())
                except OSError as error:  # the next write raises it
                    self._failure = error


def _is_record(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and isinstance(json.loads(line), dict)
    except ValueError:
        return False
