"""Which checkpoint a trial goes on from."""

import logging
from contextlib import suppress
from typing import Any

from trainables import checkpoint
from trainables.filesystem.paths import StoragePath, get_modified_ns, parse_path

logger = logging.getLogger(__name__)


def find_resume_checkpoint(stretch: dict[str, Any], ranks: int) -> tuple[StoragePath, dict[str, Any]] | None:
    """The checkpoint to go on from, and what it holds: one that as many ranks saved in the middle of the epoch that
    comes next, else the newest that can be read.

    None where the trial is to start anew, which is as good as its first checkpoint.

    Raises:
        CheckpointError: None of them can be read.
        OSError: They lie in a bucket that cannot be read.
    """
    broken: list[checkpoint.CheckpointError] = []
    midway: list[tuple[int, StoragePath]] = []
    for path in parse_path(stretch["folder"]).glob("midway-*.pt"):
        with suppress(FileNotFoundError):  # a worker that was given up may still live, and delete its own
            midway.append((get_modified_ns(path), path))
    for _, path in sorted(midway, reverse=True):
        state = _read(path, broken)
        if state is None or state["epoch"] != stretch["epoch"]:
            continue
        if len(state["midway"]["ranks"]) == ranks:
            return path, state
        logger.warning("%s was saved by another number of workers: the epoch begins again.", path)
    for name in [stretch["checkpoint"], *stretch["earlier"]]:
        found = None if name is None else _read(parse_path(name), broken)
        if name is None or found is not None:
            for error in broken:
                logger.warning("%s The one before it is used.", error)
            return None if found is None else (parse_path(name), found)
    raise broken[-1]


def _read(path: StoragePath, broken: list[checkpoint.CheckpointError]) -> dict[str, Any] | None:
    try:
        return checkpoint.load(path)
    except checkpoint.CheckpointError as error:
        broken.append(error)
        return None
