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
from search.study.datasets import get_datasets
from search.study.trial import get_outcome, get_reports

Event = dict[str, Any]


class BestReports:
    """The objectives in the best report of each trial so far, by the first of them."""

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self._names = [objective.metric for objective in objectives]
        self._better: Callable[..., dict[str, float]] = max if objectives[0].mode == "max" else min
        self._best: dict[int, tuple[dict[str, float], float]] = {}

    def record_report(self, number: int, metrics: Mapping[str, float], at: float) -> None:
        """A report of trial `number`, made `at`, in seconds since 1970."""
        point = {name: metrics.get(name, math.nan) for name in self._names}
        if all(map(math.isfinite, point.values())):
            best, _ = self._best.get(number, (point, at))
            self._best[number] = (self._better(best, point, key=itemgetter(self._names[0])), at)  # the first of equals

    def get_best(self, number: int) -> tuple[dict[str, float], float] | None:
        """The objectives by name, and when the trial last reported. None: it never did."""
        return self._best.get(number)


def build_trial_start_event(config: Mapping[str, Any], copied_from: int | None, at: float | None = None) -> Event:
    """`config` is flat."""
    return {"kind": "started", "time": _to_milliseconds(at), "config": config, "copied_from": copied_from}


def build_trial_datasets_event(datasets: Sequence[Mapping[str, str]], at: float | None = None) -> Event:
    """What a trial trains and is evaluated on."""
    return {"kind": "data", "time": _to_milliseconds(at), "datasets": datasets}


def build_trial_report_event(epoch: int, metrics: Mapping[str, float], at: float) -> Event:
    return {"kind": "reported", "time": _to_milliseconds(at), "epoch": epoch, "metrics": metrics}


def build_trial_end_event(
    outcome: str, reason: str, best: tuple[dict[str, float], float] | None, at: float | None = None
) -> Event:
    return {"kind": "ended", "time": _to_milliseconds(at), "outcome": outcome, "reason": reason, "best": best}


def build_search_end_event(
    status: str, note: str, metrics: Mapping[str, float], stopped: str, at: float | None = None
) -> Event:
    """Of the search: `status` of its parent run, and why it `stopped` early."""
    content = {"status": status, "note": note, "metrics": metrics, "stopped": stopped}
    return {"kind": "finished", "time": _to_milliseconds(at), **content}


def build_trial_events(trial: FrozenTrial, objectives: Sequence[Objective], over: bool = False) -> list[Event]:
    """All of `trial`, as the study has it; nothing if it died before it was begun.

    Args:
        over: The search has ended: a trial that has not is interrupted.
    """
    if "config" not in trial.user_attrs:
        return []
    config, bests, last = (
        flatten(trial.user_attrs["config"]),
        BestReports(objectives),
        _to_seconds(trial.datetime_start),
    )
    events = [build_trial_start_event(config, trial.user_attrs.get("copied_from"), last)]
    if datasets := get_datasets(trial):
        events.append(build_trial_datasets_event(datasets, last))
    for epoch, report in get_reports(trial).items():
        last = report["time"]
        bests.record_report(trial.number, report["metrics"], last)
        events.append(build_trial_report_event(epoch, report["metrics"], last))
    if trial.state.is_finished():
        reason, at = trial.user_attrs.get("reason", ""), _to_seconds(trial.datetime_complete)
        events.append(build_trial_end_event(get_outcome(trial), reason, bests.get_best(trial.number), at))
    elif over:
        events.append(
            build_trial_end_event("interrupted", "the search was stopped", bests.get_best(trial.number), last)
        )
    return events


def get_start_time_ms(trials: Sequence[FrozenTrial]) -> int:
    """When a search with these trials began, in milliseconds since 1970: at the latest now."""
    return min([_to_milliseconds(None), *(_to_milliseconds(_to_seconds(trial.datetime_start)) for trial in trials)])


def _to_milliseconds(at: float | None) -> int:
    return int(1000 * (time.time() if at is None else at))


def _to_seconds(moment: datetime | None) -> float:
    assert moment is not None
    return moment.timestamp()
