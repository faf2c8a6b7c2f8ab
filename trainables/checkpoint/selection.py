"""The choice of the checkpoint that a trial resumes from."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from searchlight.trainables import checkpoint
from searchlight.trainables.checkpoint.file import ABOUT
from searchlight.trainables.filesystem.paths import StoragePath, get_modified_ns, parse_path
from searchlight.trainables.filesystem.storage_errors import unreadable_errors

logger = logging.getLogger(__name__)


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
        for path in folder.glob("midway-*.pt"):
            with suppress(FileNotFoundError):  # a replaced worker may still run and delete its file
                midway.append((get_modified_ns(path / ABOUT if path.is_dir() else path), path))
    for _, path in sorted(midway, reverse=True):
        found = _read(path, broken)
        if found is None or found[1]["epoch"] != epoch:
            continue
        if len(found[1]["midway"]["ranks"]) == ranks:
            return found
        logger.warning("%s was saved by another number of workers: the epoch begins again.", path)
    for name in candidates:
        found = None if name is None else _read(parse_path(name), broken)
        if name is None or found is not None:
            for damage in broken:
                logger.warning("%s The one before it is used.", damage)
            return found
    raise broken[-1]


def _read(path: StoragePath, broken: list[checkpoint.CheckpointError]) -> tuple[StoragePath, dict[str, Any]] | None:
    try:
        return path, checkpoint.load(path)
    except checkpoint.CheckpointError as error:
        broken.append(error)
        return None
