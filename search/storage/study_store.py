"""The storage of a study: a journal in the search's folder or a database, written by one driver at a time."""

from typing import Any

import yaml
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from searchlight.search.errors import UsageError
from searchlight.search.formatting import list_command
from searchlight.search.storage.backend import StudyBackend, StudyStore, format_reason, has_study
from searchlight.search.storage.bucket_journal import BucketJournalBackend
from searchlight.search.storage.database import DatabaseBackend
from searchlight.search.storage.journal import JournalBackend
from searchlight.search.storage.postgres import PostgresBackend
from searchlight.search.storage.sqlite import SQLiteBackend
from searchlight.trainables.filesystem.paths import RemotePath, StoragePath

BACKENDS: dict[str, type[DatabaseBackend]] = {
    "sqlite": SQLiteBackend,
    "postgresql": PostgresBackend,
    "postgresql+psycopg": PostgresBackend,
}  # by the scheme of the URL
EXAMPLES = " or ".join(dict.fromkeys(backend.example for backend in BACKENDS.values()))


def create_backend(place: StoragePath, url: str = "") -> StudyBackend:
    """Return the backend for the search at `place`: the database at `url`, or a journal in its folder."""
    if url:
        return BACKENDS[make_url(url).drivername](place, url)
    return _create_journal(place)


def _create_journal(place: StoragePath) -> JournalBackend:
    return BucketJournalBackend(place) if isinstance(place, RemotePath) else JournalBackend(place)


def resolve_url(url: str) -> str:
    """Return the URL of a database with an absolute path.

    Raises:
        UsageError: The scheme is unknown, or the URL holds a password.
    """
    rule = f"--study must be like {EXAMPLES}"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # Without its cause and the part before an @, which may hold a password.
        raise UsageError(f"{rule}, but got {url.rpartition('@')[2]!r}.") from None
    if parsed.password is not None or any("password" in key for key in parsed.query):
        raise UsageError(
            "--study must be without a password, but has one, and would be kept in search.yaml. "
            "Put it into PGPASSWORD or ~/.pgpass."
        )
    if parsed.drivername not in BACKENDS:
        raise UsageError(f"{rule}, but got {url!r}.")
    return BACKENDS[parsed.drivername].resolve_url(url)


def open_store(place: StoragePath, url: str = "", new: bool = False) -> StudyStore:
    """Open the study of the search at `place` to write to it, and create it if it is missing.

    Raises:
        UsageError: Another process has the study open, it cannot be opened, or it exists although `new`.
    """
    backend = create_backend(place, url)
    store = backend.open()
    if new and has_study(store.storage, place.name):
        store.close()
        raise UsageError(f"--name must be new, but {backend.collision}. Choose another.")
    return store


def find_store(place: StoragePath, url: str = "") -> str:
    """Return the URL of the study of the search at `place`: `url` if given, else the stored one.

    Raises:
        UsageError: The study does not exist.
    """
    url = resolve_url(url) if url else read_study_url(place)
    if not holds_study(place, url):
        raise UsageError(
            f"name must be a search in {place.parent}, but there is no {create_backend(place, url).missing}. "
            f"{list_command(place.parent)} shows all searches. "
            "Give --storage for another folder, or --study for a database that the folder does not name."
        )
    return url


def holds_study(place: StoragePath, url: str) -> bool:
    """Return whether the search at `place` has a study at `url`, or a journal if that is "".

    Raises:
        UsageError: It cannot be told.
    """
    with _create_journal(place).usage_errors():
        return place.is_dir() and create_backend(place, url).exists()


def read_study_url(place: StoragePath) -> str:
    """Return the stored URL of the study of the search at `place`, or "" for a journal.

    Raises:
        UsageError: The folder's search.yaml cannot be read.
    """
    path = place / "search.yaml"
    journal = _create_journal(place)
    with journal.usage_errors():
        if journal.exists() or not path.exists():
            return ""
    return str(read_search_yaml(place).get("study", ""))


def read_search_yaml(place: StoragePath) -> dict[str, Any]:
    """Return the options in search.yaml of the search at `place`, by their keys.

    Raises:
        UsageError: The file cannot be read.
    """
    path = place / "search.yaml"
    try:
        return dict(yaml.safe_load(path.read_text(encoding="utf-8")).items())
    except (OSError, UnicodeDecodeError, yaml.YAMLError, AttributeError, RecursionError) as error:  # nested too deeply
        raise UsageError(f"{path} must say where the study is, but cannot be read: {format_reason(error)}.") from error
