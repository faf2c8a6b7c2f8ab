"""The Tune searcher over a study, which assigns segments of trials to gangs."""

import logging
import math
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, Literal

from optuna.trial import FrozenTrial, TrialState
from pydantic import ValidationError
from ray.tune.search import Searcher

from searchlight.search.errors import StoreError, UsageError, format_validation_errors
from searchlight.search.execution.callback import TrialCallback
from searchlight.search.execution.confirmation import ConfirmationPlan
from searchlight.search.execution.report_handler import ReportHandler, SearchLimits
from searchlight.search.samplers.perturbation import perturb
from searchlight.search.schedulers.base import Prune, Scheduler, Segment, TrialProgress
from searchlight.search.schedulers.pbt import format_replacement_reason
from searchlight.search.space.fidelity import cumulative_cost, report_field
from searchlight.search.space.search_space import Space
from searchlight.search.steering.state import Controls
from searchlight.search.study.study import SearchStudy
from searchlight.search.study.trial import (
    WORSE,
    TrialCache,
    get_outcome,
    get_reports,
    inherit_micro_batches,
    intermediate_values,
    is_confirming,
    max_epochs,
    penalize_violations,
    split_trials,
)
from searchlight.trainables.filesystem.paths import StoragePath
from searchlight.trainables.task import TaskConfig
from searchlight.trainables.worker.messages import Infeasibility, SegmentAssignment, SegmentBudget, from_json

logger = logging.getLogger(__name__)
EXPLORED = 20  # attempts to draw hyperparameters that the task accepts


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
        if schedule.unit != "epochs":  # a rung is at another epoch for each trial
            study.compared = self._get_values_by_rung
        self.reports = ReportHandler(
            study, folder, limits, callbacks, schedule.unit, self._is_complete, self._split_micro_batches
        )
        self.error: Exception | None = None
        self.loss_reasons: dict[str, str] = {}  # by Tune's trial; see GangScheduler
        self.controls = Controls()
        self._live: dict[str, int] = {}  # trial number by Tune's trial
        self._progress = TrialCache(self._build_progress)

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

    def handle_segment_end(self, trial_id: str, result: dict[str, Any]) -> SegmentAssignment | None:
        """Record the last report of a segment whose trial may go on. Return its next segment, or None.

        If no trial pauses, a trial goes on in the gang that holds it, without another choice: a function or a program
        that cannot resume would start again in another gang. None lets Tune give the gang to any trial.
        """
        number = self._live.pop(trial_id)
        self._keep_error(lambda: self.reports.handle(number, from_json(result["reports"])), None)
        self._keep_error(self.controls.update_trials, None)
        if self.schedule.pauses or self.schedule.makes_copies:
            return None
        if self.controls.is_paused or self._exceeds_concurrency():
            return None
        assignment: SegmentAssignment | None = self._keep_error(lambda: self._continue_here(number), None)
        if assignment is not None:
            self._record_start(trial_id, assignment)
        return assignment

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
                elif self._is_complete(trial.number):  # the driver died between the last report and the end
                    self.reports.finish_trial(trial.number, "completed")
        self.controls.update_trials()
        ended = [trial for trial in self.study.get_trials() if trial.state.is_finished()]
        self.reports.checkpoints.delete_for_ended(ended)

    def is_paused(self, trial: FrozenTrial) -> bool:
        """Return whether an unfinished `trial` waits at a rung."""
        may_wait = trial.state == TrialState.RUNNING and not is_confirming(trial)
        return may_wait and self.schedule.is_paused_at_rung(self._progress_of(trial))

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
        progress = self._progress_of(trial)
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
                trials = self._get_searched()
                may_start = len(trials) < self.limits.trials
                decision = (
                    self._find_kept(trials)
                    or (self._begin_enqueued() if may_start else None)
                    or self.schedule.next_action(trials, may_start)
                )
            if isinstance(decision, Prune):
                self.reports.finish_trial(decision.number, "pruned", decision.reason)
                continue
            assignment = self._start_segment(decision) if decision else self._next_confirming_segment()
            if assignment is not None:
                self._record_start(trial_id, assignment)
                return {"segment": assignment}
            # Without a live trial, no worker audits any more: what waits for the audit is decided without it.
            if decision is None and (self._live or not self.reports.settle(is_over=True)):
                break
        return Searcher.FINISHED

    def _find_kept(self, trials: Sequence[TrialProgress]) -> Segment | None:
        """Return the next segment of a trial that a command keeps, or None if none of them waits."""
        wanted = {*self.controls.kept, *self.controls.extended}
        for trial in trials if wanted else ():
            if trial.number in wanted and trial.state == "waiting":
                ends = (*self.schedule.rungs, self._get_limit(trial.number, trial.epochs))
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
            for trial in self._get_searched()
        ]
        decision = self._find_kept(trials) or self.schedule.next_action(trials, may_start=False)
        if isinstance(decision, Prune):
            self.reports.finish_trial(number, "pruned", decision.reason)
        return self._continue_trial(decision) if isinstance(decision, Segment) else None

    def _record_start(self, trial_id: str, assignment: SegmentAssignment) -> None:
        self._live[trial_id] = assignment.trial
        self.reports.record_segment_start(assignment.trial)

    def _get_searched(self) -> list[TrialProgress]:
        progress = self._progress.get_all(self.study.get_all_trials(), self.study.live)
        return [trial for is_searched, trial in progress if is_searched]

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
                epoch = self._progress_of(trial).epoch
                return self._continue_trial(Segment("continued", trial.number, epoch, self.schedule.limit))
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
        return self._assign(number, 0, self.schedule.limit, [None])

    def _is_complete(self, number: int) -> bool:
        progress = self._progress_of(self.study.get_trial(number))
        if number in self.controls.extended:
            return progress.epoch >= self._get_limit(number, progress.epochs)
        return progress.is_complete(self.schedule.limit)

    def _get_limit(self, number: int, epochs: float) -> float:
        """Return the largest budget of a trial of so many epochs, and of what commands have added."""
        return min(self.schedule.limit, epochs) + self.controls.extended.get(number, 0)

    def _get_values_by_rung(self, trial: FrozenTrial) -> dict[int, float]:
        progress = replace(self._progress_of(trial), values=intermediate_values(trial))  # as they were reported
        return progress.values_by_rung(self.schedule.rungs)

    def _progress_of(self, trial: FrozenTrial) -> TrialProgress:
        return self._progress.get(trial, self.study.live)[1]

    def _build_progress(self, trial: FrozenTrial, is_live: bool) -> tuple[bool, TrialProgress]:
        """Return whether the search has begun `trial`, with a confirming run excluded, and its progress."""
        state: Literal["running", "waiting"] = "running" if is_live else "waiting"
        copy = trial.user_attrs.get("copy", {"epoch": 0, "replaces": None})
        progress = TrialProgress(
            trial.number,
            penalize_violations(trial, self.study.objectives[0]),
            state if trial.state == TrialState.RUNNING else "ended",
            start=copy["epoch"],
            copied_from=trial.user_attrs.get("copied_from"),
            replaces=copy["replaces"],
            finished=trial.state == TrialState.COMPLETE,
            broke_off=trial.state != TrialState.RUNNING and get_outcome(trial) in (*WORSE, "failed"),
            epochs=max_epochs(trial),
            spent=None if self.schedule.unit == "epochs" else cumulative_cost(get_reports(trial), self.schedule.unit),
            confirmed_before=self.study.count_confirming_before(trial.number),
        )
        return trial.state != TrialState.WAITING and not is_confirming(trial), progress

    def _start_segment(self, segment: Segment) -> SegmentAssignment | None:
        if segment.copied_from is not None:
            return self._copy_trial(segment)
        if segment.number is None:
            return self._start_trial(segment, *self.study.ask(self.space))
        if "config" not in self.study.get_trial(segment.number).user_attrs:  # the search died while asking
            return self._start_trial(segment, segment.number, self.study.resume_ask(segment.number, self.space))
        return self._continue_trial(segment)

    def _start_trial(self, segment: Segment, number: int, values: dict[str, Any]) -> SegmentAssignment | None:
        """Start a trial and return its first segment, or None if the task or a command refuses it."""
        try:
            config = self.space.build_config(values).model_dump(mode="json", round_trip=True)
        except ValidationError as error:
            self.study.record_config(number, values)
            self.reports.notify(number)
            reason = "; ".join(format_validation_errors(error))
            self.reports.finish_trial(number, "infeasible", reason, infeasibility=Infeasibility("build"))
            return None
        self.study.record_config(number, config)
        self.reports.notify(number)
        self.controls.update_trials()  # its author may have no GPU-hours left
        if self.study.get_trial(number).state.is_finished():
            return None
        return self._assign(number, 0, segment.until, [None])

    def _copy_trial(self, segment: Segment) -> SegmentAssignment:
        """Start a trial from the newest checkpoint of another one, then end the trial that it replaces.

        In this order, a resumed search finds in the study which trial must still be ended.
        """
        assert segment.copied_from is not None
        parent = self.study.get_trial(segment.copied_from)
        values, config = self._perturb_values(parent.params, random.Random(segment.draw))
        path, epoch = self.reports.checkpoints.copy(parent, self.study.get_next_number())
        copy = {"epoch": epoch, "checkpoint": path, "replaces": segment.replaces}
        attributes = {"config": config, "copied_from": parent.number, "copy": copy}
        attributes |= inherit_micro_batches(parent, config)
        number = self.study.create_copy(self.space, values, attributes)
        self.reports.notify(number)
        if segment.replaces is not None:
            self.reports.finish_trial(segment.replaces, "pruned", format_replacement_reason(parent.number))
        return self._assign(number, epoch, segment.until, [path, None] if path else [None])

    def _perturb_values(self, values: dict[str, Any], draw: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return perturbed `values` that commands allow and their config, or `values` if all attempts are refused."""
        for _ in range(EXPLORED):
            near = perturb(self.space, values, draw)
            if self.study.allows is None or self.study.allows(near):
                with suppress(ValidationError):
                    return near, self.space.build_config(near).model_dump(mode="json", round_trip=True)
        who = "the task" if self.study.allows is None else "the task or a command"
        logger.warning("%s refused %d combinations near to %s: they are copied as they are", who, EXPLORED, values)
        return values, self.space.build_config(values).model_dump(mode="json", round_trip=True)

    def _continue_trial(self, segment: Segment) -> SegmentAssignment:
        assert segment.number is not None
        candidates = self.reports.checkpoints.resume_candidates(self.study.get_trial(segment.number), segment.start)
        return self._assign(segment.number, segment.start, segment.until, candidates)

    def _split_micro_batches(self, number: int) -> dict[str, int] | None:
        """Return the fields of the config of a trial that has run out of memory, so that it needs less, or None."""
        attributes = self.study.get_trial(number).user_attrs
        config = self.space.config_class.model_validate({**attributes["config"], **attributes.get("micro_batches", {})})
        return config.split_micro_batches() if isinstance(config, TaskConfig) else None

    def _assign(self, number: int, epoch: int, until: float, checkpoints: list[str | None]) -> SegmentAssignment:
        """Return the segment of a trial from `epoch` to the cost `until`."""
        trial = self.study.get_trial(number)
        unit, epochs, budget = self.schedule.unit, max_epochs(trial), None
        config = {**trial.user_attrs["config"], **trial.user_attrs.get("micro_batches", {})}
        limit = self._get_limit(number, epochs) if unit == "epochs" else self.schedule.limit
        if unit == "epochs":
            config |= {"epochs": max(epochs, int(limit))} if number in self.controls.extended else {}
            epochs = min(int(limit), int(until))
        else:
            spent = cumulative_cost(get_reports(trial), unit).get(epoch, 0.0)
            budget = SegmentBudget(report_field(unit), epoch, spent, until)
        return SegmentAssignment(
            number,
            config,
            epoch,
            epochs,
            str(self.reports.checkpoints.get_trial_folder(number)),
            self.attempt,
            checkpoints,
            trial.user_attrs.get("copy", {}).get("checkpoint"),
            budget,
            until >= limit,
        )
