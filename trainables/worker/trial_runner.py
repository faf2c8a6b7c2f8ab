"""Runs the segments of trials on one rank."""

import contextlib
import logging
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from searchlight.trainables import checkpoint
from searchlight.trainables.checkpoint import images
from searchlight.trainables.checkpoint.selection import find_resume_checkpoint
from searchlight.trainables.context import Context
from searchlight.trainables.cuda import SYNCHRONOUS
from searchlight.trainables.device_errors import breaks_device, probe_device
from searchlight.trainables.filesystem.paths import parse_path
from searchlight.trainables.filesystem.storage_errors import UnwritableError, unwritable_errors
from searchlight.trainables.isolation.determinism import reserve_workspace
from searchlight.trainables.isolation.process import ProcessSnapshot, ProgramLeftovers
from searchlight.trainables.isolation.resource_leaks import Memory, allocate_workspaces, end_data_loaders
from searchlight.trainables.precision import Diverged
from searchlight.trainables.preflight.findings import Finding
from searchlight.trainables.registry import find_user_frame, load_class
from searchlight.trainables.training.trainer import TrialTrainer
from searchlight.trainables.worker.endings import (
    build_interruption,
    build_unwritable,
    check_other_metrics,
    ends_gang,
    find_infeasibility,
    format_reason,
    is_lost_peer,
)
from searchlight.trainables.worker.messages import (
    Divergence,
    EpochReport,
    Migration,
    SegmentAssignment,
    SegmentEnd,
    WorkerReport,
    WorkerSettings,
)
from searchlight.trainables.worker.working_folder import WorkingFolder

AUTOSAVE_S = 300.0  # longer epochs are saved in between, which limits the work that is lost with a worker
MEMORY_GROWTH_GIB = 1.0  # a process that has grown more since its first trial is recycled


class AuditFailed(Exception):
    """The audit at the start of a search found errors in its task."""


class TrialRunner:
    """Runs segments on one rank. Keeps the last trial in memory, in case the next segment continues it.

    Args:
        context: The context of this rank.
        stopping: Once set, ends the running trial between two windows.
        autosave_s: The interval in seconds at which a running epoch is saved.
        folder: Sets the current folder of each trial. Default: all trials run in the current one.

    Attributes:
        progress: A counter of builds, windows and evaluations over all trials.
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
        self,
        settings: WorkerSettings,
        context: Context,
        stopping: threading.Event,
        autosave_s: float = AUTOSAVE_S,
        folder: WorkingFolder | None = None,
    ) -> None:
        self.settings = settings
        self.folder = folder or WorkingFolder(None)
        self.task = settings.task
        self.context = context
        self.stopping = stopping
        self.autosave_s = autosave_s
        self.progress = 0
        self.held: tuple[int, int] | None = None
        self.training: TrialTrainer | None = None
        self.recycle_reason = ""
        self.turn, self.halted_turn = 1, 0
        self.migrate_reason = ""
        self.is_auditor = False
        self.on_audit: Callable[[dict[str, Any] | None], object] = lambda audit: None
        self._build: Callable[..., object] | None = None  # of the task's class
        self._trials = 0
        if settings.command is None:  # a program has its own settings
            reserve_workspace()  # before the first trial, since any may be deterministic
        self._process = ProgramLeftovers() if settings.command else ProcessSnapshot(settings.task)
        self._memory = Memory(MEMORY_GROWTH_GIB)
        self._thread = threading.get_ident()

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
    def must_continue(self) -> bool:
        """Whether other workers must not take over before the trial in memory is saved."""
        return self.training is not None

    def drop_trial_unless_continued(self, segment: SegmentAssignment | None) -> None:
        """Release the trial in memory, unless `segment` continues it. This may set `recycle_reason`."""
        if self.training is None:
            return
        if segment is not None and self.held == (segment.trial, segment.epoch):
            epochs = self.training.task.config.epochs
            if segment.config.get("epochs", epochs) == epochs:  # else a command has extended the trial
                return
        self._release()

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
        infeasibility = find_infeasibility(error, self._build, self._trains_window)
        return SegmentEnd("failed", reason, traceback.format_exc(), infeasibility=infeasibility)

    @property
    def _trains_window(self) -> bool:
        return self.training is not None and self.training.current > self.training.epoch

    def _audit(self) -> None:
        """Run the quick part of the task's audit. Call this on all ranks.

        Raises:
            AuditFailed: The audit found errors, so that no trial must start.
        """
        self.is_auditor = False
        try:
            self._run_audit()
        except AuditFailed:
            raise
        except BaseException:  # also exit() in the task: the search must not wait for the result
            if self.context.rank == 0:
                self.on_audit(None)
            raise

    def _run_audit(self) -> None:
        assert self.settings.audit is not None
        # Here, since most workers audit nothing.
        from searchlight.trainables.preflight.audit import Audit, AuditRequest
        from searchlight.trainables.preflight.process import audit_one_rank

        context, found = self.context, dict[str, Any]()
        if context.world_size > 1:
            if context.rank == 0:
                found = audit_one_rank(self.task, self.settings.audit, context, self._must_end_audit)
            found = context.broadcast_object(found)
        else:
            request = AuditRequest(**self.settings.audit)
            audit = Audit(partial(load_class, self.task), request, context, self._restore_process)
            audit.on_progress = self._must_end_audit
            found = audit.run().as_json()
        # One that a migration cut short is left to the next workers.
        if context.rank == 0 and (found["has_errors"] or not self.migrate_reason):
            self.on_audit(found)
        if found["has_errors"]:
            raise AuditFailed(f"preflight found {Finding(**found['findings'][0])}")

    def _restore_process(self) -> None:
        """Undo what the audit changed in the process."""
        end_data_loaders()
        self.context.cache_store.drop_changed()
        if broken := self._probe_device():
            self.recycle_reason = broken
        elif left := self._process.restore():
            self.recycle_reason = self.recycle_reason or left

    def _build_divergence(self, error: Diverged) -> SegmentEnd:
        epoch, last = 0, None
        if self.training is not None:
            epoch = self.training.current
            # A Diverged that the task itself raises is no report of an epoch, even with metrics.
            if error.kind == "objective" and error.metrics is not None:
                last = EpochReport(self.training.epoch, error.metrics, None, self._compute_costs(self.training))
        alone = self.context.world_size > 1 and not error.agreed
        return SegmentEnd("diverged", str(error), "", Divergence(error.kind, epoch), last, alone)

    def _generate_reports(self, segment: SegmentAssignment) -> Iterator[WorkerReport]:
        self.drop_trial_unless_continued(segment)
        self.held = None
        datasets: list[dict[str, str]] = []
        if self.training is None:
            self.training = self._start(segment)
            datasets = [asdict(data) for data in self.training.task.named_data]
        for report in self._run_epochs(self.training, segment):
            if isinstance(report, EpochReport):
                report, datasets = replace(report, datasets=datasets), []
            can_continue = self.training.epoch < self.training.task.config.epochs
            if report.done and can_continue and not isinstance(report, SegmentEnd):
                self.held = (segment.trial, self.training.epoch)
            yield report

    def _start(self, segment: SegmentAssignment) -> TrialTrainer:
        task_class = load_class(self.task)  # here, so that an import error becomes the trial's failure reason
        self._build = task_class.build
        config = task_class.config_class().model_validate(segment.config)
        context = self.context.for_next_trial()
        try:
            allocate_workspaces(context.device)
            training = TrialTrainer(task_class(config, context))
        except BaseException:  # any error: the process group of its mesh would have no owner
            context.close()
            raise
        training.on_progress = self._count_progress
        self._count_progress()
        folder, chosen = parse_path(segment.folder), None
        if self.context.rank == 0:  # rank 0 chooses, so that all ranks start from the same checkpoint
            chosen = find_resume_checkpoint(folder, segment.epoch, segment.checkpoints, self.context.world_size)
        path = self.context.broadcast_object(chosen and chosen[0])
        if path is not None:
            state = chosen[1] if chosen else checkpoint.load(path)
            training.restore(state, of_another=str(path) == segment.copied)
        training.autosave = (folder / f"midway-{segment.attempt}.pt", self.autosave_s)
        return training

    def _run_epochs(self, training: TrialTrainer, segment: SegmentAssignment) -> Iterator[WorkerReport]:
        if training.epoch >= segment.until:  # without a report, the gang would wait forever
            raise ValueError(f"a segment must end after epoch {training.epoch}, but got {segment.until}.")
        assert training.autosave is not None
        midway, _ = training.autosave
        budget = segment.budget
        unsaved: list[EpochReport] = []  # of the last epoch, until its checkpoint is on the storage

        def must_pause() -> bool:
            return self._should_stop() or (bool(unsaved) and training.is_saved)

        while True:
            try:
                metrics = training.run_epoch(must_pause)
            finally:  # also if the next epoch fails: this one is finished
                if unsaved:
                    training.finish_save()
                    yield unsaved.pop()
            if metrics is None:
                stops = self.context.gather((self.must_stop, self.migrate_reason))
                if not any(stop for stop, _ in stops):  # rank 0 has only reported
                    continue
                if training.windows:
                    training.save(midway)
                yield build_interruption(stops)
                return
            check_other_metrics(self.settings.others, metrics, f"after epoch {training.epoch}")
            costs = self._compute_costs(training)
            if budget is not None:
                costs = self.context.broadcast_object(costs)  # clocks differ, but all ranks must end at one epoch
                budget = budget.add_epoch(training.epoch, costs)
            done = training.epoch >= segment.until or (budget is not None and budget.is_spent)
            path = parse_path(segment.folder) / f"epoch-{training.epoch}-{segment.attempt}.pt"
            if training.pictures:  # before the checkpoint: an epoch without one is repeated with its pictures
                with unwritable_errors(path):
                    images.save(training.pictures, path)
            report = EpochReport(training.epoch, metrics, str(path), costs, done)
            if done:
                training.save(path)
                if self.context.rank == 0:
                    training.discard(midway)  # the epoch is done
                yield report
                return
            training.begin_save(path, midway)
            if training.is_saved:
                training.finish_save()
                yield report
            else:
                unsaved.append(report)

    def _compute_costs(self, training: TrialTrainer) -> dict[str, float]:
        """Return the cost of the last epoch in each unit of fidelity."""
        return {"samples": training.samples, "gpu_seconds": training.seconds * self.settings.gpus}

    @property
    def must_stop(self) -> bool:
        """Whether the search stops, the trial must move, or this trial is halted."""
        return self.stopping.is_set() or self.halted_turn >= self.turn

    def _should_stop(self) -> bool:
        """Return whether to stop before the next window."""
        self._count_progress()
        return self.must_stop

    def _must_end_audit(self) -> bool:
        """Return whether the audit ends early. A halt of its trial does not end it, since all trials wait for it."""
        self._count_progress()
        return self.stopping.is_set()

    def _count_progress(self) -> None:
        self.progress += 1

    def _release(self) -> None:
        """Release the trial in memory and undo its changes to the process."""
        end_data_loaders()  # first: the garbage collector may find them later
        self._trials += 1
        broken = self._probe_device()
        if self.training is not None:
            # With a broken device, any call may raise, which would lose the report of the trial.
            with contextlib.suppress(*(RuntimeError,) if broken else ()):
                self.training.close()
        self.held = self.training = None
        if broken:
            self.recycle_reason = broken
            return
        self.context.cache_store.drop_changed()
        left = self._process.restore()
        grown = self._memory.describe_growth(self._trials, self.context.cache_store.get_size)
        if not self.recycle_reason:
            self.recycle_reason = left or grown or self._check_trial_limit()

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
