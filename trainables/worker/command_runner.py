"""A command as a trial: a Ray Train function runs its program, and reports what that reports."""

import logging
import os
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from searchlight.trainables.command.claim import Claim
from searchlight.trainables.command.collector import Report
from searchlight.trainables.command.fork_server import ForkServer
from searchlight.trainables.command.program import Program
from searchlight.trainables.command.settings import CommandSettings
from searchlight.trainables.command.shared_files import SharedFiles
from searchlight.trainables.command.trial_folder import OUTPUT, TrialFolder
from searchlight.trainables.device_errors import OUT_OF_MEMORY
from searchlight.trainables.filesystem.paths import parse_path, synced
from searchlight.trainables.flatten import flatten
from searchlight.trainables.isolation.resource_leaks import ProgramLeftovers
from searchlight.trainables.ranks import Ranks
from searchlight.trainables.registry import PACKAGE
from searchlight.trainables.worker.endings import build_interruption
from searchlight.trainables.worker.messages import Infeasibility, SegmentAssignment, SegmentEnd, WorkerSettings
from searchlight.trainables.worker.session import Session
from searchlight.trainables.worker.session_runner import SessionRunner

logger = logging.getLogger(__name__)


class CommandRunner(SessionRunner):
    """Runs segments of a command's trials. The program goes on while its function waits in a report."""

    kept = "its folder"

    def __init__(self, settings: WorkerSettings, context: Ranks, *arguments: Any, **options: Any) -> None:
        # Before the state of the process is kept, since it lasts longer than trials. It ends with this process.
        self._server = ForkServer() if settings.command is not None and settings.command.warm else None
        super().__init__(settings, context, *arguments, **options)

    def _keep_process(self) -> ProgramLeftovers:
        return ProgramLeftovers()

    @property
    def command(self) -> CommandSettings:
        """The command and how it is run."""
        assert self.settings.command is not None
        return self.settings.command

    @property
    def must_continue(self) -> bool:
        return super().must_continue and not self.command.can_resume

    def find_start(self, segment: SegmentAssignment) -> int:
        with ExitStack() as opened:  # releases the trial if its folder cannot be read
            place = opened.enter_context(synced(parse_path(self.command.trial_root) / str(segment.trial)))
            self._claim = opened.enter_context(Claim(place))
            self._local = replace(self.command, trial_root=str(place.parent))
            start = min(len(TrialFolder(self._local, segment.trial).read_reports()), segment.epoch)
            self._copies = opened.pop_all()
        return start

    def _load_function(self) -> Any:
        return self._run_program

    def _prepare_call(self, config: dict[str, Any]) -> AbstractContextManager[object]:
        return nullcontext()  # a program seeds its own generators

    def _run_program(self, config: dict[str, Any]) -> None:
        """Run the program of a trial with `config` until it or its trial ends. This is the function of the session."""
        session = self._session
        assert session is not None
        with self._copies:
            self._run_in_folder(session, TrialFolder(self._local, session.segment.trial), config)

    def _run_in_folder(self, session: Session, folder: TrialFolder, config: dict[str, Any]) -> None:
        for report in folder.read_reports()[session.number :]:  # made while the trial was ended
            session.report(report.metrics)
        values = flatten(config)
        environment = _build_environment()
        options = (self._count_progress, self._server, self._claim)
        shared = SharedFiles(folder)
        with shared, Program(self._local, folder, values, environment, *options) as program:
            last: Report | None = None  # held back, since a program may measure again when it has trained
            for report in program.generate_reports(self._is_interrupted):
                shared.look()  # the trial may end in its report
                if report.replaces:
                    last = report if last is not None and last.step == report.step else last
                    continue
                if last is not None:
                    session.report_program(last.metrics, last.at)
                last = report if self._is_last(session) else None
                if last is None:
                    session.report_program(report.metrics, report.at)
            if last is not None:
                session.report_program(last.metrics, last.at)
            if program.code is None or program.is_superseded:
                session.end_trial(build_interruption([(self.must_stop, self.migrate_reason)]))
            if reason := program.describe_failure():
                if session.is_complete:
                    logger.warning("after its last report: %s", reason)
                kept = parse_path(self.command.trial_root) / str(session.segment.trial) / OUTPUT
                lacks_memory = OUT_OF_MEMORY.search(reason) or "MemoryError" in reason  # Python's, or NumPy's
                infeasibility = Infeasibility("memory") if lacks_memory else None
                tail = f"{program.tail}\n\nOutput: {kept}\n"
                session.end_trial(SegmentEnd("failed", reason, tail, infeasibility=infeasibility))

    def _is_last(self, session: Session) -> bool:
        """Return whether the next report is the last one of the trial."""
        return session.segment.is_last and session.number + 1 == session.segment.until

    def _is_interrupted(self) -> bool:
        """Return whether the program must end between two reports."""
        return self.must_stop and (not self.migrate_reason or self.command.can_resume)


def _build_environment() -> dict[str, str]:
    """Return the variables of this worker without the modules that it imports for itself."""
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = os.pathsep.join(entry for entry in paths if not Path(entry, PACKAGE.name).is_symlink())
    return {name: text for name, text in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONPATH": path}
