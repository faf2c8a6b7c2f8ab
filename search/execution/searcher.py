"""The Tune searcher over a study, which assigns segments of trials to gangs."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from optuna.trial import FrozenTrial, TrialState
from ray.tune.search import Searcher

from searchlight.search.errors import StoreError, UsageError
from searchlight.search.execution.callback import TrialCallback
from searchlight.search.execution.confirmation import ConfirmationPlan
from searchlight.search.execution.report_handler import ReportHandler, SearchLimits
from searchlight.search.execution.segments.builder import SegmentBuilder, split_micro_batches
from searchlight.search.execution.segments.trial_progress import ProgressReader
from searchlight.search.schedulers.base import Prune, Scheduler, Segment, TrialProgress
from searchlight.search.space.search_space import Space
from searchlight.search.steering.state import Controls
from searchlight.search.study.study import SearchStudy
from searchlight.search.study.trial import (
    has_checkpoint,
    inherit_micro_batches,
    is_confirming,
    split_trials,
)
from searchlight.trainables.filesystem.paths import StoragePath
from searchlight.trainables.worker.messages import SegmentAssignment, from_json

logger = logging.getLogger(__name__)
FEWEST_AT_RUNG = 4  # trials of a rung that TPE learns from: see docs/development/search-quality.md


class StudySearcher(Searcher):
    """Computes the next segment from the study at each request, so that it keeps no state of its own.

    Args:
        folder: The search's folder.
        attempt: A part of every checkpoint's name, different for each driver of the search. Workers of a killed driver
            live for some seconds, and must not write files that this one reads.
        confirmation: Chooses the runs after the search. None: there are none.
    """

    def __init__(
        self,
        study: SearchStudy,
        space: Space,
        schedule: Scheduler,
        limits: SearchLimits,
        folder: StoragePath,
        attempt: str,
        callbacks: Sequence[TrialCallback] = (),
        confirmation: ConfirmationPlan | None = None,
    ) -> None:
        super().__init__()
        self.study = study
        self.space = space
        self.schedule = schedule
        self.limits = limits
        self.attempt = attempt
        self.confirmation = confirmation
        self.controls = Controls()
        self.progress = ProgressReader(study, schedule, self.controls)
        if schedule.unit != "epochs":  # a rung is at another epoch for each trial
            study.compared = self.progress.get_values_by_rung
        if schedule.pauses:
            study.fewest_at_rung = FEWEST_AT_RUNG
        self.reports = ReportHandler(
            study,
            folder,
            limits,
            callbacks,
            schedule.unit,
            self.progress.is_complete,
            lambda number: split_micro_batches(self.space, study.get_trial(number)),
        )
        self.segments = SegmentBuilder(self.progress, space, self.reports, attempt)
        self.error: Exception | None = None
        self.loss_reasons: dict[str, str] = {}  # by Tune's trial; see GangScheduler
        self._live: dict[str, int] = {}  # trial number by Tune's trial
        self._combinations = None if schedule.makes_copies else space.list_combinations()
        self._has_told = False  # that all were tried

    # If a searcher raises, Tune ends the run with a message that hides the cause. `_keep_error` stores the error
    # instead, and lets the gangs end normally.

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        if self._live and (self.reports.first_trial.runs_alone or self._is_full()):
            return None
        self.apply_commands()  # without a trial, Tune calls its scheduler no more
        if self.controls.is_paused and not self.limits.stopping.is_set():
            return None
        result: dict[str, Any] | str | None = Searcher.FINISHED
        if self.error is None:
            result = self._keep_error(lambda: self._next_segment(trial_id), Searcher.FINISHED)
        return None if result == Searcher.FINISHED and self._live else result  # type: ignore[return-value]

    def _is_full(self) -> bool:
        room = self.limits.room() if self.limits.room is not None else math.inf
        return self._exceeds_concurrency() or len(self._live) >= room

    def _exceeds_concurrency(self) -> bool:
        """Return whether one more trial would exceed the concurrency that a command has set."""
        return self.controls.concurrency is not None and len(self._live) >= self.controls.concurrency

    def apply_commands(self) -> None:
        """Apply the commands of users that have arrived. Tune's event loop calls this in each round."""
        if self.error is None:
            self._keep_error(self.controls.apply_waiting, None)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        if not result["is_held"]:
            self._keep_error(lambda: self.reports.handle(self._live[trial_id], from_json(result["reports"])), None)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        number = self._live.pop(trial_id, None)
        if number is None:
            return
        if error or result is None:
            loss = self.loss_reasons.get(trial_id, "unknown")
            self._keep_error(lambda: self.reports.handle_gang_failure(number, loss), None)
        else:
            self._keep_error(lambda: self.reports.handle(number, from_json(result["reports"])), None)
        self._keep_error(self.controls.update_trials, None)  # the trial may have been stopped
        self.controls.free_gangs()

    def handle_segment_end(self, trial_id: str, result: dict[str, Any]) -> SegmentAssignment | None:
        """Record the last report of a segment whose trial may go on. Return its next segment, or None.

        If no trial pauses, a trial goes on in the gang that holds it, without another choice: a function or a program
        that cannot resume would start again in another gang. None lets Tune give the gang to any trial.
        """
        number = self._live.pop(trial_id)
        self._keep_error(lambda: self.reports.handle(number, from_json(result["reports"])), None)
        self._keep_error(self.controls.update_trials, None)
        assignment: SegmentAssignment | None = None
        if not (self.schedule.pauses or self.schedule.makes_copies or self._must_pause(number)):
            assignment = self._keep_error(lambda: self._continue_here(number), None)
        if assignment is not None:
            self._record_start(trial_id, assignment)
        self.controls.free_gangs()  # not before: the gang is idle until it has the segment
        return assignment

    def _must_pause(self, number: int) -> bool:
        """Return whether trial `number` leaves its gang because the search is paused.

        While the search drains, a trial without a checkpoint goes on to its end, since it would start again.
        """
        return self.controls.is_paused and (
            not self.controls.is_draining or has_checkpoint(self.study.get_trial(number))
        )

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles the searcher into a snapshot that is never read

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: a restart builds a new searcher from the study."""

    def restore(self, checkpoint_path: str) -> None:
        raise RuntimeError("a restart builds a new Tuner over the study")

    def recover(self) -> None:
        """Complete the writes of a driver that was killed, and then what the commands in its log demand."""
        self.study.repair_reports()
        for trial in self.study.get_trials():
            if trial.state == TrialState.RUNNING:
                if "outcome" in trial.user_attrs:
                    self.reports.finish_trial(trial.number, trial.user_attrs["outcome"], trial.user_attrs["reason"])
                elif self.progress.is_complete(trial.number):  # the driver died between the last report and the end
                    self.reports.finish_trial(trial.number, "completed")
        self.controls.update_trials()
        ended = [trial for trial in self.study.get_trials() if trial.state.is_finished()]
        self.reports.checkpoints.delete_for_ended(ended)

    def is_paused(self, trial: FrozenTrial) -> bool:
        """Return whether an unfinished `trial` waits at a rung."""
        may_wait = trial.state == TrialState.RUNNING and not is_confirming(trial)
        return may_wait and self.schedule.is_paused_at_rung(self.progress.get_progress(trial))

    def finish(self, prune: bool, is_lost: bool = False) -> None:
        """End trials after the last segment. The others can be resumed.

        A trial that met the target of the search is completed.

        Args:
            prune: Whether to prune trials that wait at a rung.
            is_lost: Whether Ray is lost, and with it the audit that some trials wait for. They are interrupted.
        """
        self.reports.settle(is_over=not is_lost)
        stoppers = self.limits.stoppers
        for trial in self.study.get_trials():
            if trial.state == TrialState.RUNNING:
                number, paused = trial.number, self.is_paused(trial) and trial.number not in self.reports.interrupted
                if number in stoppers.winners:
                    self.reports.finish_trial(number, "completed", f"reached {stoppers.target}")
                elif prune and paused:
                    self._prune_paused(trial)
                elif "config" in trial.user_attrs:  # otherwise, no callback was called at its start
                    for callback in self.reports.callbacks:
                        callback.on_trial_changed(trial, is_over=True)
        self.reports.checkpoints.close()

    def _prune_paused(self, trial: FrozenTrial) -> None:
        progress = self.progress.get_progress(trial)
        if progress.is_complete(self.schedule.limit):  # the search ends before what a command has added
            return self.reports.finish_trial(trial.number, "completed")
        self.reports.finish_trial(trial.number, "pruned", f"not among the best at epoch {progress.epoch}")

    def _keep_error(self, action: Callable[[], Any], otherwise: Any) -> Any:
        try:
            result = action()
            self.study.commit()
            return result
        except Exception as error:  # stored, and raised by the caller of Tune
            if not isinstance(error, StoreError | UsageError):  # their messages say all
                logger.exception("the search cannot continue")
            self.error = self.error or error
            self.limits.stopping.set()
            return otherwise

    def _next_segment(self, trial_id: str) -> dict[str, Any] | str:
        self.reports.settle()
        while not self.limits.stopping.is_set():
            decision = None
            if not self.limits.search_over.is_set():
                trials = self.progress.get_searched()
                may_start = len(trials) < self.limits.trials and self._has_untried()
                decision = (
                    self._find_kept(trials)
                    or (self._begin_enqueued() if may_start else None)
                    or self.schedule.next_action(trials, may_start)
                )
            if isinstance(decision, Prune):
                self.reports.finish_trial(decision.number, "pruned", decision.reason)
                continue
            assignment = self.segments.start_segment(decision) if decision else self._next_confirming_segment()
            if assignment is not None:
                self._record_start(trial_id, assignment)
                return {"segment": assignment}
            # Without a live trial, no worker audits any more: what waits for the audit is decided without it.
            if decision is None and (self._live or not self.reports.settle(is_over=True)):
                break
        return Searcher.FINISHED

    def _has_untried(self) -> bool:
        """Return whether a config is left to try. Commands may leave fewer than the search has trials."""
        if self._combinations is None or self.study.has_untried(self._combinations):
            return True
        if not self._has_told:
            logger.warning("all configs that commands leave were tried: no trial begins until another one is allowed")
        self._has_told = True
        return False

    def _find_kept(self, trials: Sequence[TrialProgress]) -> Segment | None:
        """Return the next segment of a trial that a command keeps, or None if none of them waits."""
        wanted = {*self.controls.kept, *self.controls.extended}
        for trial in trials if wanted else ():
            if trial.number in wanted and trial.state == "waiting":
                ends = (*self.schedule.rungs, self.progress.get_limit(self.study.get_trial(trial.number)))
                rung = next(rung for rung in ends if rung > trial.total_cost)
                return Segment("continued", trial.number, trial.epoch, rung)  # not further: the command may be undone
        return None

    def _begin_enqueued(self) -> Segment | None:
        """Return the first segment of a point to try if a population, which may be full, would only copy members."""
        if self.schedule.makes_copies and any(t.state == TrialState.WAITING for t in self.study.get_all_trials()):
            begun = self.schedule.next_action([], may_start=True)
            return begun if isinstance(begun, Segment) else None
        return None

    def _continue_here(self, number: int) -> SegmentAssignment | None:
        """Return the next segment of trial `number`, which its gang holds, or None if it is pruned or must wait."""
        if self.limits.stopping.is_set() or self.limits.search_over.is_set():
            return None
        trials = [
            replace(trial, state="running") if trial.state == "waiting" and trial.number != number else trial
            for trial in self.progress.get_searched()
        ]
        decision = self._find_kept(trials) or self.schedule.next_action(trials, may_start=False)
        if isinstance(decision, Prune):
            self.reports.finish_trial(number, "pruned", decision.reason)
        return self.segments.continue_trial(decision) if isinstance(decision, Segment) else None

    def _record_start(self, trial_id: str, assignment: SegmentAssignment) -> None:
        self._live[trial_id] = assignment.trial
        self.reports.record_segment_start(assignment.trial)

    def _next_confirming_segment(self) -> SegmentAssignment | None:
        """Return a confirming run once all trials of the search are idle, or None."""
        live = self.study.live  # first: idle gangs ask often, and the study may have thousands of trials
        if self.confirmation is None or any(not is_confirming(self.study.get_trial(number)) for number in live):
            return None
        trials = self.study.get_trials()
        searched, runs = split_trials(trials)
        for trial in runs:
            if trial.state == TrialState.RUNNING and trial.number not in live:
                self.limits.search_over.set()
                epoch, until = self.progress.get_progress(trial).epoch, self._get_confirming_limit(trial)
                return self.segments.continue_trial(Segment("continued", trial.number, epoch, until))
        due = self.confirmation.next_runs(trials)
        if not due:
            return None
        self.limits.search_over.set()  # budgets end no confirming run
        for trial in searched:
            if self.is_paused(trial):
                self._prune_paused(trial)
        attributes = {"config": due[0].config, "confirms": asdict(due[0].run)}
        if (finalist := due[0].run.trial) is not None:
            attributes |= inherit_micro_batches(self.study.get_trial(finalist), due[0].config)
        number = self.study.create_copy(self.space, {}, attributes)
        self.reports.notify(number)
        return self.segments.assign(number, 0, self._get_confirming_limit(self.study.get_trial(number)), [None])

    def _get_confirming_limit(self, run: FrozenTrial) -> float:
        return self.schedule.limit + self.progress.get_extension(run)
