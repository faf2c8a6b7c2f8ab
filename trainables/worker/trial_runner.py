"""Runs the segments of a task's trials on one rank: the first quick audit, epochs, and what is saved of them."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from searchlight.trainables import checkpoint
from searchlight.trainables.checkpoint import images
from searchlight.trainables.checkpoint.selection import find_resume_checkpoint
from searchlight.trainables.context import Context
from searchlight.trainables.filesystem.paths import parse_path
from searchlight.trainables.filesystem.storage_errors import unwritable_errors
from searchlight.trainables.isolation.process import ProcessSnapshot
from searchlight.trainables.isolation.resource_leaks import allocate_workspaces, end_data_loaders
from searchlight.trainables.precision import Diverged
from searchlight.trainables.preflight.findings import Finding
from searchlight.trainables.registry import load_class
from searchlight.trainables.training.trainer import TrialTrainer
from searchlight.trainables.worker.endings import build_interruption, check_other_metrics, find_infeasibility
from searchlight.trainables.worker.messages import (
    Divergence,
    EpochReport,
    Infeasibility,
    SegmentAssignment,
    SegmentEnd,
    WorkerReport,
    WorkerSettings,
)
from searchlight.trainables.worker.segment_runner import AuditFailed, SegmentRunner
from searchlight.trainables.worker.working_folder import WorkingFolder

AUTOSAVE_S = 300.0  # longer epochs are saved in between, which limits the work that is lost with a worker


class TrialRunner(SegmentRunner):
    """Runs segments of a task's trials on one rank.

    Args:
        context: The context of this rank.
        stopping: Once set, ends the running trial between two windows.
        autosave_s: The interval in seconds at which a running epoch is saved.
    """

    context: Context

    def __init__(
        self,
        settings: WorkerSettings,
        context: Context,
        stopping: threading.Event,
        autosave_s: float = AUTOSAVE_S,
        folder: WorkingFolder | None = None,
    ) -> None:
        super().__init__(settings, context, stopping, folder)
        self.autosave_s = autosave_s
        self.training: TrialTrainer | None = None
        self._build: Callable[..., object] | None = None  # of the task's class

    def _keep_process(self) -> ProcessSnapshot:
        return ProcessSnapshot(self.task)

    @property
    def must_continue(self) -> bool:
        return self.training is not None

    def drop_trial_unless_continued(self, segment: SegmentAssignment | None) -> None:
        if self.training is None:
            return
        if segment is not None and self.held == (segment.trial, segment.epoch):
            epochs = self.training.task.config.epochs
            if segment.config.get("epochs", epochs) == epochs:  # else a command has extended the trial
                return
        self._release()

    def _find_infeasibility(self, error: BaseException) -> Infeasibility | None:
        trains_window = self.training is not None and self.training.current > self.training.epoch
        return find_infeasibility(error, self._build, trains_window)

    def _build_divergence(self, error: Diverged) -> SegmentEnd:
        end = super()._build_divergence(error)
        if self.training is None:
            return end
        last = None
        # A Diverged that the task itself raises is no report of an epoch, even with metrics.
        if error.kind == "objective" and error.metrics is not None:
            last = EpochReport(self.training.epoch, error.metrics, None, self._compute_costs(self.training))
        return replace(end, divergence=Divergence(error.kind, self.training.current), last=last)

    def _audit(self) -> None:
        super()._audit()
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
        from searchlight.trainables.preflight.audit import Audit
        from searchlight.trainables.preflight.messages import AuditRequest
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
        self.context.drop_changed_values()
        if broken := self._probe_device():
            self.recycle_reason = broken
        elif left := self._process.restore():
            self.recycle_reason = self.recycle_reason or left

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

    def _should_stop(self) -> bool:
        """Return whether to stop before the next window."""
        self._count_progress()
        return self.must_stop

    def _must_end_audit(self) -> bool:
        """Return whether the audit ends early. A halt of its trial does not end it, since all trials wait for it."""
        self._count_progress()
        return self.stopping.is_set()

    def _close_trial(self) -> None:
        training, self.training = self.training, None
        if training is not None:
            training.close()
