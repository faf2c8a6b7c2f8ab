"""The options that say where a search is kept."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from searchlight.search.folder.locations import local_path_of, parse_location
from searchlight.search.option import Options, option
from searchlight.search.storage.study_store import EXAMPLES
from searchlight.trainables.filesystem.paths import StoragePath, get_scheme, replaces_atomically

_storage = partial(option, "Storage and tracking")


class StorageOptions(Options):
    """The folder of a search, and its study.

    >>> StorageOptions(storage="s3://bucket/runs", name="one").path.name
    'one'
    """

    name: str = _storage("", "NAME", "Name of the search and of its folder. Default: task, date and time.")
    storage: Annotated[StoragePath, BeforeValidator(parse_location), PlainSerializer(str)] = _storage(
        Path("runs"), "PLACE", "Folder or bucket that holds the folders of searches, e.g. s3://bucket/path."
    )
    study: str = _storage("", "URL", f"Database of the study, e.g. {EXAMPLES}. Default: study.journal.", resumable=True)

    @property
    def path(self) -> StoragePath:
        """The location of all files of this search except MLflow's store."""
        return self.storage / self.name

    @property
    def local_path(self) -> Path:
        """The local folder of this search. For a bucket, it is temporary while the driver runs."""
        return local_path_of(self.path)

    def find_problems(self) -> Iterator[str]:
        yield from super().find_problems()
        if "name" in self.model_fields_set and not self.name:
            yield (
                "--name must be letters, digits, '.', '_' or '-', but got ''. "
                "Leave it out for a name with date and time."
            )
        if not self.study and not replaces_atomically(self.storage):
            yield (
                f"--study must be a database with --storage {get_scheme(self.storage)}://, but got none: a file there "
                "is empty while it is written, and a driver that dies then would lose it. "
                "Use postgresql://host/database."
            )
