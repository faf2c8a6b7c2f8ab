"""Runs the segments of trials on one rank: what is common to tasks, functions and programs. It imports no torch."""

import contextlib
import logging
import os
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

from searchlight.trainables.cuda import SYNCHRONOUS
from searchlight.trainables.device_errors import breaks_device, probe_device
from searchlight.trainables.filesystem.storage_errors import UnwritableError
from searchlight.trainables.isolation.resource_leaks import Memory, end_data_loaders
from searchlight.trainables.precision import Diverged
from searchlight.trainables.ranks import Ranks
from searchlight.trainables.registry import find_user_frame
from searchlight.trainables.worker.endings import (
    build_unwritable,
    ends_gang,
    find_infeasibility,
    format_reason,
    is_lost_peer,
)
from searchlight.trainables.worker.messages import (
    Divergence,
    Infeasibility,
    Migration,
    SegmentAssignment,
    SegmentEnd,
    WorkerReport,
    WorkerSettings,
)
from searchlight.trainables.worker.working_folder import WorkingFolder

MEMORY_GROWTH_GIB = 1.0  # a process that has grown more since its first trial is recycled


class AuditFailed(Exception):
    """The audit at the start of a search found errors in its task."""


class Restorable(Protocol):
    """The state of this process before its first trial."""

    def restore(self) -> str:
        """Restore the state. Return why the process must be replaced, or ""."""


class SegmentRunner(ABC):
    """Runs segments on one rank. Keeps the last trial in memory, in case the next segment continues it.

    Args:
        context: The rank of this worker.
        stopping: Once set, ends the running trial as soon as it can be continued later.
        folder: Sets the current folder of each trial. Default: all trials run in the current one.

    Attributes:
        progress: A counter of the parts of trials that are done, over all trials.
        held: The trial that the next segment may continue in memory, and its epoch.
        recycle_reason: Why this process should run no other trial, or "".
        turn: The turn of the segment that runs, see Mailbox.
        halted_turn: The last turn whose trial must stop, although the search goes on.
        migrate_reason: Why another process must continue the trial, or "". It is set before `stopping` is.
        kept: What the storage takes of a trial, for messages.
        is_auditor: Whether the next segment begins with the audit of the task, which `on_audit` receives as JSON.
    """

    kept = "a checkpoint"

    def __init__(
        self, settings: WorkerSettings, context: Ranks, stopping: threading.Event, folder: WorkingFolder | None = None
    ) -> None:
        self.settings = settings
        self.folder = folder or WorkingFolder(None)
        self.task = settings.task
        self.context = context
        self.stopping = stopping
        self.progress = 0
        self.held: tuple[int, int] | None = None
        self.recycle_reason = ""
        self.turn, self.halted_turn = 1, 0
        self.migrate_reason = ""
        self.is_auditor = False
        self.on_audit: Callable[[dict[str, Any] | None], object] = lambda audit: None
        self._trials = 0
        self._process = self._keep_process()
        self._memory = Memory(MEMORY_GROWTH_GIB)
        self._thread = threading.get_ident()

    @abstractmethod
    def _keep_process(self) -> Restorable:
        """Return the state of this process, which is restored after each trial."""

    @property
    def thread(self) -> int:
        """The identifier of the thread that trains."""
        return self._thread

    def run(self, segment: SegmentAssignment) -> Iterator[WorkerReport]:
        """Yield a report for each epoch of `segment`. The last report is `done`.

        The notes of a report are the lines that the trainables logged since the report before.
        """
        with _LogCapture() as notes:
            for report in self._run_segment(segment):
                lines = notes.pop_lines()
                yield replace(report, notes=lines) if lines else report

    @property
    @abstractmethod
    def must_continue(self) -> bool:
        """Whether other workers must not take over before the trial in memory is saved."""

    @abstractmethod
    def drop_trial_unless_continued(self, segment: SegmentAssignment | None) -> None:
        """Release the trial in memory, unless `segment` continues it. This may set `recycle_reason`."""

    def _run_segment(self, segment: SegmentAssignment) -> Iterator[WorkerReport]:
        last: WorkerReport | None = None
        try:
            self.folder.enter(segment.trial)
            if self.is_auditor:
                self._audit()
            for report in self._generate_reports(segment):
                if report.done:
                    last = report
                else:
                    yield report
        except Diverged as error:
            last = self._build_divergence(error)
        except UnwritableError as error:
            last = build_unwritable(error, self.context, self.kept)
        except AuditFailed as error:  # the search ends, and the trial continues after a resume
            last = SegmentEnd("interrupted", str(error))
        # Any error of a task, also sys.exit(), ends its trial but not the gang.
        except (Exception, SystemExit) as error:
            if self.context.world_size > 1 and is_lost_peer(error):
                raise  # another rank ended: Train restarts the group, and the trial resumes from its checkpoint
            last = self._build_failure(error)
        finally:  # after the error was handled: its traceback keeps the trial's objects alive
            # A gang that ends needs no release, which might wait for the other ranks on a GPU.
            if self.held is None and not ends_gang(last, self.context):
                self._release()
        assert last is not None
        if isinstance(last, SegmentEnd):  # after its memory is free, since the trial may have used all of it
            last = replace(last, location=find_user_frame(last.traceback))
        yield last

    def _build_failure(self, error: BaseException) -> SegmentEnd | Migration:
        reason = format_reason(error)
        if breaks_device(error):
            self.recycle_reason = "an error of CUDA ended the trial before"
            if not self.settings.is_synchronous and os.environ.get(SYNCHRONOUS) != "1":
                return Migration(f"{reason}; it runs once more with {SYNCHRONOUS}=1, to find the line", (), True)
        return SegmentEnd("failed", reason, traceback.format_exc(), infeasibility=self._find_infeasibility(error))

    def _find_infeasibility(self, error: BaseException) -> Infeasibility | None:
        return find_infeasibility(error, None, False)

    def _build_divergence(self, error: Diverged) -> SegmentEnd:
        alone = self.context.world_size > 1 and not error.agreed
        return SegmentEnd("diverged", str(error), "", Divergence(error.kind, 0), None, alone)

    def _audit(self) -> None:
        """Begin the audit of the task. Call this on all ranks.

        Raises:
            AuditFailed: The audit found errors, so that no trial must start.
        """
        self.is_auditor = False

    @abstractmethod
    def _generate_reports(self, segment: SegmentAssignment) -> Iterator[WorkerReport]:
        """Yield the reports of `segment`. The last one is `done`."""

    @property
    def must_stop(self) -> bool:
        """Whether the search stops, the trial must move, or this trial is halted."""
        return self.stopping.is_set() or self.halted_turn >= self.turn

    def _count_progress(self) -> None:
        self.progress += 1

    def _release(self) -> None:
        """Release the trial in memory and undo its changes to the process."""
        end_data_loaders()  # first: the garbage collector may find them later
        self._trials += 1
        broken = self._probe_device()
        # With a broken device, any call may raise, which would lose the report of the trial.
        with contextlib.suppress(*(RuntimeError,) if broken else ()):
            self._close_trial()
        self.held = None
        if broken:
            self.recycle_reason = broken
            return
        self.context.drop_changed_values()
        left = self._process.restore()
        grown = self._memory.describe_growth(self._trials, self.context.get_kept_size)
        if not self.recycle_reason:
            self.recycle_reason = left or grown or self._check_trial_limit()

    @abstractmethod
    def _close_trial(self) -> None:
        """Close the trial in memory, if there is one. No object of it stays."""

    def _probe_device(self) -> str:
        """Return why this process can use its device no more, or ""."""
        error = probe_device(self.context.device)
        return f"{self.context.device} fails in this process: {error}" if error else ""

    def _check_trial_limit(self) -> str:
        if self.settings.is_synchronous:
            return f"the trial before ran with {SYNCHRONOUS}=1"
        if self._trials != self.settings.recycle_after:
            return ""
        return "1 trial" if self._trials == 1 else f"{self._trials} trials"


class _LogCapture(logging.Handler):
    """Collects the log lines of the trainables, since users do not read the logs of workers."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: list[str] = []
        self._logger = logging.getLogger("searchlight.trainables")

    def __enter__(self) -> "_LogCapture":
        self._logger.addHandler(self)
        self._logger.setLevel(logging.INFO)
        return self

    def __exit__(self, *exception: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(logging.NOTSET)

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())

    def pop_lines(self) -> list[str]:
        """Return the lines that were logged since the last call."""
        lines, self._lines = self._lines, []
        return lines
