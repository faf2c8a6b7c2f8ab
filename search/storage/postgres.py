"""A study in PostgreSQL: one connection with an advisory lock, which the server frees when the driver dies."""

import hashlib
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import sqlalchemy
from optuna.storages import RDBStorage
from sqlalchemy import event, text
from sqlalchemy.engine import URL, Engine
from sqlalchemy.pool import StaticPool

from searchlight.search.errors import StoreError, UsageError
from searchlight.search.folder.retry import BETWEEN_S, retry_while_unavailable
from searchlight.search.storage.backend import StudyStore, running_error
from searchlight.search.storage.cached_rdb import CachedRDBStorage
from searchlight.search.storage.database import DatabaseBackend

# Writes use the connection that holds the lock: a new connection must acquire the lock again.
ONE_CONNECTION: dict[str, Any] = {"poolclass": StaticPool}
OPENING_S = 3.0  # the server may need a moment to see that an earlier driver is dead
NEW_TABLES = "has_schema_privilege(current_schema(), 'CREATE')"
IS_LOCKED = """SELECT EXISTS (
    SELECT FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
    WHERE locktype = 'advisory' AND datname = current_database() AND ((classid::bigint << 32) | objid::bigint) = :key
)"""
# With these, the server notices within a minute that a driver's machine is gone.
KEEPALIVE = "SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3"


class PostgresBackend(DatabaseBackend):
    """A study in PostgreSQL."""

    driver = "postgresql+psycopg"
    example = "postgresql://host/database"
    defaults = {"connect_timeout": "10", "application_name": f"searchlight on {socket.gethostname()}"}  # noqa: RUF012

    def is_open(self) -> bool | None:
        """Return whether a driver holds the lock. None: it was killed, or takes the lock again with its next write."""
        with self.usage_errors():
            engine = sqlalchemy.create_engine(self.engine_url)
            try:
                with engine.connect() as connection:
                    return (
                        connection.execute(text(IS_LOCKED), {"key": _compute_lock_key(self.name)}).scalar_one() or None
                    )
            finally:
                engine.dispose()

    def check(self) -> None:
        super().check()
        with self.usage_errors():
            self._check_rights()

    def _check_rights(self) -> None:
        """Check that a study can be written, in tables that exist or can be created."""
        engine = sqlalchemy.create_engine(self.engine_url)
        try:
            with engine.connect() as connection:
                there, user = connection.execute(text("SELECT to_regclass('studies') IS NOT NULL, current_user")).one()
                question = "has_table_privilege('studies', 'INSERT')" if there else NEW_TABLES
                allowed = connection.execute(text(f"SELECT {question}")).scalar_one()
        finally:
            engine.dispose()
        if not allowed:
            right = "INSERT ON ALL TABLES IN SCHEMA public" if there else "CREATE ON SCHEMA public"
            raise UsageError(
                f"--study must be a database that {user} may write to, but {self.engine_url.database} is not. "
                f"GRANT {right} TO {user}"
            )

    def _open(self) -> StudyStore:
        with _lock_table_creation(self.engine_url):
            RDBStorage(self.optuna_url).engine.dispose()
        storage = RDBStorage(self.optuna_url, ONE_CONNECTION, skip_table_creation=True, skip_compatibility_check=True)
        _lock_study(storage.engine, self.name)
        return StudyStore(CachedRDBStorage(storage), storage.engine.dispose)


@contextmanager
def _lock_table_creation(url: URL) -> Iterator[None]:
    """Keep other searches from creating the tables at the same time, which would fail."""
    engine = sqlalchemy.create_engine(url)
    try:
        with engine.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _compute_lock_key("")})
            yield
    finally:
        engine.dispose()


def _lock_study(engine: Engine, name: str) -> None:
    """Acquire the lock of the study `name` on every new connection of `engine`. Reconnect if the database is lost.

    Raises:
        UsageError: Another process has the study open.
    """
    holder = _Holder(name)
    event.listen(engine, "do_connect", holder.connect)
    engine.dispose()
    event.listen(engine, "close", partial(_unlock, error=engine.dialect.loaded_dbapi.Error))
    with engine.connect():
        holder.opened = True


class _LockedError(Exception):
    """Another process has the lock of the study."""


class _Holder:
    """Creates the locked connections of one study."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.opened = False
        self._lost = False

    def connect(self, dialect: Any, record: Any, arguments: Any, options: Any) -> Any:
        """Return a connection that holds the lock.

        Raises:
            StoreError: The connection was lost, and cannot be opened again.
            UsageError: Another process has the study open.
        """

        def connect() -> Any:
            connection = dialect.connect(*arguments, **options)
            if not _try_lock(connection, self.name):
                connection.close()
                raise _LockedError("another process has the study open")
            return connection

        if self._lost:
            raise StoreError(f"the database of {self.name} was lost before")
        if self.opened:
            try:
                errors = (_LockedError, dialect.loaded_dbapi.OperationalError)
                return retry_while_unavailable(connect, "the study's database", errors)
            except StoreError:
                self._lost = True
                raise
        end = time.monotonic() + OPENING_S
        while True:
            try:
                return connect()
            except _LockedError:
                if time.monotonic() > end:
                    raise running_error(self.name) from None
            time.sleep(BETWEEN_S)


def _try_lock(connection: Any, name: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(KEEPALIVE)
        cursor.execute("SELECT pg_try_advisory_lock(%s)", (_compute_lock_key(name),))
        locked: bool = cursor.fetchone()[0]
    connection.commit()
    return locked


def _unlock(connection: Any, _: object, error: type[Exception]) -> None:
    """Free the lock before its connection is closed, since the server notices the end of a connection later."""
    with suppress(error), connection.cursor() as cursor:  # it is lost, and so is the lock
        cursor.execute("SELECT pg_advisory_unlock_all()")


def _compute_lock_key(name: str) -> int:
    """Return the key of a study's advisory lock."""
    return int.from_bytes(hashlib.blake2b(f"searchlight {name}".encode(), digest_size=8).digest(), signed=True)
