"""The metadata of a search in its study."""

from typing import Any

from optuna.storages import BaseStorage

from searchlight.search.errors import UsageError
from searchlight.search.storage.backend import check_name
from searchlight.trainables.filesystem.paths import StoragePath


def load_metadata(storage: BaseStorage, place: StoragePath) -> dict[str, Any]:
    """Return the stored metadata of a search, with its objective and mode.

    Raises:
        UsageError: The driver was killed before it stored them, or the folder of the search was renamed.
    """
    names = [study.study_name for study in storage.get_all_studies()]
    if names:
        check_name(names, place)
    about = storage.get_study_user_attrs(storage.get_study_id_from_name(place.name)) if names else {}
    if "search" not in about:
        raise UsageError(
            f"name must be a search that has begun, but {place.name} ended before it did. "
            f"Remove {place}, and start it again under another name."
        )
    return {**about["search"], "objective": about["objective"], "mode": about["mode"]}
