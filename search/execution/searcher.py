"""The Tune searcher over a study: hands out stretches of trials and tells the study what came of them."""

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from optuna.trial import FrozenTrial, TrialState
from pydantic import ValidationError
from ray.tune.search import Searcher

from search.config.fidelity import COSTS, cumulative_cost, epoch_cost, report_field
from search.config.flatten import flatten
from search.config.search_space import Space
from search.errors import StoreError, format_validation_errors
from search.execution.callback import TrialCallback
from search.execution.checkpoint_manager import CheckpointManager
from search.execution.stoppers import Stoppers
from search.samplers.perturbation import perturb
from search.schedulers.base import Prune, Scheduler, Segment, TrialProgress
from search.schedulers.pbt import format_replacement_reason
from search.storage.requests import retry_while_unavailable
from search.study.datasets import Datasets
from search.study.study import SearchStudy
from search.study.trial import get_outcome, get_reports, intermediate_values, max_epochs
from trainables.filesystem.paths import RemotePath, StoragePath

logger = logging.getLogger(__name__)
EXPLORED = 20  # how often hyperparameters near to those of a trial are drawn, until the task takes them


class StudySearcher(Searcher):
    """What runs next is computed from the study at every question, so that nothing is lost with this object.

    Args:
        study: Holds the truth.
        space: What a new trial may be.
        schedule: Which trial goes on, and which ends.
        objective: The metric that a trial's reports are judged by.
        trials: How many trials to start.
        folder: Where the search lies: checkpoints go to `checkpoints/<number>` in it, what trials raised to `errors`.
        attempt: Part of every checkpoint's name, different for each driver of the search: workers of a driver that
            was killed live on for seconds and must not write what this one reads.
        observers: Told what happens.
        stopping: No new stretch begins once it is set.
        max_losses: How often a trial may lose its whole gang before it fails.
        budget: Told of every stretch and report, to end the search in time.
        room: How many stretches may run at once just now; None: any number.

    Attributes:
        spent: What the trials of the study have got, in the schedule's unit of fidelity.
    """

    def __init__(
        self,
        study: SearchStudy,
        space: Space,
        schedule: Scheduler,
        objective: str,
        trials: int,
        folder: StoragePath,
        attempt: str,
        observers: Sequence[TrialCallback] = (),
        stopping: threading.Event | None = None,
        max_losses: int = 3,
        budget: Stoppers | None = None,
        room: Callable[[], int] | None = None,
    ) -> None:
        super().__init__()
        self.study = study
        self.space = space
        self.schedule = schedule
        self.objective = objective
        self.trials = trials
        self.folder = folder
        self.attempt = attempt
        self.observers = tuple(observers)
        self.stopping = stopping or threading.Event()
        self.max_losses = max_losses
        if schedule.unit != "epochs":  # of the same rung, which is another epoch for each
            study.compared = lambda trial: self._progress_of(trial).values_by_rung(schedule.rungs)
        self.budget = budget or Stoppers()
        self.room = room
        self.checkpoints = CheckpointManager(self.folder / "checkpoints", study.objectives[0])
        self.error: Exception | None = None
        self._datasets = Datasets(study.get_trials())
        earlier = [report for trial in study.get_trials() for report in get_reports(trial).values()]
        self.spent = sum(epoch_cost(report, schedule.unit) for report in earlier)
        self._live: dict[str, int] = {}  # the number of the trial that each of Tune's trials is a stretch of
        self.loss_reasons: dict[str, str] = {}  # by Tune's trial; see losses.py
        self._losses: dict[int, int] = {}  # of gangs, by trial, since it last got any further
        self._standings: dict[int, tuple[FrozenTrial, bool, TrialProgress]] = {}  # each with what it follows from
        self._unplaced: set[str] = set()
        self._moving: set[str] = set()
        self._began: dict[int, float] = {}  # when the stretch of a trial did, in seconds since 1970
        self._cut_off: set[int] = set()

    # Tune ends the whole run when a searcher raises, with a message that hides the cause: `_guarded` keeps the
    # error for the one who started the search, and lets the gangs end in good order.

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        if self._live and self.room is not None and len(self._live) >= self.room():
            return None
        result: dict[str, Any] | str | None = Searcher.FINISHED
        if self.error is None:
            result = self._keep_error(lambda: self._next_segment(trial_id), Searcher.FINISHED)
        return None if result == Searcher.FINISHED and self._live else result  # type: ignore[return-value]

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        if not result["done"]:
            self._keep_error(lambda: self._handle_reports(trial_id, json.loads(result["reports"])), None)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        number = self._live.pop(trial_id, None)
        if number is None:
            return
        if error or result is None:
            self._keep_error(lambda: self._handle_gang_failure(trial_id, number), None)
        else:
            self._keep_error(lambda: self._finish_segment(number, json.loads(result["reports"])), None)

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles the searcher into a snapshot that nothing ever reads

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the study holds the truth, and a restart builds a new searcher over it."""

    def restore(self, checkpoint_path: str) -> None:
        raise RuntimeError("a restart builds a new Tuner over the study")

    def recover(self) -> None:
        """Finish what a driver that died had begun to write."""
        self.study.repair_reports(self.objective)
        for trial in self.study.get_trials():
            if trial.state == TrialState.RUNNING:
                if "outcome" in trial.user_attrs:
                    self._finish_trial(trial.number, trial.user_attrs["outcome"], trial.user_attrs["reason"])
                elif self._progress_of(trial).is_complete(
                    self.schedule.limit
                ):  # it died between the last report and the end
                    self._finish_trial(trial.number, "completed")
        self.checkpoints.delete_orphans([trial for trial in self.study.get_trials() if trial.state.is_finished()])

    def is_paused(self, trial: FrozenTrial) -> bool:
        """Whether `trial`, which has not ended, waits at a rung."""
        return trial.state == TrialState.RUNNING and self.schedule.is_paused_at_rung(self._progress_of(trial))

    def finish(self, prune: bool) -> None:
        """After the last stretch: trials that wait at a rung are pruned, those cut off on their way are not.

        One that met the target of the search is completed: it has come to where it was to go.

        Without `prune`, all of them are left to be taken up again.
        """
        for trial in self.study.get_trials():
            if trial.state == TrialState.RUNNING:
                standing = self._progress_of(trial)
                if trial.number in self.budget.winners:
                    self._finish_trial(trial.number, "completed", f"reached {self.budget.target}")
                elif prune and self.schedule.is_paused_at_rung(standing) and trial.number not in self._cut_off:
                    self._finish_trial(trial.number, "pruned", f"not among the best at epoch {standing.epoch}")
                elif "config" in trial.user_attrs:  # else nobody was told that it began
                    for observer in self.observers:
                        observer.on_trial_end(trial.number, "interrupted", "the search was stopped")
        self.checkpoints.close()

    def _keep_error(self, action: Callable[[], Any], otherwise: Any) -> Any:
        try:
            result = action()
            self.study.commit()
            return result
        except Exception as error:  # see above: kept, and raised by whoever runs the search
            if not isinstance(error, StoreError):  # which says all in one line
                logger.exception("the search cannot go on")
            self.error = self.error or error
            self.stopping.set()
            return otherwise

    def _next_segment(self, trial_id: str) -> dict[str, Any] | str | None:
        while not self.stopping.is_set():
            trials = [self._progress_of(trial) for trial in self.study.get_trials()]
            decision = self.schedule.next_action(trials, len(trials) < self.trials)
            if decision is None:
                break
            if isinstance(decision, Prune):
                self._finish_trial(decision.number, "pruned", decision.reason)
            elif (assignment := self._start_segment(decision)) is not None:
                self._live[trial_id] = assignment["trial"]
                self.study.live.add(assignment["trial"])
                self._began[assignment["trial"]] = time.time()
                self.budget.record_segment_start(assignment["trial"])
                return {"stretch": assignment}
        return Searcher.FINISHED

    def _progress_of(self, trial: FrozenTrial) -> TrialProgress:
        """A trial that was given out does not change, the study makes another one of it; most are as they were."""
        is_live = trial.number in self.study.live
        known = self._standings.get(trial.number)
        if known is None or known[0] is not trial or known[1] != is_live:
            known = (trial, is_live, self._build_progress(trial, is_live))
            self._standings[trial.number] = known
        return known[2]

    def _build_progress(self, trial: FrozenTrial, is_live: bool) -> TrialProgress:
        state: Literal["running", "waiting"] = "running" if is_live else "waiting"
        copy = trial.user_attrs.get("copy", {"epoch": 0, "replaces": None})
        return TrialProgress(
            trial.number,
            intermediate_values(trial),
            state if trial.state == TrialState.RUNNING else "ended",
            start=copy["epoch"],
            copied_from=trial.user_attrs.get("copied_from"),
            replaces=copy["replaces"],
            finished=trial.state == TrialState.COMPLETE,
            broke_off=trial.state != TrialState.RUNNING and get_outcome(trial) in ("diverged", "failed"),
            epochs=max_epochs(trial),
            spent=None if self.schedule.unit == "epochs" else cumulative_cost(get_reports(trial), self.schedule.unit),
        )

    def _start_segment(self, stretch: Segment) -> dict[str, Any] | None:
        if stretch.copied_from is not None:
            return self._copy_trial(stretch)
        if stretch.number is None:
            return self._start_trial(stretch, *self.study.ask(self.space))
        if "config" not in self.study.get_trial(stretch.number).user_attrs:  # the search died while it was asked for
            return self._start_trial(stretch, stretch.number, self.study.resume_ask(stretch.number, self.space))
        return self._continue_trial(stretch)

    def _start_trial(self, stretch: Segment, number: int, values: dict[str, Any]) -> dict[str, Any] | None:
        """A new trial, or None if the task refuses its combination of values."""
        try:
            config = self.space.build_config(values).model_dump(mode="json", round_trip=True)
        except ValidationError as error:
            self.study.record_config(number, values)
            self._notify(lambda observer: observer.on_trial_start(number, values))
            self._finish_trial(number, "failed", "; ".join(format_validation_errors(error)))
            return None
        self.study.record_config(number, config)
        self._notify(lambda observer: observer.on_trial_start(number, flatten(config)))
        return self._segment_message(number, 0, stretch.until, [None])

    def _copy_trial(self, stretch: Segment) -> dict[str, Any]:
        """A new trial from the newest checkpoint of another, and the end of the one whose place it takes.

        In this order: a search that dies in between finds in the study what is still to be ended.
        """
        assert stretch.copied_from is not None
        parent = self.study.get_trial(stretch.copied_from)
        values, config = self._perturb_values(parent.params, random.Random(stretch.draw))
        path, epoch = self.checkpoints.copy(parent, self.study.get_next_number())
        copy = {"epoch": epoch, "checkpoint": path, "replaces": stretch.replaces}
        attributes = {"config": config, "copied_from": parent.number, "copy": copy}
        number = self.study.create_copy(self.space, values, attributes)
        self._notify(lambda observer: observer.on_trial_start(number, flatten(config), parent.number))
        if stretch.replaces is not None:
            self._finish_trial(stretch.replaces, "pruned", format_replacement_reason(parent.number))
        return self._segment_message(number, epoch, stretch.until, [path, None] if path else [None])

    def _perturb_values(self, values: dict[str, Any], draw: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
        """Values near to `values`, and the config with them. As they are, if the task takes none that are near."""
        for _ in range(EXPLORED):
            near = perturb(self.space, values, draw)
            with suppress(ValidationError):
                return near, self.space.build_config(near).model_dump(mode="json", round_trip=True)
        logger.warning("the task refused %d combinations near to %s: they are copied as they are", EXPLORED, values)
        return values, self.space.build_config(values).model_dump(mode="json", round_trip=True)

    def _continue_trial(self, stretch: Segment) -> dict[str, Any]:
        assert stretch.number is not None
        trial = self.study.get_trial(stretch.number)
        return self._segment_message(
            stretch.number, stretch.start, stretch.until, self.checkpoints.resume_candidates(trial, stretch.start)
        )

    def _segment_message(self, number: int, epoch: int, until: float, paths: list[str | None]) -> dict[str, Any]:
        """What a gang is to know of a stretch from `epoch` to where the trial has got `until`."""
        trial = self.study.get_trial(number)
        unit, epochs, allowance = self.schedule.unit, max_epochs(trial), None
        if unit == "epochs":
            epochs = min(epochs, int(until))
        else:
            spent = cumulative_cost(get_reports(trial), unit).get(epoch, 0.0)
            allowance = {"of": report_field(unit), "epoch": epoch, "spent": spent, "until": until}
        return {
            "trial": number,
            "config": trial.user_attrs["config"],
            "epoch": epoch,
            "until": epochs,
            "allowance": allowance,
            "checkpoint": paths[0],
            "earlier": paths[1:],
            "copied": trial.user_attrs.get("copy", {}).get("checkpoint"),
            "folder": str(self.checkpoints.get_trial_folder(number)),
            "attempt": self.attempt,
        }

    def _record_report(self, number: int, report: dict[str, Any], now: float) -> None:
        epoch, metrics = report["epoch"], report["metrics"]
        costs = {report_field(unit): report[report_field(unit)] for unit in COSTS if report_field(unit) in report}
        kept = {"metrics": metrics, "checkpoint": report["checkpoint"], "time": now, **costs}
        kept["held_gpu_s"] = self.budget.meter.get_gpu_seconds(number)
        if "gang" in report:
            kept["gang"] = report["gang"]
            kept["seconds"] = costs.get("gpu_seconds", 0.0) / self.budget.meter.gpus
        self._log_notes(number, report)
        if report.get("datasets"):
            self._record_datasets(number, report["datasets"])
        trial = self.study.get_trial(number)
        if epoch in intermediate_values(trial):  # done again, since its checkpoint could not be read
            before = get_reports(trial)[epoch]
            if report["checkpoint"] is not None:
                self.study.record_report(number, epoch, {**before, "checkpoint": report["checkpoint"]})
                self.checkpoints.replace(number, epoch, before["checkpoint"], report["checkpoint"])
        else:
            self._losses.pop(number, None)
            self.spent += epoch_cost(kept, self.schedule.unit)
            self.study.report(number, epoch, metrics[self.objective], kept)
            self._notify(lambda observer: observer.on_trial_report(number, epoch, metrics, now))
            self.budget.record_report(number, metrics)
        self.checkpoints.prune(self.study.get_trial(number))

    def _handle_reports(self, trial_id: str, reports: Sequence[dict[str, Any]]) -> None:
        """What a stretch reports on its way."""
        number, now = self._live[trial_id], time.time()
        for report in reports:
            if "waiting" in report:  # its gang ends: it found no room, or must move
                (self._moving if report.get("begun") else self._unplaced).add(trial_id)
                self._log_notes(number, report)
            else:
                self._record_report(number, report, now)

    def _handle_gang_failure(self, trial_id: str, number: int) -> None:
        """Tune lost the gang's own actor: the trial goes on from its last checkpoint in the next one that is free."""
        if trial_id in self._unplaced:  # it was never begun
            self.budget.meter.cancel(number)
            del self._began[number]
        elif trial_id in self._moving:  # as it was told
            self._record_segment(number, {}, time.time())
        else:
            self._record_segment(number, {}, time.time())
            loss = self.loss_reasons.get(trial_id, "unknown")
            self._losses[number] = self._losses.get(number, 0) + 1
            if self._losses[number] > self.max_losses:
                reason = f"its gang was lost {self._losses[number]} times: {loss}"
                self._finish_trial(number, "failed", reason)
                self.budget.record_failure(number, reason)
            else:
                logger.warning("trial %d: lost its gang (%s), and goes on from its last checkpoint", number, loss)
        self.study.live.discard(number)

    def _finish_segment(self, number: int, reports: Sequence[dict[str, Any]]) -> None:
        """The last of `reports` ends the stretch."""
        *before, report = reports
        now = time.time()
        for earlier in before:
            self._record_report(number, earlier, now)
        self._record_segment(number, report, now)
        if "metrics" in report:
            self._record_report(number, report, now)
            if self._progress_of(self.study.get_trial(number)).is_complete(self.schedule.limit):
                self._finish_trial(number, "completed")
            self.budget.record_segment_end(number)
        elif report["outcome"] == "interrupted":
            self._cut_off.add(number)
        else:
            self._log_notes(number, report)
            if "last" in report:  # the epoch in which it diverged: reported, but nothing to rank it by
                last = report["last"]
                known = get_reports(self.study.get_trial(number)).get(
                    last["epoch"]
                )  # if the search died before the end
                at = known["time"] if known else now
                self.study.record_report(number, last["epoch"], {**last, "time": at})
                self._notify(lambda observer: observer.on_trial_report(number, last["epoch"], last["metrics"], at))
            if "traceback" in report:
                self._save_traceback(report["traceback"], self.folder / "errors" / f"trial-{number}.txt")
            self._finish_trial(number, report["outcome"], report["reason"], report.get("divergence"))
            if report["outcome"] == "failed":
                self.budget.record_failure(number, report["reason"])
            else:
                self.budget.record_segment_end(number)
        self.study.live.discard(number)

    def _save_traceback(self, traceback: str, path: StoragePath) -> None:
        """Before the trial ends, and in the bucket itself: the driver's disk may go away at any moment."""
        path.parent.mkdir(exist_ok=True)
        if isinstance(path, RemotePath):
            retry_while_unavailable(partial(path.write_text, traceback))
        else:
            path.write_text(traceback, encoding="utf-8")

    def _record_segment(self, number: int, last: dict[str, Any], now: float) -> None:
        """A stretch has ended, with the report `last`, or with nothing."""
        told: dict[str, Any] = {key: last[key] for key in ("gang", "taken") if key in last}
        for report in get_reports(self.study.get_trial(number)).values() if not last else ():  # its gang was lost
            if "gang" in report and report["time"] >= self._began[number]:
                told = {"gang": report["gang"]}
        held_gpu_s = self.budget.meter.end(number)
        stretch = {**told, "began": self._began.pop(number), "ended": now, "held_gpu_s": held_gpu_s}
        self.study.record_segment(number, stretch)

    def _log_notes(self, number: int, report: dict[str, Any]) -> None:
        for note in report.get("notes", ()):
            logger.warning("trial %d: %s", number, note)

    def _record_datasets(self, number: int, datasets: list[dict[str, str]]) -> None:
        for line in self._datasets.describe_changes(number, datasets):
            logger.warning("trial %d: %s", number, line)
        self.study.record_datasets(number, datasets)
        self._notify(lambda observer: observer.on_trial_datasets(number, datasets))

    def _finish_trial(
        self, number: int, outcome: str, reason: str = "", divergence: dict[str, Any] | None = None
    ) -> None:
        self.study.live.discard(number)
        self.study.record_end(number, outcome, reason, divergence)
        self.study.commit()
        self.checkpoints.delete_for_ended_trial(self.study.get_trial(number))
        self.study.end(number, outcome, reason)
        self._notify(lambda observer: observer.on_trial_end(number, outcome, reason))

    def _notify(self, event: Callable[[TrialCallback], None]) -> None:
        self.study.commit()  # they know nothing that a driver after this one would not
        for observer in self.observers:
            event(observer)
