"""Where a study is kept: a journal beside the search, SQLite, or PostgreSQL; held by one driver at a time."""

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy
import yaml
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend
from sqlalchemy import event, text
from sqlalchemy.engine import URL

from search.errors import UsageError
from search.storage import bucket_journal, postgres
from search.storage.bucket_journal import BucketJournal, BucketReader
from search.storage.cached_rdb import CachedRDBStorage
from search.storage.journal import Journal
from search.storage.url import add_driver, get_sqlite_path, resolve_url
from trainables.filesystem.paths import RemotePath, StoragePath

LOCKED_S = 60  # how long a write to SQLite waits for the writes of others


@dataclass(frozen=True)
class StudyStore:
    """An open storage, how to let another driver have the study, and how to make sure that what was written is kept."""

    storage: BaseStorage
    close: Callable[[], None]
    commit: Callable[[], None] = field(default=lambda: None)


def check_store(url: str, name: str) -> None:
    """Whether a new study `name` can be kept there. Writes nothing.

    Raises:
        UsageError: No.
    """
    if not url:
        return
    path = get_sqlite_path(url)
    if path is not None and not (
        os.access(path.parent, os.W_OK | os.X_OK) and (not path.exists() or _is_writable(path))
    ):
        raise UsageError(f"--study must be a file that can be written, in a folder that can, but got {url}.")
    if _has_study_at(url, name):
        raise _build_exists_error(url, name)
    if path is None:
        with _convert_database_errors(url):
            postgres.check_rights(_build_engine_url(url))


def open_store(place: StoragePath, url: str = "", new: bool = False) -> StudyStore:
    """Open the store of the search at `place` to write to it, and make what is missing.

    Raises:
        UsageError: Another process has the study open, it cannot be opened, or it is not `new`.
    """
    if url:
        path = get_sqlite_path(url)
        with _convert_database_errors(url):
            store = _open_sqlite(url, path, place.name) if path else _open_postgres(url, place.name)
    elif isinstance(place, RemotePath):
        store = _open_bucket(place)
    else:
        journal = Journal(place / "study.journal")
        return StudyStore(JournalStorage(journal), journal.close)
    if new and _has_study(store.storage, place.name):
        store.close()
        raise (
            _build_exists_error(url, place.name)
            if url
            else UsageError(f"--name must be new, but {place} exists. Choose another.")
        )
    return store


def find_store(place: StoragePath, url: str = "") -> str:
    """Where the study of the search at `place` is, to be opened again: at `url`, if that is given.

    Raises:
        UsageError: There is none.
    """
    url = resolve_url(url) if url else read_study_url(place)
    with _convert_bucket_errors(place):
        there = place.is_dir() and (_has_study_at(url, place.name) if url else _has_journal(place))
    if not there:
        missing = f"{place} that is kept in {url}" if url else _get_journal_path(place)
        raise UsageError(
            f"--resume must name a search in {place.parent}, but there is no {missing}. "
            "See --list, --storage for another folder, and --study for a database that the folder does not name."
        )
    return url


def open_read_only(place: StoragePath, url: str = "") -> BaseStorage:
    """The store of the search at `place`, which may be running.

    Raises:
        UsageError: There is none.
    """
    if url:
        storage = _open_existing(url)
        if storage is None or not _has_study(storage, place.name):
            raise UsageError(f"name must be a search that has begun, but {place.name} is not in {url}.")
        return storage
    path = _get_journal_path(place)
    with _convert_bucket_errors(place):
        if not _has_journal(place):
            raise UsageError(f"name must be a search in {place.parent}, but there is no {path}.")
    try:
        journal = JournalStorage(_create_reader(place))
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"name must be a search that can be read, but {path} is broken: {_format_reason(error)}."
        ) from error
    names = [study.study_name for study in journal.get_all_studies()]
    if not names:
        raise UsageError(f"name must be a search that has begun, but {path} is empty.")
    check_name(names, place)
    return journal


def check_name(names: Sequence[str], place: StoragePath) -> None:
    """Whether the study of the search at `place` is among those with these `names`, of which there are some.

    Raises:
        UsageError: No.
    """
    if place.name not in names:
        raise UsageError(f"the folder of a search must have its name, {names[0]}, but is {place}. Rename it.")


def read_study_url(place: StoragePath) -> str:
    """Where the study of the search at `place` is kept; empty: in its own journal.

    Raises:
        UsageError: The folder's search.yaml cannot be read.
    """
    path = place / "search.yaml"
    with _convert_bucket_errors(place):
        if _has_journal(place) or not path.exists():
            return ""
    try:
        return str(yaml.safe_load(path.read_text(encoding="utf-8")).get("study", ""))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, AttributeError) as error:
        raise UsageError(f"{path} must say where the study is, but cannot be read: {_format_reason(error)}.") from error


def _get_journal_path(place: StoragePath) -> StoragePath:
    return place / (bucket_journal.FOLDER if isinstance(place, RemotePath) else "study.journal")


def _has_journal(place: StoragePath) -> bool:
    return bucket_journal.has_study(place) if isinstance(place, RemotePath) else (place / "study.journal").is_file()


def _create_reader(place: StoragePath) -> BaseJournalBackend:
    if isinstance(place, RemotePath):
        return BucketReader(place)
    # Optuna's own base class for locks is not public; what it asks of one is acquire and release.
    return JournalFileBackend(str(place / "study.journal"), lock_obj=_NoLock())  # type: ignore[arg-type]


@contextmanager
def _convert_bucket_errors(place: StoragePath) -> Iterator[None]:
    """A bucket that cannot be asked is a mistake of the user."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"--storage must be a place that can be used, but {error}.") from error


class _NoLock:
    """For reading alone, which appends nothing."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def _open_bucket(place: RemotePath) -> StudyStore:
    with _convert_bucket_errors(place):
        journal = BucketJournal(place)
    return StudyStore(JournalStorage(journal), journal.close, journal.commit)


def _open_sqlite(url: str, path: Path, name: str) -> StudyStore:
    lock = open(f"{path}.{name}.lock", "a")  # noqa: SIM115 (held until the end, and freed by the kernel)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise UsageError(f"{name} must not be running, but another process has it open.") from None
    with open(f"{path}.lock", "a") as making:  # two searches that make the tables at once would fail
        fcntl.flock(making, fcntl.LOCK_EX)
        storage = RDBStorage(
            _escape_braces(_build_engine_url(url)), engine_kwargs={"connect_args": {"timeout": LOCKED_S}}
        )

    # Readers then keep nobody waiting, and a write does not wait for the disk: only a power cut could lose the last.
    event.listen(storage.engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = NORMAL"))
    with storage.engine.connect() as connection:
        connection.execute(text("PRAGMA journal_mode = WAL"))
    storage.engine.dispose()

    def close() -> None:
        storage.engine.dispose()
        lock.close()

    return StudyStore(CachedRDBStorage(storage), close)


def _open_postgres(url: str, name: str) -> StudyStore:
    template = _escape_braces(_build_engine_url(url))
    with postgres.lock_table_creation(_build_engine_url(url)):
        RDBStorage(template).engine.dispose()
    storage = RDBStorage(template, postgres.ONE_CONNECTION, skip_table_creation=True, skip_compatibility_check=True)
    postgres.lock_study(storage.engine, name)
    return StudyStore(CachedRDBStorage(storage), storage.engine.dispose)


def _open_existing(url: str) -> RDBStorage | None:
    """The storage at `url`, or None if there is none yet."""
    path = get_sqlite_path(url)
    if path is not None and not path.exists():
        return None
    with _convert_database_errors(url):
        engine = sqlalchemy.create_engine(_build_engine_url(url))
        try:
            if not sqlalchemy.inspect(engine).has_table("studies"):
                return None
        finally:
            engine.dispose()
        return RDBStorage(_escape_braces(_build_engine_url(url)), skip_table_creation=True)


def _has_study_at(url: str, name: str) -> bool:
    """Whether there is a study `name`."""
    storage = _open_existing(url)
    if storage is None:
        return False
    try:
        return _has_study(storage, name)
    finally:
        storage.engine.dispose()


def _is_writable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.W_OK)


def _build_exists_error(url: str, name: str) -> UsageError:
    return UsageError(f"--name must be new, but {name} exists in --study {url}. Choose another.")


def _has_study(storage: BaseStorage, name: str) -> bool:
    return any(study.study_name == name for study in storage.get_all_studies())


def _build_engine_url(url: str) -> URL:
    parsed = add_driver(url)
    return parsed if parsed.drivername == "sqlite" else postgres.add_default_options(parsed)


def _escape_braces(url: URL) -> str:
    """What Optuna wants, who puts the version of its tables into braces."""
    return url.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}")


@contextmanager
def _convert_database_errors(url: str) -> Iterator[None]:
    """A database that cannot be used is a mistake of the user."""
    try:
        yield
    except ImportError as error:
        raise UsageError(
            f"--study {url} must have the package psycopg, but it is not installed. pip install 'psycopg[binary]'"
        ) from error
    except (sqlalchemy.exc.SQLAlchemyError, StorageInternalError, OSError) as error:
        raise UsageError(f"--study must be a database that can be used, but {url}: {_format_reason(error)}.") from error
    except RuntimeError as error:  # Optuna's, for tables of another version of it
        raise UsageError(f"--study must have the tables of this Optuna, but {url}: {error}") from error


def _format_reason(error: BaseException) -> str:
    """What the database said, in one line."""
    while isinstance(error, StorageInternalError) and error.__cause__ is not None:
        error = error.__cause__
    said = getattr(error, "orig", None) or error
    return " ".join(str(said).split()).rstrip(".")
