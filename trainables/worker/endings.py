"""Says how a segment ends early: by a stop, a migration, an error or a value that is not finite."""

import math
import traceback
from collections.abc import Callable, Mapping, Sequence

from searchlight.trainables.device_errors import (
    is_of_this_rank,
    is_of_torch,
    is_out_of_memory,
    measure_missing_gib,
)
from searchlight.trainables.filesystem.storage_errors import UnreadableError, UnwritableError
from searchlight.trainables.precision import Diverged
from searchlight.trainables.ranks import Ranks
from searchlight.trainables.registry import describe_missing_file
from searchlight.trainables.worker.messages import Infeasibility, Migration, SegmentEnd, WorkerReport


def check_other_metrics(others: Sequence[str], metrics: Mapping[str, float], when: str) -> None:
    """Check that a report has the other objectives and the metrics of constraints, as finite numbers.

    Raises:
        ValueError: One is missing.
        Diverged: One is not finite.
    """
    for name in others:
        if name not in metrics:
            raise ValueError(f"a report must have the metric {name!r}, but got {', '.join(sorted(metrics))}.")
        if not math.isfinite(metrics[name]):
            raise Diverged(f"{name} is {metrics[name]} {when}", dict(metrics), agreed=True, kind="objective")


def build_interruption(ranks: Sequence[tuple[bool, str]]) -> SegmentEnd | Migration:
    """Return the last report of a segment that stops early on all ranks.

    Args:
        ranks: For each rank, whether it stops, and why other workers must continue, or "" if the search stops.
    """
    leaving = [why for _, why in ranks if why]
    if not leaving or any(stop and not why for stop, why in ranks):
        return SegmentEnd("interrupted", "the search was stopped")
    return Migration(leaving[0])


def ends_gang(last: WorkerReport | None, context: Ranks) -> bool:
    """Return whether the workers of a gang end after `last`, since one rank has failed and the others wait for it.

    None: another rank has failed.
    """
    if context.world_size == 1:
        return False
    if isinstance(last, SegmentEnd):
        return last.outcome == "failed" or last.alone
    return last is None or (isinstance(last, Migration) and last.is_synchronous)


def build_unwritable(error: UnwritableError, context: Ranks, kept: str = "a checkpoint") -> SegmentEnd:
    """Return the last report of a segment whose files the storage does not take or give: no fault of its trial."""
    reason = f"{kept} cannot be {'read' if isinstance(error, UnreadableError) else 'written'}: {error}"
    return SegmentEnd("interrupted", reason, alone=context.world_size > 1, unwritable=True)


def is_lost_peer(error: BaseException) -> bool:
    """Return whether a collective raised `error` because another rank is gone. Gloo has no type for it."""
    if is_of_this_rank(error):
        return False
    gloo = isinstance(error, RuntimeError) and "/gloo/" in str(error)
    from searchlight.trainables.update.reduction import PeerFailed  # here, since a single rank needs no torch

    return gloo or isinstance(error, PeerFailed) or is_of_torch(error, "distributed.DistError")


def format_reason(error: BaseException) -> str:
    """Return why a trial failed, as one line."""
    lines = str(error).splitlines()
    message = f"{type(error).__name__}: {lines[0] if lines else ''}"
    return f"out of memory: {message}" if is_out_of_memory(error) else message + describe_missing_file(error)


def find_infeasibility(
    error: BaseException, build: Callable[..., object] | None, in_window: bool
) -> Infeasibility | None:
    """Return which constraint a trial that ended with `error` violates, or None if its config need not be the cause.

    Args:
        error: Out of memory, or what `build` raised: a ValueError or AssertionError refuses the values of the config.
        build: The method `build` of the task's class, or None if it was not reached.
        in_window: Whether a window was trained.
    """
    if is_out_of_memory(error):
        return Infeasibility("memory", measure_missing_gib(error) or 1.0, in_window)
    code = getattr(build, "__code__", None)
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    if isinstance(error, ValueError | AssertionError) and code and any(frame.f_code is code for frame in frames):
        return Infeasibility("build")
    return None
