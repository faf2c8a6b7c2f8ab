"""Handles the reports of gangs: records them in the study, calls the callbacks, and ends trials."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from threading import Event
from typing import Any

from optuna.trial import FrozenTrial

from searchlight.search.errors import StoreError, UsageError
from searchlight.search.execution.callback import TrialCallback
from searchlight.search.execution.checkpoint_manager import CHECKPOINTS, CheckpointManager
from searchlight.search.execution.stoppers import FirstTrial, Stoppers
from searchlight.search.folder.retry import retry_while_unavailable
from searchlight.search.formatting import resume_command
from searchlight.search.space.constraints import Constraint
from searchlight.search.space.fidelity import UNLIMITED, Unit, epoch_cost
from searchlight.search.study.datasets import Datasets
from searchlight.search.study.study import SearchStudy
from searchlight.search.study.trial import (
    WITH_RESULT,
    get_constraints,
    get_end_time,
    get_reports,
    intermediate_values,
    max_epochs,
)
from searchlight.trainables.filesystem.paths import StoragePath, get_outage_errors
from searchlight.trainables.worker.messages import (
    Divergence,
    EpochReport,
    GangResult,
    Infeasibility,
    SegmentEnd,
    TrialRelease,
    escape_surrogates,
)

logger = logging.getLogger(__name__)


@dataclass
class SearchLimits:
    """The limits of a search.

    Attributes:
        trials: The number of trials to start.
        checkpoints: The number of ended trials that keep a checkpoint.
        max_losses: How often a trial may lose its whole gang before it fails.
        stopping: Once set, no segment begins.
        search_over: Once set, no segment of the search begins, but confirming runs do.
        stoppers: Rules that end the search early. They set `stopping`.
        room: Returns how many segments may run concurrently. None: any number.
        passed_audit: Returns whether the audit found no errors in the task, or None until it has ended.
        tries_first: Whether the first trial must report before others begin: no audit knows if a function works.
        constraints: What the metrics of a feasible trial meet.
    """

    trials: int
    checkpoints: int = 10
    max_losses: int = 3
    stopping: Event = field(default_factory=Event)
    search_over: Event = field(default_factory=Event)
    stoppers: Stoppers = field(default_factory=Stoppers)
    room: Callable[[], int] | None = None
    passed_audit: Callable[[], bool | None] = lambda: True
    tries_first: bool = False
    constraints: Sequence[Constraint] = ()


class ReportHandler:
    """Records the reports of gangs, and ends trials.

    Args:
        folder: The search's folder: checkpoints go to `checkpoints/<number>` in it, tracebacks to `errors`.
        unit: The unit of fidelity.
        is_complete: Returns whether the trial of a number is complete.
        split_micro_batches: Returns the fields of the config of a trial with smaller micro-batches, or None.

    Attributes:
        spent: The cost of all trials in the unit of fidelity.
        interrupted: Trials that a stop of the search interrupted within a segment.
        first_trial: Decides whether trials begin beside the first one.
    """

    def __init__(
        self,
        study: SearchStudy,
        folder: StoragePath,
        limits: SearchLimits,
        callbacks: Sequence[TrialCallback],
        unit: Unit,
        is_complete: Callable[[int], bool],
        split_micro_batches: Callable[[int], dict[str, int] | None],
    ) -> None:
        self.study = study
        self.checkpoints = CheckpointManager(folder / CHECKPOINTS, study.objectives, limits.checkpoints)
        self.interrupted: set[int] = set()
        self.spent = sum(
            epoch_cost(report, unit) for trial in study.get_trials() for report in get_reports(trial).values()
        )
        has_reported = any(get_reports(trial) for trial in study.get_trials())
        self.first_trial = FirstTrial(limits.tries_first and not has_reported)
        self._folder = folder
        self._limits = limits
        self._withheld: dict[int, tuple[SegmentEnd, float]] = {}  # ends before the audit's, with their times
        self._stoppers = limits.stoppers
        self.callbacks = tuple(callbacks)
        self._unit = unit
        self._is_complete = is_complete
        self._split_micro_batches = split_micro_batches
        self._datasets = Datasets(study.get_trials())
        self._began: dict[int, float] = {}  # start of the trial's segment, in seconds since 1970
        self._times: dict[int, float] = {}  # what `_get_time` returned last
        self._losses: dict[int, int] = {}  # lost gangs by trial, since its last progress
        self._has_returned_early = False  # told once
        self._released: dict[int, TrialRelease] = {}  # trials that their gangs have released

    def record_segment_start(self, number: int) -> None:
        """Begin to measure the GPU time of a segment of trial `number`."""
        self.study.live.add(number)
        self.interrupted.discard(number)
        self._began[number] = self._get_time(number)
        self.first_trial.record_start(number)
        self._stoppers.record_segment_start(number)

    def handle(self, number: int, result: GangResult) -> None:
        """Record the reports of a segment of trial `number`. End the segment if the last report is `done`.

        Raises:
            StoreError: The workers cannot write checkpoints.
            UsageError: The first trial failed before its first report.
        """
        now = self._get_time(number)
        for report in result.reports:
            if isinstance(report, TrialRelease):
                self._released[number] = report
                self._log_notes(number, report.notes)
            elif isinstance(report, SegmentEnd):
                self._record_segment(number, result, now)
                self._handle_end(number, report, now)
            elif report.done:
                self._record_segment(number, result, now)
                self._record_report(number, report, result.gang, now)
                if self._is_complete(number):
                    self.finish_trial(number, "completed")
                self._stoppers.record_trial(self.study.get_trial(number), has_paused=True)
            else:
                self._record_report(number, report, result.gang, now)
        if result.reports[-1].done and number not in self._withheld:
            self.study.live.discard(number)

    def _get_time(self, number: int) -> float:
        """Return the present time, but none before the last one of trial `number`: the clock may have been set back."""
        last = self._times.get(number) or get_end_time(self.study.get_trial(number))
        self._times[number] = max(time.time(), last)
        return self._times[number]

    def settle(self, is_over: bool = False) -> bool:
        """End the trials that failed or diverged before the audit had ended. Return whether there were any.

        If it found errors in the task, they are interrupted: the corrected task trains them again. So they are if
        `is_over`, and the search was stopped before the end of the audit.
        """
        passed = self._limits.passed_audit()
        if passed is None and is_over:
            passed = not self._limits.stopping.is_set()
        if passed is None:
            return False
        withheld, self._withheld = self._withheld, {}
        for number, (end, now) in withheld.items():
            self.study.live.discard(number)
            if passed:
                self._end_trial(number, end, now)
            else:
                self.interrupted.add(number)
        return bool(withheld)

    def handle_gang_failure(self, number: int, loss: str) -> None:
        """Let the next free gang continue trial `number`, whose gang was lost or has released it."""
        loss = escape_surrogates(loss)
        release = self._released.pop(number, None)
        if release is not None and not release.begun:
            self._stoppers.meter.cancel(number)
            del self._began[number]
        else:
            self._record_segment(number, None, self._get_time(number), "" if release else loss)
        if release is None:
            self._losses[number] = self._losses.get(number, 0) + 1
            if self._losses[number] > self._limits.max_losses:
                reason = f"its gang was lost {self._losses[number]} times: {loss}"
                self.finish_trial(number, "failed", reason)
                self._stoppers.record_trial(self.study.get_trial(number), failure=reason)
            else:
                logger.warning("trial %d: lost its gang (%s), and continues from its last checkpoint", number, loss)
        self.study.live.discard(number)

    def finish_trial(
        self,
        number: int,
        outcome: str,
        reason: str = "",
        divergence: Divergence | None = None,
        infeasibility: Infeasibility | None = None,
    ) -> None:
        """End a trial in the study, delete its unneeded checkpoints, and call the callbacks.

        A trial with a result that violates constraints on metrics is infeasible.
        """
        self.study.live.discard(number)
        if outcome in WITH_RESULT and (violations := self._describe_violations(number)):
            outcome, reason = "infeasible", "; ".join(filter(None, [violations, reason]))
        found = {"divergence": divergence, "infeasibility": infeasibility}
        details = {name: asdict(content) for name, content in found.items() if content is not None}
        self.study.record_end(number, outcome, reason, details)
        self.study.commit()
        self.checkpoints.delete_for_ended([self.study.get_trial(number)])
        self.study.end(number, outcome, reason)
        self.notify(number)

    def _describe_violations(self, number: int) -> str:
        constraints = get_constraints(self.study.get_trial(number), self.study.objectives[0])
        violated = {name: value for name, value in constraints.items() if value > 0}
        return "; ".join(f"its best report misses {name} by {value:.4g}" for name, value in violated.items())

    def notify(self, number: int) -> FrozenTrial:
        """Tell the callbacks that trial `number` has changed. Return its state.

        Commit the study first, so that they see only what a later driver would see.
        """
        self.study.commit()
        trial = self.study.get_trial(number)
        for callback in self.callbacks:
            callback.on_trial_changed(trial)
        return trial

    def _record_report(self, number: int, report: EpochReport, gang: str, now: float) -> None:
        epoch, metrics, meter = report.epoch, report.metrics, self._stoppers.meter
        content = {"metrics": metrics, "checkpoint": report.checkpoint, "time": now, **report.costs}
        content |= {"held_gpu_s": meter.get_gpu_seconds(number), "gang": gang}
        content["seconds"] = report.costs.get("gpu_seconds", 0.0) / meter.gpus
        if self._limits.constraints:
            constraints = self._limits.constraints
            content["violations"] = {str(each): each.measure_violation(metrics) for each in constraints}
        self._log_notes(number, report.notes)
        self.first_trial.record_report()
        if report.datasets:
            self._record_datasets(number, list(report.datasets))
        trial = self.study.get_trial(number)
        if epoch in intermediate_values(trial):  # repeated, since its checkpoint could not be read
            before = get_reports(trial)[epoch]
            again = before.get("repeated_s", 0.0) + report.costs.get("gpu_seconds", 0.0)
            content = {**before, "repeated_s": again, "checkpoint": report.checkpoint or before["checkpoint"]}
            self.study.record_report(number, epoch, content)
            if report.checkpoint is not None:
                self.checkpoints.replace(number, epoch, before["checkpoint"], report.checkpoint)
            trial = self.study.get_trial(number)
        else:
            self._losses.pop(number, None)
            self.spent += epoch_cost(content, self._unit)
            self.study.report(number, epoch, metrics[self.study.objectives[0].metric], content)
            trial = self.notify(number)
            self._stoppers.record_trial(trial)
        self.checkpoints.prune(trial)

    def _handle_end(self, number: int, end: SegmentEnd, now: float) -> None:
        if end.outcome == "interrupted":
            self.interrupted.add(number)
            if end.unwritable:  # any trial would find it so, and would fail
                raise StoreError(f"trial {number}: {end.reason}")
        elif end.outcome == "failed" and self.first_trial.record_failure(number, _lacks_memory(end)):
            self._log_notes(number, end.notes)
            self.interrupted.add(number)  # the corrected function trains it again
            path = self._save_traceback(number, end.traceback) if end.traceback else None
            raise _build_error(number, end.reason + _format_location(end), path, self._folder)
        elif self._limits.passed_audit():
            self._end_trial(number, end, now)
        else:
            self._withheld[number] = (end, now)

    def _end_trial(self, number: int, end: SegmentEnd, now: float) -> None:
        """End a trial that has failed or diverged, unless smaller micro-batches may fit into memory."""
        self._log_notes(number, end.notes)
        infeasibility = end.infeasibility
        if infeasibility and infeasibility.in_window and (split := self._split_micro_batches(number)):
            self.study.record_micro_batches(number, split)
            self.notify(number)
            values = ", ".join(f"{name}={value}" for name, value in split.items())
            logger.warning(
                "trial %d: %s. It continues with %s, which gives the same updates", number, end.reason, values
            )
            return
        if end.last is not None:
            self._record_divergent_epoch(number, end.last, now)
        if end.traceback:
            self._save_traceback(number, end.traceback)
        where = _format_location(end)
        early = self._describe_early_return(number) if end.outcome == "completed" else ""
        outcome = "infeasible" if infeasibility else end.outcome
        self.finish_trial(number, outcome, end.reason + where + early, end.divergence, infeasibility)
        failure = end.reason if end.outcome == "failed" else ""  # also if it is infeasible: perhaps all configs are
        self._stoppers.record_trial(self.study.get_trial(number), failure=failure, where=where)

    def _describe_early_return(self, number: int) -> str:
        """Return a text about the function of a trial that has returned before its last report, or ""."""
        trial = self.study.get_trial(number)
        reports, epochs = max(intermediate_values(trial), default=0), max_epochs(trial)
        if self._unit != "epochs" or not reports < epochs < UNLIMITED:
            return ""
        if not self._has_returned_early:
            self._has_returned_early = True
            logger.warning(
                "trial %d: its function or program returned after %d of %d reports. "
                "Its last value is compared with later ones.",
                number, reports, epochs,
            )  # fmt: skip
        return f"returned after {reports} of {epochs} reports"

    def _record_divergent_epoch(self, number: int, last: EpochReport, now: float) -> None:
        """Record the epoch in which a trial diverged, without a finite objective."""
        trial = self.study.get_trial(number)
        known = get_reports(trial).get(last.epoch, {})  # the search died before the end, or the epoch was repeated
        at = known.get("time", now)
        content = {"epoch": last.epoch, "metrics": last.metrics, "checkpoint": last.checkpoint, **last.costs}
        if known.get("repeated") or last.epoch in intermediate_values(trial):
            content["repeated"] = True  # several objectives lose the value that this report replaces
        self.study.record_report(number, last.epoch, {**content, "time": at})

    def _save_traceback(self, number: int, traceback: str) -> StoragePath | None:
        """Write a traceback to the bucket before the trial ends, since the driver's disk may be lost.

        Return its path, or None if it cannot be written.
        """
        path = self._folder / "errors" / f"trial-{number}.txt"
        write = partial(path.write_text, traceback, encoding="utf-8")
        try:
            path.parent.mkdir(exist_ok=True)
            retry_while_unavailable(write, errors=get_outage_errors(path))
            return path
        except OSError as error:  # e.g. a full disk; the study has the reason
            logger.warning("trial %d: its traceback cannot be written: %s\n%s", number, error, traceback.rstrip())
            return None

    def _record_segment(self, number: int, result: GangResult | None, now: float, loss: str = "") -> None:
        """Record a segment that has ended, with its last `result`, or None and the `loss` if its gang was lost."""
        content: dict[str, Any] = {"lost": loss} if loss else {}
        if result is not None:
            content = {"gang": result.gang}
            if isinstance(end := result.reports[-1], SegmentEnd) and end.outcome == "failed":
                content["failed"] = True  # the trial may still be interrupted, and train again
            if result.taken is not None:  # by the clock of another machine
                content["taken"] = min(max(result.taken, self._began[number]), now)
        for report in get_reports(self.study.get_trial(number)).values() if result is None else ():
            if "gang" in report and report["time"] >= self._began[number]:
                content["gang"] = report["gang"]
        held_gpu_s = self._stoppers.meter.end(number)
        content |= {"began": self._began.pop(number), "ended": now, "held_gpu_s": held_gpu_s}
        self.study.record_segment(number, content)

    def _log_notes(self, number: int, notes: Sequence[str]) -> None:
        for note in notes:
            logger.warning("trial %d: %s", number, note)

    def _record_datasets(self, number: int, datasets: list[dict[str, str]]) -> None:
        self._log_notes(number, self._datasets.describe_changes(number, datasets))
        self.study.record_datasets(number, datasets)


def _lacks_memory(end: SegmentEnd) -> bool:
    return end.infeasibility is not None and end.infeasibility.constraint == "memory"


def _format_location(end: SegmentEnd) -> str:
    """Return where the user's code failed, to follow the reason, or ""."""
    return f", at {end.location}" if end.location else ""


def _build_error(number: int, reason: str, traceback: StoragePath | None, place: StoragePath) -> UsageError:
    """Return the error of a search at `place` whose first trial failed, with its `traceback` in a file."""
    return UsageError(
        f"trial {number} failed before its first report: {reason}.",
        *([f"Its traceback is in {traceback}."] if traceback else []),
        "No other trial begins. If an option like --objective or --search is wrong, begin a new search: a resumed one "
        f"keeps it. Its --name must be another one, or delete {place} before.",
        f"Else correct the task and run {resume_command(place)}, or add --no-preflight.",
    )
