"""A study in SQLite: a file with one writer per search and any number of readers."""

import fcntl
import os
from pathlib import Path

from optuna.storages import RDBStorage
from sqlalchemy import event, text
from sqlalchemy.engine import make_url

from searchlight.search.errors import UsageError
from searchlight.search.storage.backend import StudyStore, is_locked, lock_study_file
from searchlight.search.storage.cached_rdb import CachedRDBStorage
from searchlight.search.storage.database import DatabaseBackend

LOCKED_S = 60  # how long a write waits for the writes of other searches


class SQLiteBackend(DatabaseBackend):
    """A study in SQLite."""

    driver = "sqlite"
    example = "sqlite:///path.db"

    @classmethod
    def resolve_url(cls, url: str) -> str:
        parsed = make_url(url)
        if parsed.database in (None, "", ":memory:") or parsed.host:
            raise UsageError(f"--study must name a file, as {cls.example} does, but got {url!r}.")
        return parsed.set(database=str(Path(str(parsed.database)).expanduser().absolute())).render_as_string()

    @property
    def path(self) -> Path:
        """The file of the database."""
        return Path(str(self.engine_url.database))

    def check(self) -> None:
        path = self.path
        is_writable = not path.exists() or (path.is_file() and os.access(path, os.W_OK))
        if not is_writable or not os.access(path.parent, os.W_OK | os.X_OK):
            raise UsageError(f"--study must be a file that can be written, in a folder that can, but got {self.url}.")
        super().check()

    def is_open(self) -> bool | None:
        return is_locked(self._lock_path)

    @property
    def _lock_path(self) -> str:
        return f"{self.path.resolve()}.{self.name}.lock"  # a link to the file has the same lock

    def _open(self) -> StudyStore:
        lock = lock_study_file(self._lock_path, self.name)
        try:
            storage = self._create_storage()
        except BaseException:  # also Ctrl-C: in a notebook, nothing else could release the lock
            lock.close()
            raise

        def close() -> None:
            storage.engine.dispose()
            lock.close()

        return StudyStore(CachedRDBStorage(storage), close)

    def _create_storage(self) -> RDBStorage:
        with open(f"{self.path}.lock", "a") as creation:  # two searches that create the tables at once would fail
            fcntl.flock(creation, fcntl.LOCK_EX)
            storage = RDBStorage(self.optuna_url, engine_kwargs={"connect_args": {"timeout": LOCKED_S}})
        # WAL lets readers run during writes. NORMAL does not wait for the disk: a power cut may lose the last writes.
        event.listen(storage.engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = NORMAL"))
        with storage.engine.connect() as connection:
            connection.execute(text("PRAGMA journal_mode = WAL"))
        storage.engine.dispose()
        return storage

    def _open_existing(self) -> RDBStorage | None:
        return super()._open_existing() if self.path.exists() else None  # connecting would create the file
