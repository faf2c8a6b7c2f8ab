"""A study in a bucket: Optuna's journal in segments, written by the driver that holds the lease."""

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from searchlight.search.errors import StoreError, UsageError
from searchlight.search.folder.retry import retry_while_unavailable
from searchlight.search.storage.backend import StudyStore
from searchlight.search.storage.journal import JournalBackend, JournalRecords
from searchlight.search.storage.lease import Lease
from searchlight.trainables.filesystem.paths import RemotePath

FOLDER, LOCK = "study", "study.lock"
SEGMENT = re.compile(r"\d+-\d+-\d+\.jsonl")
SEGMENT_BYTES = 2**16
READERS = 16  # segments that are read concurrently


class JournalSegment(NamedTuple):
    """The name of an object with one record per line. Names sort in the order of creation.

    Attributes:
        since: When the driver that wrote it acquired the lease.
        serial: The number of this segment among those of its driver.
        first: The number of its first record in the study.
    """

    since: int
    serial: int
    first: int

    @property
    def name(self) -> str:
        return f"{self.since:015d}-{self.serial:06d}-{self.first:09d}.jsonl"

    @classmethod
    def from_name(cls, name: str) -> "JournalSegment":
        return cls(*map(int, name.removesuffix(".jsonl").split("-")))


def read_records(place: RemotePath) -> list[bytes]:
    """Return the records of the study of the search at `place`.

    A segment counts up to the record at which a later segment begins: what a driver wrote after its successor began is
    not part of the study.

    Raises:
        UsageError: Records are missing, or the folder has other files.
        OSError: It cannot be read.
    """
    folder = place / FOLDER
    counted: list[tuple[JournalSegment, int | None]] = []
    end: int | None = None
    for segment in sorted(_list_segments(folder), reverse=True):
        if end is None or segment.first < end:
            counted.insert(0, (segment, end))
            end = segment.first
    with ThreadPoolExecutor(READERS) as pool:
        texts = pool.map(lambda each: (folder / each[0].name).read_bytes(), counted)
        records: list[bytes] = []
        for (segment, last), text in zip(counted, texts, strict=True):
            if segment.first != len(records):
                raise UsageError(
                    f"{folder} must have every record of the study, but those from {len(records)} to {segment.first} "
                    "are missing. Restore what was removed there."
                )
            records += text.splitlines(keepends=True)[: None if last is None else last - segment.first]
    return records


def _list_segments(folder: RemotePath) -> list[JournalSegment]:
    names = [each.name for each in folder.iterdir()]
    if strange := [name for name in names if not SEGMENT.fullmatch(name)]:
        raise UsageError(f"{folder} must hold segments of a study alone, but has {', '.join(strange)}. Remove that.")
    return [JournalSegment.from_name(name) for name in names]


class BucketJournal(JournalRecords):
    """The journal of the search at `place`, with an exclusive lease until it is closed.

    Objects cannot be appended to. The last segment is therefore rewritten at each `commit`, until it is large enough
    and the next one begins.

    Raises:
        UsageError: Another process has it open, or records are missing.
        OSError: The bucket cannot be used.
    """

    def __init__(self, place: RemotePath) -> None:
        super().__init__()
        self._place = place
        self._lease = Lease(place / LOCK, place.name)
        try:
            self._unread = read_records(place)
            latest = max((segment.since for segment in _list_segments(place / FOLDER)), default=0)
            self._segment = JournalSegment(max(self._lease.since, latest + 1), 0, len(self._unread))
            (place / FOLDER / self._segment.name).write_bytes(
                b""
            )  # from here on, an earlier driver's records are ignored
        except BaseException:  # also Ctrl-C: in a notebook, nothing else could release the lease
            self._lease.release()
            raise
        self._written: list[bytes] = []  # the records of the segment
        self._pending: list[bytes] = []  # records until the next commit
        self._closed = False

    def commit(self) -> None:
        """Write the pending records. Retry while the bucket is unavailable.

        Raises:
            StoreError: It stays unavailable, or another driver has acquired the lease.
        """
        if self._failure is not None:
            raise self._failure
        try:
            if self._pending:
                retry_while_unavailable(self._put)
        except StoreError as error:
            self._failure = error
            raise

    def close(self) -> None:
        """Commit and release the lease. Further calls have no effect.

        Raises:
            StoreError: The last records could not be written.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._failure is None:  # otherwise, the error was raised before
                self.commit()
        finally:
            self._lease.release()

    def _write(self, lines: list[bytes]) -> None:
        self._pending += lines

    def read_all(self) -> Iterable[bytes]:
        return [*read_records(self._place), *self._pending]

    def _put(self) -> None:
        self._lease.check()
        lines = [*self._written, *self._pending]
        try:
            (self._place / FOLDER / self._segment.name).write_bytes(b"".join(lines))
        except BaseException:  # it may still arrive, so later records go into another object
            self._begin_segment()
            raise
        self._written = lines
        self._pending.clear()
        if sum(map(len, lines)) >= SEGMENT_BYTES:
            self._begin_segment()

    def _begin_segment(self) -> None:
        since, serial, first = self._segment
        self._segment = JournalSegment(since, serial + 1, first + len(self._written))
        self._written = []


class BucketJournalBackend(JournalBackend):
    """A segmented journal, for a search in a bucket."""

    place: RemotePath
    file_name = FOLDER

    def exists(self) -> bool:
        return any(True for _ in self.path.iterdir())

    def open(self) -> StudyStore:
        with self.usage_errors():
            journal = BucketJournal(self.place)
            return StudyStore(self._load(journal), journal.close, journal.commit)

    def is_open(self) -> bool | None:
        """Return False without a lease. One that lies there may be that of a killed driver."""
        with self.usage_errors():
            return None if (self.place / LOCK).exists() else False

    def _read_records(self) -> list[bytes]:
        return read_records(self.place)
