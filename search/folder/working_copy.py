"""The local folder of a search: its own folder, or a temporary one for a search in a bucket."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from searchlight.search.errors import UsageError
from searchlight.search.folder.locations import local_path_of
from searchlight.trainables.filesystem.paths import StoragePath, download

# Not copied, since workers read and write these in the bucket.
NOT_HERE = ("checkpoints", "files", "study", "study.lock")


@contextmanager
def working_copy(place: StoragePath) -> Iterator[Path]:
    """Yield `local_path_of(place)`. For a bucket, create the folder and remove it at the end."""
    folder = local_path_of(place)
    if folder == place or folder.exists():  # the search runs in this process
        yield folder
        return
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def downloaded_copy(place: StoragePath) -> Iterator[Path]:
    """Yield the working copy with the files of the bucket.

    Raises:
        UsageError: The bucket cannot be read.
    """
    is_new = place != (local := local_path_of(place)) and not local.exists()
    with working_copy(place) as folder:
        try:
            for path in place.iterdir() if is_new else ():
                if path.name not in NOT_HERE:
                    with suppress(FileNotFoundError):  # removed meanwhile, or S3's entry of an empty folder
                        download(path, folder / path.name)
        except OSError as error:
            raise UsageError(f"--storage must be a place that can be read, but {error}.") from error
        yield folder
