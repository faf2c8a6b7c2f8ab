"""The common part of the database storages."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import sqlalchemy
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.engine import URL, make_url

from searchlight.search.errors import UsageError
from searchlight.search.storage.backend import StudyBackend, StudyStore, format_reason, has_study
from searchlight.trainables.filesystem.paths import StoragePath


@contextmanager
def database_errors(url: str) -> Iterator[None]:
    """Raise a UsageError in place of the errors of a broken or unavailable database. Other errors pass."""
    try:
        yield
    except (sqlalchemy.exc.SQLAlchemyError, StorageInternalError) as error:
        raise UsageError(f"--study must be a database that can be used, but {url}: {format_reason(error)}.") from error


class DatabaseBackend(StudyBackend):
    """A database that SQLAlchemy supports.

    Attributes:
        driver: SQLAlchemy's name of the database and its driver.
        example: A URL, for messages.
        defaults: Options of the connection, which the URL may override.
    """

    driver: ClassVar[str]
    example: ClassVar[str]
    defaults: ClassVar[dict[str, str]] = {}

    def __init__(self, place: StoragePath, url: str) -> None:
        super().__init__(place, url)
        self.missing = f"{place} that is kept in {url}"
        self.collision = f"{self.name} exists in --study {url}"

    @classmethod
    def resolve_url(cls, url: str) -> str:
        """Return `url` with an absolute path.

        Raises:
            UsageError: The URL names no database.
        """
        return url

    @property
    def engine_url(self) -> URL:
        """The URL for SQLAlchemy."""
        url = make_url(self.url).set(drivername=self.driver)
        return url.update_query_dict({key: value for key, value in self.defaults.items() if key not in url.query})

    @property
    def optuna_url(self) -> str:
        """The URL for Optuna, which formats the version of its tables into braces."""
        return self.engine_url.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}")

    def check(self) -> None:
        if self.exists():
            raise UsageError(f"--name must be new, but {self.collision}. Choose another.")

    def exists(self) -> bool:
        storage = self._open_existing()
        if storage is None:
            return False
        try:
            with self.usage_errors():
                return has_study(storage, self.name)
        finally:
            storage.engine.dispose()

    def open(self) -> StudyStore:
        with self.usage_errors():
            return self._open()

    def read(self) -> RDBStorage:
        storage = self._open_existing()
        with self.usage_errors():
            if storage is None or not has_study(storage, self.name):
                raise UsageError(f"name must be a search that has begun, but {self.name} is not in {self.url}.")
        return storage

    @abstractmethod
    def _open(self) -> StudyStore: ...

    def _open_existing(self) -> RDBStorage | None:
        """Return the storage, or None if the database has no tables yet."""
        with self.usage_errors():
            engine = sqlalchemy.create_engine(self.engine_url)
            try:
                if not sqlalchemy.inspect(engine).has_table("studies"):
                    return None
            finally:
                engine.dispose()
            return RDBStorage(self.optuna_url, skip_table_creation=True)

    @contextmanager
    def usage_errors(self) -> Iterator[None]:
        """Raise a UsageError in place of the errors of a database that cannot be used."""
        try:
            with database_errors(self.url):
                yield
        except ImportError as error:
            raise UsageError(
                f"--study {self.url} must have the package psycopg, but it is not installed. "
                "pip install 'psycopg[binary]'"
            ) from error
        except OSError as error:
            raise UsageError(f"--study must be a database that can be used, but {self.url}: {error}.") from error
        except RuntimeError as error:  # Optuna's, for tables of another version of it
            raise UsageError(f"--study must have the tables of this Optuna, but {self.url}: {error}") from error
