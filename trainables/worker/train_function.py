"""A Ray Train function as a trial, in workers that keep it waiting between two segments."""

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from searchlight.trainables.context import Context
from searchlight.trainables.preflight.function_audit import watch_steps
from searchlight.trainables.private_api import get_train_fn_utils
from searchlight.trainables.registry import load_class
from searchlight.trainables.worker.messages import (
    EpochReport,
    Migration,
    SegmentAssignment,
    SegmentEnd,
    WorkerReport,
    WorkerSettings,
)
from searchlight.trainables.worker.session import Session
from searchlight.trainables.worker.trial_runner import TrialRunner

# The variables of torchrun, which Ray Train sets, too. Scripts read them as a sign of several processes.
LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


class FunctionRunner(TrialRunner):
    """Runs segments of a function's trials on one rank.

    At the end of a segment the function waits in its report. If the next segment continues the trial, the report
    returns. Otherwise it ends the function, and a later segment calls it again, which resumes from its checkpoint.

    Attributes:
        has_own_process: Whether each trial runs in a process that no other trial has used.
    """

    has_own_process = False

    def __init__(self, settings: WorkerSettings, context: Context, *arguments: Any, **options: Any) -> None:
        if context.world_size == 1:
            for name in LAUNCHED:  # first: the environment is restored after each trial
                os.environ.pop(name, None)
        super().__init__(settings, context, *arguments, **options)
        self._rays = get_train_fn_utils()
        self._session: Session | None = None
        self._errors: set[tuple[str, str]] = set()  # that were raised in a process which had run no other trial
        self.watch_steps: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext

    @property
    def thread(self) -> int:
        own = self._session.thread.ident if self._session and self._session.thread else None
        return own or super().thread

    def _run_segment(self, segment: SegmentAssignment) -> Iterator[WorkerReport]:
        is_used = self._trials > 0 and not self.has_own_process
        has_reported = self.held == (segment.trial, segment.epoch)
        for report in super()._run_segment(segment):
            if isinstance(report, SegmentEnd) and report.traceback and self.context.world_size == 1:
                error = (report.reason.partition(":")[0], report.location)
                if not is_used:
                    self._errors.add(error)
                elif not has_reported and error not in self._errors:
                    # Some libraries, e.g. Accelerate, refuse to be set up twice in a process.
                    yield Migration(f"it failed in a used worker ({report.reason})", report.notes)
                    return
            has_reported = True
            yield report

    @property
    def must_continue(self) -> bool:
        return self._session is not None and not self._session.has_saved

    def drop_trial_unless_continued(self, segment: SegmentAssignment | None) -> None:
        if self._session is not None and not (segment and self.held == (segment.trial, segment.epoch)):
            self._release()

    def _generate_reports(self, segment: SegmentAssignment) -> Iterator[WorkerReport]:
        self.drop_trial_unless_continued(segment)
        self.held = None
        if self._session is None:
            self._session = Session(segment, self, self._rays, self.find_start)
            self._session.start(self._load_function(), self.watch_steps)
        else:
            self._session.proceed(segment)
        for report in self._session.generate_reports():
            self.progress += 1
            if report.done and isinstance(report, EpochReport):
                self.held = (segment.trial, report.epoch)
            yield report

    def find_start(self, segment: SegmentAssignment) -> int:
        """Return the number of reports after which a trial without a checkpoint continues in `segment`."""
        return 0

    def _load_function(self) -> Callable[..., Any]:
        return load_class(self.task)

    def _release(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None
        self.watch_steps = contextlib.nullcontext
        super()._release()

    def _audit(self) -> None:
        """Watch the first steps of the next trial: they need no audit of their own, and no rank waits for another."""
        self.is_auditor = False
        if self.context.rank == 0:
            self.watch_steps = partial(watch_steps, self.on_audit, str(self.context.device))
