"""Runs trials whose reports come from a call of a function: a Ray Train function, or one that waits for a program."""

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from searchlight.trainables.private_api import get_train_fn_utils
from searchlight.trainables.ranks import Ranks
from searchlight.trainables.worker.messages import EpochReport, SegmentAssignment, WorkerReport, WorkerSettings
from searchlight.trainables.worker.segment_runner import SegmentRunner
from searchlight.trainables.worker.session import Session

# The variables of torchrun, which Ray Train sets, too. Scripts read them as a sign of several processes.
LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


class SessionRunner(SegmentRunner):
    """Runs segments of trials in sessions.

    At the end of a segment the function waits in its report. If the next segment continues the trial, the report
    returns. Otherwise it ends the function, and a later segment calls it again, which resumes from its checkpoint.
    """

    def __init__(self, settings: WorkerSettings, context: Ranks, *arguments: Any, **options: Any) -> None:
        if context.world_size == 1:
            for name in LAUNCHED:  # first: the environment is restored after each trial
                os.environ.pop(name, None)
        super().__init__(settings, context, *arguments, **options)
        self._rays = get_train_fn_utils()
        self._session: Session | None = None

    @property
    def thread(self) -> int:
        own = self._session.thread.ident if self._session and self._session.thread else None
        return own or super().thread

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
            self._session.start(self._load_function(), self._prepare_call)
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

    @abstractmethod
    def _load_function(self) -> Callable[..., Any]:
        """Return the function of the next session, which takes the config of its trial."""

    @abstractmethod
    def _prepare_call(self, config: dict[str, Any]) -> AbstractContextManager[object]:
        """Prepare the thread of a session. Return the context in which its function is called."""

    def _release(self) -> None:
        if self._session is not None:
            self._session.close()
        super()._release()

    def _close_trial(self) -> None:
        self._session = None
