"""What MLflow is told of a trial, event by event: as it happens, or later from the study."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any

from optuna.trial import FrozenTrial

from search.config.flatten import flatten
from search.config.objectives import Objective
from search.study.datasets import datasets_of
from search.study.trial import outcome_of, reports_of

Event = dict[str, Any]


class Bests:
    """The objectives in the best report of each trial so far, by the first of them."""

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self._names = [objective.metric for objective in objectives]
        self._better: Callable[..., dict[str, float]] = max if objectives[0].mode == "max" else min
        self._best: dict[int, tuple[dict[str, float], float]] = {}

    def note(self, number: int, metrics: Mapping[str, float], at: float) -> None:
        """A report of trial `number`, made `at`, in seconds since 1970."""
        point = {name: metrics.get(name, math.nan) for name in self._names}
        if all(map(math.isfinite, point.values())):
            best, _ = self._best.get(number, (point, at))
            self._best[number] = (self._better(best, point, key=itemgetter(self._names[0])), at)  # the first of equals

    def of(self, number: int) -> tuple[dict[str, float], float] | None:
        """The objectives by name, and when the trial last reported. None: it never did."""
        return self._best.get(number)


def started(config: Mapping[str, Any], copied_from: int | None, at: float | None = None) -> Event:
    """`config` is flat."""
    return {"kind": "started", "time": _milliseconds(at), "config": config, "copied_from": copied_from}


def named_data(datasets: Sequence[Mapping[str, str]], at: float | None = None) -> Event:
    """What a trial trains and is evaluated on."""
    return {"kind": "data", "time": _milliseconds(at), "datasets": datasets}


def reported(epoch: int, metrics: Mapping[str, float], at: float) -> Event:
    return {"kind": "reported", "time": _milliseconds(at), "epoch": epoch, "metrics": metrics}


def ended(outcome: str, reason: str, best: tuple[dict[str, float], float] | None, at: float | None = None) -> Event:
    return {"kind": "ended", "time": _milliseconds(at), "outcome": outcome, "reason": reason, "best": best}


def finished(status: str, note: str, metrics: Mapping[str, float], stopped: str, at: float | None = None) -> Event:
    """Of the search: `status` of its parent run, and why it `stopped` early."""
    content = {"status": status, "note": note, "metrics": metrics, "stopped": stopped}
    return {"kind": "finished", "time": _milliseconds(at), **content}


def events_of(trial: FrozenTrial, objectives: Sequence[Objective], over: bool = False) -> list[Event]:
    """All of `trial`, as the study has it; nothing if it died before it was begun.

    Args:
        over: The search has ended: a trial that has not is interrupted.
    """
    if "config" not in trial.user_attrs:
        return []
    config, bests, last = flatten(trial.user_attrs["config"]), Bests(objectives), _seconds(trial.datetime_start)
    events = [started(config, trial.user_attrs.get("copied_from"), last)]
    if datasets := datasets_of(trial):
        events.append(named_data(datasets, last))
    for epoch, report in reports_of(trial).items():
        last = report["time"]
        bests.note(trial.number, report["metrics"], last)
        events.append(reported(epoch, report["metrics"], last))
    if trial.state.is_finished():
        reason, at = trial.user_attrs.get("reason", ""), _seconds(trial.datetime_complete)
        events.append(ended(outcome_of(trial), reason, bests.of(trial.number), at))
    elif over:
        events.append(ended("interrupted", "the search was stopped", bests.of(trial.number), last))
    return events


def start_of(trials: Sequence[FrozenTrial]) -> int:
    """When a search with these trials began, in milliseconds since 1970: at the latest now."""
    return min([_milliseconds(None), *(_milliseconds(_seconds(trial.datetime_start)) for trial in trials)])


def _milliseconds(at: float | None) -> int:
    return int(1000 * (time.time() if at is None else at))


def _seconds(moment: datetime | None) -> float:
    assert moment is not None
    return moment.timestamp()
