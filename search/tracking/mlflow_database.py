"""The database of MLflow in a SQLite file, created in one step."""

import os
from contextlib import suppress

from searchlight.search.tracking.uri import get_sqlite_path
from searchlight.trainables.filesystem.atomic_file import remove_leftovers


def create_database(uri: str) -> None:
    """Create the SQLite database of `uri` in one step, if it is missing.

    MLflow creates tables one by one. A driver that is killed meanwhile would leave a database that nobody can open.
    """
    from mlflow.tracking import MlflowClient

    path = get_sqlite_path(uri)
    if path is None:
        return
    remove_leftovers(path)
    if path.exists():
        return
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)  # of a killed process that had this number
    try:
        MlflowClient(tracking_uri=f"sqlite:///{temporary}")
        # Another search may have been first. On a file system without links, MlflowClient creates the database itself.
        with suppress(OSError):
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
