"""The metadata of a search in its study."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optuna.storages import BaseStorage

from searchlight.search.config import SearchConfig, load_config
from searchlight.search.config.search_config import OPTIONS
from searchlight.search.errors import UsageError
from searchlight.search.folder.locations import local_path_of
from searchlight.search.option import option_name
from searchlight.search.storage.backend import check_name
from searchlight.trainables.filesystem.paths import StoragePath

ALL_CHECKPOINTS = 10**9


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


def build_resume_config(about: Mapping[str, Any], place: StoragePath, given: Mapping[str, Any]) -> SearchConfig:
    """Return the stored config with the overrides in `given` and the present location of the search."""
    resumable = {option.key for option in OPTIONS if option.resumable}
    if fixed := sorted(given.keys() - resumable):
        named = ", ".join("a task" if name == "task" else option_name(name) for name in fixed)
        raise UsageError(
            f"--resume must come without {named}: {place.name} continues as it began. "
            f"Options that may change: {', '.join(map(option_name, sorted(resumable)))}."
        )
    # Older searches without these options kept all checkpoints and confirmed nothing.
    before = {
        "keep_checkpoints": ALL_CHECKPOINTS,
        "confirm": 0,
        **about["config"],
        "storage": place.parent,
        "name": place.name,
        "quiet": False,
    }
    path, _, name = before["task"].rpartition(":")
    copy = local_path_of(place) / "code" / Path(path).name
    if path.endswith(".py") and not Path(path).exists() and copy.exists():
        before["task"] = f"{copy}:{name}"
    return load_config({**{key: value for key, value in before.items() if value is not None}, **given})
