"""A study in PostgreSQL: one connection, which holds a lock that the server frees when the driver dies."""

import hashlib
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy
from sqlalchemy import event, text
from sqlalchemy.engine import URL, Engine
from sqlalchemy.pool import StaticPool

from search.errors import StoreError, UsageError

logger = logging.getLogger(__name__)
# What is written goes over the connection that has the lock: when it is lost, both are, and a new one takes both anew.
ONE_CONNECTION: dict[str, Any] = {"poolclass": StaticPool}
DEFAULTS = {"connect_timeout": "10", "application_name": f"searchlight on {socket.gethostname()}"}
OPENING_S = 3.0  # the server may need a moment to see that an earlier driver is dead
PATIENCE_S = 300.0  # how long a search waits for a database that went away
BETWEEN_S = 0.5
NEW_TABLES = "has_schema_privilege(current_schema(), 'CREATE')"
# The server then sees within a minute that a driver's machine is gone.
KEEPALIVE = "SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3"


def add_default_options(url: URL) -> URL:
    """`url` with what it does not say itself."""
    return url.update_query_dict({key: value for key, value in DEFAULTS.items() if key not in url.query})


def check_rights(url: URL) -> None:
    """Whether a study can be written there, in tables that are there or can be made.

    Raises:
        UsageError: No.
    """
    engine = sqlalchemy.create_engine(url)
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
            f"--study must be a database that {user} may write to, but {url.database} is not. GRANT {right} TO {user}"
        )


@contextmanager
def lock_table_creation(url: URL) -> Iterator[None]:
    """Keep other searches from making the tables at the same time, which would fail."""
    engine = sqlalchemy.create_engine(url)
    try:
        with engine.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _compute_lock_key("")})
            yield
    finally:
        engine.dispose()


def lock_study(engine: Engine, name: str) -> None:
    """From now on `engine` connects only where it gets the lock of the study `name`, and waits for a lost database.

    Raises:
        UsageError: Another process has the study open.
    """
    holder = _Holder(name)
    event.listen(engine, "do_connect", holder.connect)
    engine.dispose()
    with engine.connect():
        holder.opened = True


class _Holder:
    """Makes the connections of one study."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.opened = False
        self._given_up = False

    def connect(self, dialect: Any, record: Any, arguments: Any, options: Any) -> Any:
        """A connection that has the lock.

        Raises:
            StoreError: The study was open, and cannot be opened again.
            UsageError: Another process has it open.
        """
        if self._given_up:
            raise StoreError(f"the database of {self.name} was lost before")
        patience_s = PATIENCE_S if self.opened else OPENING_S
        end = time.monotonic() + patience_s
        told = False
        while True:
            try:
                connection = dialect.connect(*arguments, **options)
                if _try_lock(connection, self.name):
                    return connection
                connection.close()
                reason = "another process has the study open"
            except dialect.loaded_dbapi.OperationalError as error:
                if not self.opened:
                    raise
                reason = str(error).splitlines()[0]
            if time.monotonic() > end:
                break
            if self.opened and not told:
                told = True
                logger.warning("the study's database is lost: trying for %g s (%s)", patience_s, reason)
            time.sleep(BETWEEN_S)
        if not self.opened:
            raise UsageError(f"{self.name} must not be running, but another process has it open.")
        self._given_up = True
        raise StoreError(f"the study's database was lost, and not found again in {patience_s:g} s ({reason})")


def _try_lock(connection: Any, name: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(KEEPALIVE)
        cursor.execute("SELECT pg_try_advisory_lock(%s)", (_compute_lock_key(name),))
        locked: bool = cursor.fetchone()[0]
    connection.commit()
    return locked


def _compute_lock_key(name: str) -> int:
    """The number that PostgreSQL knows the lock of a study by, in its own database."""
    return int.from_bytes(hashlib.blake2b(f"searchlight {name}".encode(), digest_size=8).digest(), signed=True)
