"""Decides what follows when the workers of a gang have ended."""

from dataclasses import dataclass
from typing import Literal

from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, OutOfMemoryError

from searchlight.trainables.worker.messages import Reached

FAILED_STARTS = 1  # in a row; then another gang continues the trial
MEMORY_LOSSES = 1  # without progress; after another one, the trial counts as the cause


@dataclass(frozen=True)
class FailureDecision:
    """The action after a gang lost its workers, and the reason.

    `start`: start new workers. `fail`: fail the trial. `room`: the cluster has no room. `give up`: end the gang.
    """

    kind: Literal["start", "fail", "room", "give up"]
    reason: str = ""
    note: str = ""
    lacks_memory: bool = False


class FailurePolicy:
    """Counts how often a gang lost its workers.

    Args:
        limit: How often a trial may lose its workers without progress.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._furthest = 0
        self._losses = 0
        self._memory_losses = 0  # those of Ray's memory monitor
        self._failed_starts = 0

    def start_segment(self, epoch: int) -> None:
        """Begin a segment after `epoch`."""
        self._furthest, self._losses, self._memory_losses = epoch, 0, 0

    def record_progress(self, epoch: int) -> None:
        """Count a report. A repeated epoch is no progress, since the trial could fail after it forever."""
        self._failed_starts = 0
        if epoch > self._furthest:
            self._furthest, self._losses, self._memory_losses = epoch, 0, 0

    def decide(
        self, failure: BaseException | None, reached: Reached, expected: str, leaving: str = ""
    ) -> FailureDecision:
        """Return what to do after the workers have ended.

        Args:
            failure: The error that ended the workers, or None if they returned.
            reached: How far they were with the segment; "nothing" if there was none.
            expected: Why they were to end, or "".
            leaving: Why they were to leave their nodes, or "". A loss on such a node does not count against the trial.
        """
        if leaving and reached != "nothing":
            return FailureDecision("start", note=f"{leaving}, and it continues elsewhere from epoch {self._furthest}")
        if expected or reached == "nothing":
            return FailureDecision("start", note=f"begins in new workers: {expected}" if expected else "")
        reason = describe_failure(failure)
        if failure is not None and _is_placement_timeout(failure):
            return FailureDecision("room", reason)
        if reached == "assigned":
            self._failed_starts += 1
            if self._failed_starts > FAILED_STARTS:
                return FailureDecision("give up", f"its workers cannot start: {reason}")
            return FailureDecision("start", note=f"its workers did not start ({reason}), new ones are tried")
        self._losses += 1
        if failure is not None and isinstance(_unwrap_failure(failure)[-1], OutOfMemoryError):
            # Ray ends what began last, and not what uses most memory: the cause may have been a neighbour.
            self._memory_losses += 1
            if self._memory_losses > MEMORY_LOSSES:
                return FailureDecision("fail", f"out of memory: {reason}, twice without progress", lacks_memory=True)
        if self._losses > self.limit:
            return FailureDecision("fail", f"its workers were lost {self._losses} times: {reason}")
        return FailureDecision("start", note=f"lost its workers ({reason}), and continues from its last checkpoint")


def describe_failure(failure: BaseException | None) -> str:
    """Return a line about the error that ended a gang or its workers."""
    if failure is None:
        return "they returned"
    cause = _unwrap_failure(failure)[-1]
    text = " ".join(str(cause).split())
    if isinstance(cause, OutOfMemoryError):
        return "Ray's memory monitor killed it, since its node ran out"
    if isinstance(cause, ActorDiedError) and "unexpectedly exits" in text:
        return "a process was killed or crashed"
    if isinstance(cause, ActorDiedError) and "node" in text and "died" in text:
        return "its node was lost"
    if isinstance(cause, ActorDiedError) and "ray.kill" in text:
        return "the search has ended them"
    if isinstance(cause, ActorUnavailableError):  # Ray's text is that of the remote call that failed
        return "a process no longer answered: it was suspended, or its machine or network is overloaded"
    if isinstance(cause, GetTimeoutError):  # of a call to the registry, which Ray's text does not name
        return "the search did not answer in time: its machine or network is overloaded"
    return f"{type(cause).__name__}: {text[:300]}"


def _unwrap_failure(failure: BaseException) -> list[BaseException]:
    """Return `failure` and the errors that Train and Ray wrapped in it, the outermost first."""
    causes = [failure]
    while True:
        inner = getattr(causes[-1], "worker_failures", None) or getattr(causes[-1], "controller_failure", None)
        if isinstance(inner, dict):
            inner = inner[min(inner)]
        inner = inner or getattr(causes[-1], "health_check_failure", None) or getattr(causes[-1], "cause", None)
        if not isinstance(inner, BaseException):
            return causes
        causes.append(inner)


def _is_placement_timeout(failure: BaseException) -> bool:
    return any(type(cause).__name__ == "WorkerGroupStartupTimeoutError" for cause in _unwrap_failure(failure))
