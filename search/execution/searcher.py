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

from search.config.fidelity import COSTS, cumulated, field, taken
from search.config.flatten import flatten
from search.config.search_space import Space
from search.errors import StoreError, from_validation
from search.execution.callback import Observer
from search.execution.checkpoint_manager import Checkpoints
from search.execution.stoppers import Budget
from search.samplers.perturbation import explore
from search.schedulers.base import End, Schedule, Standing, Stretch
from search.schedulers.pbt import replaced
from search.storage.retry import patiently
from search.study.datasets import Datasets
from search.study.study import SearchStudy
from search.study.trial import curve_of, length_of, outcome_of, reports_of
from trainables.filesystem.paths import Place, Remote

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
        schedule: Schedule,
        objective: str,
        trials: int,
        folder: Place,
        attempt: str,
        observers: Sequence[Observer] = (),
        stopping: threading.Event | None = None,
        max_losses: int = 3,
        budget: Budget | None = None,
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
            study.compared = lambda trial: self._standing(trial).by_rung(schedule.rungs)
        self.budget = budget or Budget()
        self.room = room
        self.checkpoints = Checkpoints(self.folder / "checkpoints", schedule.mode)
        self.error: Exception | None = None
        self._datasets = Datasets(study.trials())
        earlier = [report for trial in study.trials() for report in reports_of(trial).values()]
        self.spent = sum(taken(report, schedule.unit) for report in earlier)
        self._live: dict[str, int] = {}  # the number of the trial that each of Tune's trials is a stretch of
        self.loss_reasons: dict[str, str] = {}  # by Tune's trial; see losses.py
        self._losses: dict[int, int] = {}  # of gangs, by trial, since it last got any further
        self._standings: dict[int, tuple[FrozenTrial, bool, Standing]] = {}  # each with what it follows from
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
            result = self._guarded(lambda: self._suggest(trial_id), Searcher.FINISHED)
        return None if result == Searcher.FINISHED and self._live else result  # type: ignore[return-value]

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        if not result["done"]:
            self._guarded(lambda: self._take(trial_id, json.loads(result["reports"])), None)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        number = self._live.pop(trial_id, None)
        if number is None:
            return
        if error or result is None:
            self._guarded(lambda: self._lose_gang(trial_id, number), None)
        else:
            self._guarded(lambda: self._finish_stretch(number, json.loads(result["reports"])), None)

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles the searcher into a snapshot that nothing ever reads

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the study holds the truth, and a restart builds a new searcher over it."""

    def restore(self, checkpoint_path: str) -> None:
        raise RuntimeError("a restart builds a new Tuner over the study")

    def mend(self) -> None:
        """Finish what a driver that died had begun to write."""
        self.study.repair(self.objective)
        for trial in self.study.trials():
            if trial.state == TrialState.RUNNING:
                if "outcome" in trial.user_attrs:
                    self._end(trial.number, trial.user_attrs["outcome"], trial.user_attrs["reason"])
                elif self._standing(trial).is_over(self.schedule.limit):  # it died between the last report and the end
                    self._end(trial.number, "completed")
        self.checkpoints.sweep([trial for trial in self.study.trials() if trial.state.is_finished()])

    def waits(self, trial: FrozenTrial) -> bool:
        """Whether `trial`, which has not ended, waits at a rung."""
        return trial.state == TrialState.RUNNING and self.schedule.rests(self._standing(trial))

    def close(self, prune: bool) -> None:
        """After the last stretch: trials that wait at a rung are pruned, those cut off on their way are not.

        One that met the target of the search is completed: it has come to where it was to go.

        Without `prune`, all of them are left to be taken up again.
        """
        for trial in self.study.trials():
            if trial.state == TrialState.RUNNING:
                standing = self._standing(trial)
                if trial.number in self.budget.winners:
                    self._end(trial.number, "completed", f"reached {self.budget.target}")
                elif prune and self.schedule.rests(standing) and trial.number not in self._cut_off:
                    self._end(trial.number, "pruned", f"not among the best at epoch {standing.epoch}")
                elif "config" in trial.user_attrs:  # else nobody was told that it began
                    for observer in self.observers:
                        observer.trial_ended(trial.number, "interrupted", "the search was stopped")
        self.checkpoints.close()

    def _guarded(self, action: Callable[[], Any], otherwise: Any) -> Any:
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

    def _suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        while not self.stopping.is_set():
            trials = [self._standing(trial) for trial in self.study.trials()]
            decision = self.schedule.next(trials, len(trials) < self.trials)
            if decision is None:
                break
            if isinstance(decision, End):
                self._end(decision.number, "pruned", decision.reason)
            elif (assignment := self._assigned(decision)) is not None:
                self._live[trial_id] = assignment["trial"]
                self.study.live.add(assignment["trial"])
                self._began[assignment["trial"]] = time.time()
                self.budget.began(assignment["trial"])
                return {"stretch": assignment}
        return Searcher.FINISHED

    def _standing(self, trial: FrozenTrial) -> Standing:
        """A trial that was given out does not change, the study makes another one of it; most are as they were."""
        is_live = trial.number in self.study.live
        known = self._standings.get(trial.number)
        if known is None or known[0] is not trial or known[1] != is_live:
            known = (trial, is_live, self._standing_of(trial, is_live))
            self._standings[trial.number] = known
        return known[2]

    def _standing_of(self, trial: FrozenTrial, is_live: bool) -> Standing:
        state: Literal["running", "waiting"] = "running" if is_live else "waiting"
        copy = trial.user_attrs.get("copy", {"epoch": 0, "replaces": None})
        return Standing(
            trial.number,
            curve_of(trial),
            state if trial.state == TrialState.RUNNING else "ended",
            start=copy["epoch"],
            copied_from=trial.user_attrs.get("copied_from"),
            replaces=copy["replaces"],
            finished=trial.state == TrialState.COMPLETE,
            broke_off=trial.state != TrialState.RUNNING and outcome_of(trial) in ("diverged", "failed"),
            epochs=length_of(trial),
            spent=None if self.schedule.unit == "epochs" else cumulated(reports_of(trial), self.schedule.unit),
        )

    def _assigned(self, stretch: Stretch) -> dict[str, Any] | None:
        if stretch.copied_from is not None:
            return self._copy(stretch)
        if stretch.number is None:
            return self._begin(stretch, *self.study.ask(self.space))
        if "config" not in self.study.trial(stretch.number).user_attrs:  # the search died while it was asked for
            return self._begin(stretch, stretch.number, self.study.ask_again(stretch.number, self.space))
        return self._go_on(stretch)

    def _begin(self, stretch: Stretch, number: int, values: dict[str, Any]) -> dict[str, Any] | None:
        """A new trial, or None if the task refuses its combination of values."""
        try:
            config = self.space.config(values).model_dump(mode="json", round_trip=True)
        except ValidationError as error:
            self.study.note_config(number, values)
            self._tell(lambda observer: observer.trial_started(number, values))
            self._end(number, "failed", "; ".join(from_validation(error)))
            return None
        self.study.note_config(number, config)
        self._tell(lambda observer: observer.trial_started(number, flatten(config)))
        return self._assignment(number, 0, stretch.until, [None])

    def _copy(self, stretch: Stretch) -> dict[str, Any]:
        """A new trial from the newest checkpoint of another, and the end of the one whose place it takes.

        In this order: a search that dies in between finds in the study what is still to be ended.
        """
        assert stretch.copied_from is not None
        parent = self.study.trial(stretch.copied_from)
        values, config = self._explored(parent.params, random.Random(stretch.draw))
        path, epoch = self.checkpoints.copy(parent, self.study.next_number())
        copy = {"epoch": epoch, "checkpoint": path, "replaces": stretch.replaces}
        attributes = {"config": config, "copied_from": parent.number, "copy": copy}
        number = self.study.begin_copy(self.space, values, attributes)
        self._tell(lambda observer: observer.trial_started(number, flatten(config), parent.number))
        if stretch.replaces is not None:
            self._end(stretch.replaces, "pruned", replaced(parent.number))
        return self._assignment(number, epoch, stretch.until, [path, None] if path else [None])

    def _explored(self, values: dict[str, Any], draw: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
        """Values near to `values`, and the config with them. As they are, if the task takes none that are near."""
        for _ in range(EXPLORED):
            near = explore(self.space, values, draw)
            with suppress(ValidationError):
                return near, self.space.config(near).model_dump(mode="json", round_trip=True)
        logger.warning("the task refused %d combinations near to %s: they are copied as they are", EXPLORED, values)
        return values, self.space.config(values).model_dump(mode="json", round_trip=True)

    def _go_on(self, stretch: Stretch) -> dict[str, Any]:
        assert stretch.number is not None
        trial = self.study.trial(stretch.number)
        return self._assignment(
            stretch.number, stretch.start, stretch.until, self.checkpoints.to_go_on_from(trial, stretch.start)
        )

    def _assignment(self, number: int, epoch: int, until: float, paths: list[str | None]) -> dict[str, Any]:
        """What a gang is to know of a stretch from `epoch` to where the trial has got `until`."""
        trial = self.study.trial(number)
        unit, epochs, allowance = self.schedule.unit, length_of(trial), None
        if unit == "epochs":
            epochs = min(epochs, int(until))
        else:
            spent = cumulated(reports_of(trial), unit).get(epoch, 0.0)
            allowance = {"of": field(unit), "epoch": epoch, "spent": spent, "until": until}
        return {
            "trial": number,
            "config": trial.user_attrs["config"],
            "epoch": epoch,
            "until": epochs,
            "allowance": allowance,
            "checkpoint": paths[0],
            "earlier": paths[1:],
            "copied": trial.user_attrs.get("copy", {}).get("checkpoint"),
            "folder": str(self.checkpoints.folder_of(number)),
            "attempt": self.attempt,
        }

    def _record(self, number: int, report: dict[str, Any], now: float) -> None:
        epoch, metrics = report["epoch"], report["metrics"]
        costs = {field(unit): report[field(unit)] for unit in COSTS if field(unit) in report}
        kept = {"metrics": metrics, "checkpoint": report["checkpoint"], "time": now, **costs}
        kept["held_gpu_s"] = self.budget.meter.held(number)
        if "gang" in report:
            kept["gang"] = report["gang"]
            kept["seconds"] = costs.get("gpu_seconds", 0.0) / self.budget.meter.gpus
        self._log_notes(number, report)
        if report.get("datasets"):
            self._note_datasets(number, report["datasets"])
        trial = self.study.trial(number)
        if epoch in curve_of(trial):  # done again, since its checkpoint could not be read
            before = reports_of(trial)[epoch]
            if report["checkpoint"] is not None:
                self.study.note_report(number, epoch, {**before, "checkpoint": report["checkpoint"]})
                self.checkpoints.replace(number, epoch, before["checkpoint"], report["checkpoint"])
        else:
            self._losses.pop(number, None)
            self.spent += taken(kept, self.schedule.unit)
            self.study.report(number, epoch, metrics[self.objective], kept)
            self._tell(lambda observer: observer.trial_reported(number, epoch, metrics, now))
            self.budget.reported(number, metrics)
        self.checkpoints.drop(self.study.trial(number))

    def _take(self, trial_id: str, reports: Sequence[dict[str, Any]]) -> None:
        """What a stretch reports on its way."""
        number, now = self._live[trial_id], time.time()
        for report in reports:
            if "waiting" in report:  # its gang ends: it found no room, or must move
                (self._moving if report.get("begun") else self._unplaced).add(trial_id)
                self._log_notes(number, report)
            else:
                self._record(number, report, now)

    def _lose_gang(self, trial_id: str, number: int) -> None:
        """Tune lost the gang's own actor: the trial goes on from its last checkpoint in the next one that is free."""
        if trial_id in self._unplaced:  # it was never begun
            self.budget.meter.cancel(number)
            del self._began[number]
        elif trial_id in self._moving:  # as it was told
            self._note_stretch(number, {}, time.time())
        else:
            self._note_stretch(number, {}, time.time())
            loss = self.loss_reasons.get(trial_id, "unknown")
            self._losses[number] = self._losses.get(number, 0) + 1
            if self._losses[number] > self.max_losses:
                reason = f"its gang was lost {self._losses[number]} times: {loss}"
                self._end(number, "failed", reason)
                self.budget.failed(number, reason)
            else:
                logger.warning("trial %d: lost its gang (%s), and goes on from its last checkpoint", number, loss)
        self.study.live.discard(number)

    def _finish_stretch(self, number: int, reports: Sequence[dict[str, Any]]) -> None:
        """The last of `reports` ends the stretch."""
        *before, report = reports
        now = time.time()
        for earlier in before:
            self._record(number, earlier, now)
        self._note_stretch(number, report, now)
        if "metrics" in report:
            self._record(number, report, now)
            if self._standing(self.study.trial(number)).is_over(self.schedule.limit):
                self._end(number, "completed")
            self.budget.rested(number)
        elif report["outcome"] == "interrupted":
            self._cut_off.add(number)
        else:
            self._log_notes(number, report)
            if "last" in report:  # the epoch in which it diverged: reported, but nothing to rank it by
                last = report["last"]
                known = reports_of(self.study.trial(number)).get(last["epoch"])  # if the search died before the end
                at = known["time"] if known else now
                self.study.note_report(number, last["epoch"], {**last, "time": at})
                self._tell(lambda observer: observer.trial_reported(number, last["epoch"], last["metrics"], at))
            if "traceback" in report:
                self._keep(report["traceback"], self.folder / "errors" / f"trial-{number}.txt")
            self._end(number, report["outcome"], report["reason"], report.get("divergence"))
            if report["outcome"] == "failed":
                self.budget.failed(number, report["reason"])
            else:
                self.budget.rested(number)
        self.study.live.discard(number)

    def _keep(self, traceback: str, path: Place) -> None:
        """Before the trial ends, and in the bucket itself: the driver's disk may go away at any moment."""
        path.parent.mkdir(exist_ok=True)
        if isinstance(path, Remote):
            patiently(partial(path.write_text, traceback))
        else:
            path.write_text(traceback, encoding="utf-8")

    def _note_stretch(self, number: int, last: dict[str, Any], now: float) -> None:
        """A stretch has ended, with the report `last`, or with nothing."""
        told: dict[str, Any] = {key: last[key] for key in ("gang", "taken") if key in last}
        for report in reports_of(self.study.trial(number)).values() if not last else ():  # its gang was lost
            if "gang" in report and report["time"] >= self._began[number]:
                told = {"gang": report["gang"]}
        held_gpu_s = self.budget.meter.end(number)
        stretch = {**told, "began": self._began.pop(number), "ended": now, "held_gpu_s": held_gpu_s}
        self.study.note_stretch(number, stretch)

    def _log_notes(self, number: int, report: dict[str, Any]) -> None:
        for note in report.get("notes", ()):
            logger.warning("trial %d: %s", number, note)

    def _note_datasets(self, number: int, datasets: list[dict[str, str]]) -> None:
        for line in self._datasets.changed(number, datasets):
            logger.warning("trial %d: %s", number, line)
        self.study.note_datasets(number, datasets)
        self._tell(lambda observer: observer.trial_named_data(number, datasets))

    def _end(self, number: int, outcome: str, reason: str = "", divergence: dict[str, Any] | None = None) -> None:
        self.study.live.discard(number)
        self.study.note_end(number, outcome, reason, divergence)
        self.study.commit()
        self.checkpoints.clear(self.study.trial(number))
        self.study.end(number, outcome, reason)
        self._tell(lambda observer: observer.trial_ended(number, outcome, reason))

    def _tell(self, event: Callable[[Observer], None]) -> None:
        self.study.commit()  # they know nothing that a driver after this one would not
        for observer in self.observers:
            event(observer)
