"""The URL of the database that a study is kept in."""

from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from search.errors import UsageError

DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "postgresql+psycopg": "postgresql+psycopg"}


def resolve_url(url: str) -> str:
    """`url` with an absolute path.

    Raises:
        UsageError: It is of no kind that we know, or holds a password.
    """
    rule = "--study must be like sqlite:///path.db or postgresql://host/database"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # Without its cause, and without what stands before an @: that may be a password.
        raise UsageError(f"{rule}, but got {url.rpartition('@')[2]!r}.") from None
    if parsed.password is not None or any("password" in key for key in parsed.query):
        raise UsageError(
            "--study must be without a password, but has one, and would be kept in search.yaml. "
            "Put it into PGPASSWORD or ~/.pgpass."
        )
    if parsed.drivername not in DRIVERS:
        raise UsageError(f"{rule}, but got {url!r}.")
    if parsed.drivername != "sqlite":
        return url
    if parsed.database in (None, "", ":memory:") or parsed.host:
        raise UsageError(f"--study must name a file, as sqlite:///path.db does, but got {url!r}.")
    path = Path(str(parsed.database)).expanduser().absolute()
    return parsed.set(database=str(path)).render_as_string()


def get_sqlite_path(url: str) -> Path | None:
    """The file of an SQLite database; None for a server."""
    parsed = make_url(url)
    return Path(str(parsed.database)) if parsed.drivername == "sqlite" else None


def add_driver(url: str) -> URL:
    """`url` as SQLAlchemy wants it."""
    parsed = make_url(url)
    return parsed.set(drivername=DRIVERS[parsed.drivername])
