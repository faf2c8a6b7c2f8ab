"""The choice of the checkpoint that a trial resumes from."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any

from searchlight.trainables import checkpoint
from searchlight.trainables.checkpoint.file import ABOUT
from searchlight.trainables.filesystem.paths import StoragePath, get_modified_ns, parse_path
from searchlight.trainables.filesystem.storage_errors import unreadable_errors

logger = logging.getLogger(__name__)
NUMBER = int | float
EACH = "*"  # stands for all keys
# What `TrialTrainer` writes, as types, and lists and dicts of them. What the task decides is not described: if it does
# not fit, the task may have changed, which is an error of its own and no damage.
COUNTS = dict.fromkeys(("steps", "skipped", "empty", "consecutive_skips"), int)
UPDATER = {"optimizers": dict, "schedulers": list, "ema": dict | None, "loss_scale": dict | None, **COUNTS}
STATE = {
    "epoch": int,
    "midway": type(None),
    "ahead": object,  # a task may count its samples with a tensor
    "best": NUMBER | None,
    "modules": {EACH: dict},
    "updaters": {EACH: UPDATER},
    "built": {"updaters": dict, "plateaus": list},
    "plateaus": list,
    "blowups": {EACH: dict},
    "task": object,
}
RANK = {"rng": dict, "noted": dict, "buffers": [dict]}
MIDWAY = {"windows": int, "seconds": NUMBER, "tallies": {EACH: dict}, "task_at_start": object, "ranks": [RANK]}


def find_resume_checkpoint(
    folder: StoragePath, epoch: int, candidates: Sequence[str | None], ranks: int
) -> tuple[StoragePath, dict[str, Any]] | None:
    """Return the path and content of the checkpoint to resume from, or None to start without one.

    A checkpoint within the next epoch, saved by the same number of ranks, takes precedence over all candidates.

    Args:
        folder: Where the trial's checkpoints are written.
        epoch: The last epoch that the trial has finished.
        candidates: Checkpoints of finished epochs, the newest first. None stands for a start without a checkpoint.
        ranks: The number of ranks that resume.

    Raises:
        CheckpointError: No candidate can be read.
        UnreadableError: Their storage cannot be read.
    """
    broken: list[checkpoint.CheckpointError] = []
    midway: list[tuple[int, StoragePath]] = []
    with unreadable_errors(folder):
        for path in _list_midway(folder):
            with suppress(FileNotFoundError):  # a replaced worker may still run and delete its file
                midway.append((get_modified_ns(path / ABOUT if path.is_dir() else path), path))
    for _, path in sorted(midway, reverse=True):
        found = _read(path, broken, {**STATE, "midway": MIDWAY})
        if found is None or found[1]["epoch"] != epoch:
            continue
        if len(found[1]["midway"]["ranks"]) == ranks:
            return found
        logger.warning("%s was saved by another number of workers: the epoch begins again.", path)
    for name in candidates:
        found = None if name is None else _read(parse_path(name), broken, STATE)
        if name is None or found is not None:
            for damage in broken:
                logger.warning("%s The one before it is used.", damage)
            return found
    raise broken[-1]


def _list_midway(folder: StoragePath) -> list[StoragePath]:
    """Return the checkpoints within an epoch. A folder that cannot be listed raises an OSError, unlike in glob()."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return [path for path in folder.iterdir() if fnmatchcase(path.name, "midway-*.pt")]
    return []


def _read(
    path: StoragePath, broken: list[checkpoint.CheckpointError], form: dict[str, Any]
) -> tuple[StoragePath, dict[str, Any]] | None:
    try:
        state = checkpoint.load(path)
        if wrong := [name for name, part in form.items() if not _fits(state, {name: part})]:
            raise checkpoint.CheckpointError(f"checkpoint {path} must be one of a trial, but its {wrong[0]} is not.")
    except checkpoint.CheckpointError as error:
        broken.append(error)
        return None
    return path, state


def _fits(value: Any, form: Any) -> bool:
    """Return whether `value` is as `form` says, a part of `STATE`."""
    if isinstance(form, list):
        return isinstance(value, list) and all(_fits(part, form[0]) for part in value)
    if not isinstance(form, dict):
        return isinstance(value, form)
    if not isinstance(value, dict):
        return False
    parts = dict.fromkeys(value, form[EACH]) if EACH in form else form
    return all(name in value and _fits(value[name], part) for name, part in parts.items())
