"""Messages between a search, its gangs of workers and their registry.

Ray pickles them as they are. Only Tune's result of a step is JSON text: see `to_json`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from searchlight.trainables.command.settings import CommandSettings

Outcome = Literal["completed", "diverged", "failed", "interrupted"]
Reached = Literal["nothing", "assigned", "begun"]


@dataclass(frozen=True)
class WorkerSettings:
    """The settings of one worker, the same for all trials.

    Attributes:
        task: "module:Class", or "module:function" for a Ray Train function.
        objective: The metric that a function must report; empty for a task class, which names it itself.
        others: Metrics that each report must have in addition to the objective, also those of constraints.
        files: The folder that the task's `prepare` filled.
        rehearsal: Whether the GPUs that Ray assigns are only declared.
        stall_timeout: Seconds without progress after which a trial fails. None: what its epochs suggest.
        recycle_after: The number of trials after which the worker's process is replaced, or None.
        audit: What the first worker of the search audits before its first trial, or None.
        command: What the task runs if it is a command.
        gpus: The GPU-seconds that one second of a trial costs: the GPUs of all ranks, or the workers if none has a GPU.
        is_synchronous: Whether launches of kernels wait for their end, so that an error names the line that caused it.
    """

    task: str
    objective: str = ""
    others: Sequence[str] = ()
    files: str = ""
    rehearsal: bool = False
    stall_timeout: float | None = None
    recycle_after: int | None = None
    audit: dict[str, Any] | None = None
    command: CommandSettings | None = None
    gpus: float = 1.0
    is_synchronous: bool = False


@dataclass(frozen=True)
class GangSettings:
    """The settings of each gang of a search.

    Attributes:
        resources: What one worker needs, by Ray's names.
        grows: Whether the cluster may grow.
        max_failures: How often a trial may lose its workers without progress.
    """

    workers: int
    resources: dict[str, float]
    placement: str
    grows: bool
    registry: Any
    max_failures: int
    worker: WorkerSettings

    def __deepcopy__(self, memo: dict[int, Any]) -> "GangSettings":
        """Return these settings: Tune copies them for each trial, and the registry's handle alone takes 31 KiB."""
        return self


@dataclass(frozen=True)
class SegmentBudget:
    """A limit to what a trial may have cost when its segment ends, counted from the trial's start.

    Attributes:
        of: The name of the cost in a report: "samples" or "gpu_seconds".
        epoch: The last epoch that is counted.
        spent: What the trial has cost by the end of that epoch.
        until: The cost with which the segment ends.
    """

    of: str
    epoch: int
    spent: float
    until: float

    @property
    def is_spent(self) -> bool:
        return self.spent >= self.until

    def add_epoch(self, epoch: int, costs: Mapping[str, float]) -> "SegmentBudget":
        """Return the budget after `epoch`. An epoch that is repeated, after a broken checkpoint, counts once."""
        return self if epoch <= self.epoch else replace(self, epoch=epoch, spent=self.spent + costs[self.of])


@dataclass(frozen=True)
class EpochReport:
    """The report of an epoch.

    Attributes:
        costs: What the epoch cost: "gpu_seconds", and for a task also "samples".
        done: Whether the segment ends with this epoch.
        datasets: The data sets that the task named, in the first report since the task was built.
        notes: Lines for the user, as in the other messages.
    """

    epoch: int
    metrics: dict[str, float]
    checkpoint: str | None
    costs: dict[str, float]
    done: bool = False
    datasets: Sequence[dict[str, str]] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Divergence:
    """How the divergence of a trial was found, and in which epoch."""

    kind: str
    epoch: int


@dataclass(frozen=True)
class Infeasibility:
    """Which constraint a trial violates, so that it cannot be trained.

    Attributes:
        constraint: "memory", or "build" if the task's `build` or its config refuses the values.
        violation: By how much: the GiB that were missing, if the error tells, else 1.
        in_window: Whether a window was trained, in which smaller micro-batches need less memory.
    """

    constraint: Literal["memory", "build"]
    violation: float = 1.0
    in_window: bool = False


@dataclass(frozen=True)
class SegmentEnd:
    """The end of a segment that has an outcome.

    Attributes:
        traceback: What the user's code raised, or where it stood.
        divergence: Only if the trial diverged.
        infeasibility: Only if the trial failed because of its config.
        last: The epoch whose report shows the divergence.
        alone: Whether the trial diverged on this rank only. The other ranks then wait for this one.
        location: Where the user's code failed; see `searchlight.trainables.registry.find_user_frame`.
        unwritable: Whether the storage took or gave no file of the trial, which is then interrupted. The search has to
            end.
    """

    done: ClassVar = True
    outcome: Outcome
    reason: str
    traceback: str = ""
    divergence: Divergence | None = None
    last: EpochReport | None = None
    alone: bool = False
    notes: Sequence[str] = ()
    location: str = ""
    unwritable: bool = False
    infeasibility: Infeasibility | None = None


@dataclass(frozen=True)
class Migration:
    """The end of a segment that other workers of the same gang continue, often on another node.

    Attributes:
        is_synchronous: Whether these workers launch kernels synchronously, since an error of CUDA ended the segment.
    """

    done: ClassVar = True
    reason: str
    notes: Sequence[str] = ()
    is_synchronous: bool = False


@dataclass(frozen=True)
class TrialRelease:
    """The last message of a gang that leaves its trial to another gang. `begun`: workers have begun the segment."""

    done: ClassVar = False
    reason: str
    begun: bool
    notes: Sequence[str] = ()


WorkerReport = EpochReport | SegmentEnd | Migration
GangReport = EpochReport | SegmentEnd | TrialRelease


@dataclass(frozen=True)
class SegmentAssignment:
    """A segment of a trial for a gang to train.

    Attributes:
        config: The values of the task's config, as JSON.
        epoch: The segment begins after this epoch.
        until: It ends with this epoch, or earlier with its budget.
        checkpoints: Checkpoints to resume from, the newest first. None stands for a start without a checkpoint.
        folder: Where the trial's checkpoints are written.
        attempt: A part of each checkpoint's name, different for each driver of the search.
        copied: The checkpoint of another trial that this trial began with.
        is_last: Whether the trial is complete at the segment's end.
    """

    trial: int
    config: dict[str, Any]
    epoch: int
    until: int
    folder: str
    attempt: str
    checkpoints: Sequence[str | None] = (None,)
    copied: str | None = None
    budget: SegmentBudget | None = None
    is_last: bool = False

    def continue_after(self, report: EpochReport) -> "SegmentAssignment":
        """Return the rest of the segment after `report`."""
        budget = self.budget and self.budget.add_epoch(report.epoch, report.costs)
        return replace(self, epoch=report.epoch, checkpoints=(report.checkpoint, *self.checkpoints), budget=budget)


@dataclass(frozen=True)
class Delivery:
    """A report of a turn, as the mailbox delivers it. `taken` is when workers took the segment, in Unix seconds."""

    turn: int
    taken: float
    report: EpochReport | SegmentEnd


@dataclass(frozen=True)
class GangStatus:
    """The registry's answer to a gang that waits for reports.

    Attributes:
        stopping: Whether the search is to stop.
        up: Whether the workers of the gang are up.
        surplus: Whether the gang waits for room that the cluster will not have.
        waiting_s: For how many seconds no worker has taken the segment.
        stalled_s: For how many seconds no worker has made progress with it.
        silent_s: For how many seconds a worker has sent no heartbeat: it is stopped, or its machine does not answer.
        stall_limit_s: After how many of them it is stalled by default; None before the first epoch has ended.
        next_poll_s: After how many seconds the gang is to ask again.
    """

    stopping: bool
    up: bool
    surplus: bool
    waiting_s: float
    stalled_s: float
    silent_s: float = 0.0
    stall_limit_s: float | None = None
    next_poll_s: float = 1.0


@dataclass(frozen=True)
class EndedWorkers:
    """The registry's answer to a gang whose workers have ended.

    Attributes:
        reached: How far the workers were with the segment; "nothing" if there was none.
        expected: Why they were to end, or "".
        leaving: Why they were to leave their nodes, or "".
        moves: Whether the gang itself must leave its node.
        is_synchronous: Whether the next workers launch kernels synchronously.
    """

    reached: Reached
    expected: str
    leaving: str
    moves: bool
    is_synchronous: bool = False


@dataclass(frozen=True)
class GangResult:
    """All reports since the gang's last result. `taken` belongs to the last one. None: the gang itself made it."""

    gang: str
    reports: Sequence[GangReport]
    taken: float | None = None


_SENT = (GangResult, EpochReport, SegmentEnd, Divergence, Infeasibility, TrialRelease)
_BY_NAME = {message.__name__: message for message in _SENT}


def to_json(result: GangResult) -> str:
    """Return `result` as text, since Tune flattens a dict into one key for each metric."""
    text = json.dumps(
        result, default=lambda message: {"message": type(message).__name__, **vars(message)}, ensure_ascii=False
    )
    return escape_surrogates(text, r"\\u")


def escape_surrogates(text: str, escape: str = r"\u") -> str:
    """Escape lone surrogates in `text`. A trial may log them, but files and databases refuse them."""
    return re.sub("[\ud800-\udfff]", lambda half: f"{escape}{ord(half[0]):04x}", text)


def from_json(text: str) -> GangResult:
    """Return the result that `to_json` wrote."""
    result: GangResult = json.loads(text, object_hook=_decode)
    return result


def _decode(fields: dict[str, Any]) -> Any:
    message = _BY_NAME.get(fields.get("message", ""))  # a metric of that name is a number
    return message(**{name: value for name, value in fields.items() if name != "message"}) if message else fields
