"""What MLflow is told of a trial, event by event: as it happens, or later from the study."""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from optuna.trial import FrozenTrial

from search.analysis.best_trials import BestReport, BestReports
from search.config.flatten import flatten
from search.config.objectives import Objective
from search.study.datasets import get_datasets
from search.study.trial import get_outcome, get_reports

Event = dict[str, Any]


def build_trial_start_event(config: Mapping[str, Any], copied_from: int | None, at: float | None = None) -> Event:
    """`config` is flat."""
    return {"kind": "started", "time": _to_milliseconds(at), "config": config, "copied_from": copied_from}


def build_trial_datasets_event(datasets: Sequence[Mapping[str, str]], at: float | None = None) -> Event:
    """What a trial trains and is evaluated on."""
    return {"kind": "data", "time": _to_milliseconds(at), "datasets": datasets}


def build_trial_report_event(epoch: int, metrics: Mapping[str, float], at: float) -> Event:
    return {"kind": "reported", "time": _to_milliseconds(at), "epoch": epoch, "metrics": metrics}


def build_trial_end_event(outcome: str, reason: str, report: BestReport | None, at: float | None = None) -> Event:
    """Return the event with `report`, the best one of the trial, as its objectives and the time of its last report."""
    best = report and (report.point, report.last_at)
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
    bests, last = BestReports(objectives), _to_seconds(trial.datetime_start)
    config = flatten(trial.user_attrs["config"])
    events = [build_trial_start_event(config, trial.user_attrs.get("copied_from"), last)]
    if datasets := get_datasets(trial):
        events.append(build_trial_datasets_event(datasets, last))
    for epoch, report in get_reports(trial).items():
        last = report["time"]
        bests.record_report(trial.number, epoch, report["metrics"], last)
        events.append(build_trial_report_event(epoch, report["metrics"], last))
    best = bests.get_best(trial.number)
    if trial.state.is_finished():
        reason, at = trial.user_attrs.get("reason", ""), _to_seconds(trial.datetime_complete)
        events.append(build_trial_end_event(get_outcome(trial), reason, best, at))
    elif over:
        events.append(build_trial_end_event("interrupted", "the search was stopped", best, last))
    return events


def get_start_time_ms(trials: Sequence[FrozenTrial]) -> int:
    """When a search with these trials began, in milliseconds since 1970: at the latest now."""
    return min([_to_milliseconds(None), *(_to_milliseconds(_to_seconds(trial.datetime_start)) for trial in trials)])


def _to_milliseconds(at: float | None) -> int:
    return int(1000 * (time.time() if at is None else at))


def _to_seconds(moment: datetime | None) -> float:
    assert moment is not None
    return moment.timestamp()
