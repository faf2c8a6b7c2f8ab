"""Events of a search for MLflow, created when they happen or later from the study, and a file of unsent ones."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from searchlight.search.analysis.best_trials import BestReport, BestReports
from searchlight.search.space.flatten import flatten
from searchlight.search.space.objectives import Objective
from searchlight.search.study.datasets import get_datasets
from searchlight.search.study.trial import get_end_time, get_outcome, get_reports, is_confirming
from searchlight.trainables.filesystem.atomic_file import write_atomic

Event = dict[str, Any]
SPOOL = "mlflow-unsent.jsonl"


def make_event(kind: str, at: float | None = None, **content: Any) -> Event:
    """Return an event that happened `at`, in seconds since 1970. Default: now.

    Args:
        kind: "started" (with a flat `config`, `copied_from`, `confirms`), "data" (`datasets`), "reported" (`epoch`,
            `metrics`) or "ended" (`outcome`, `reason`, `best`, `group`) of a trial. "finished" (`status` of the parent
            run, `note`, `metrics`, why it `stopped` early, and `confirmed`) of the search.
    """
    return {"kind": kind, "time": int(1000 * (time.time() if at is None else at)), **content}


def make_trial_end(
    outcome: str, reason: str, report: BestReport | None, at: float, is_confirming: bool = False
) -> Event:
    """Return the event of a trial's end. `report` is its best one, with the time of its last one."""
    best = report and (report.point, report.last_at)
    group = "confirmed" if is_confirming else "best"  # the UI sorts trials by "best", which excludes confirming runs
    return make_event("ended", at, outcome=outcome, reason=reason, best=best, group=group)


def make_search_end(
    status: str,
    note: str,
    metrics: Mapping[str, float] | None = None,
    stopped: str = "",
    at: float | None = None,
    confirmed: str = "",
) -> Event:
    """Return the event of the end of a search.

    It has the `status` of its parent run, why the search `stopped` early, and the `confirmed` sentence.
    """
    content = {"status": status, "note": note, "metrics": dict(metrics or {})}
    return make_event("finished", at, **content, stopped=stopped, confirmed=confirmed)


def build_trial_events(trial: FrozenTrial, objectives: Sequence[Objective], over: bool = False) -> list[Event]:
    """Return all events of `trial` from the study. A trial whose driver died before it began has none.

    A trial that has not ended is interrupted if the search is `over`.
    """
    if "config" not in trial.user_attrs:
        return []
    config, bests = flatten(trial.user_attrs["config"]), BestReports(objectives)
    assert trial.datetime_start is not None
    start = trial.datetime_start.timestamp()
    of_others = {name: trial.user_attrs.get(name) for name in ("copied_from", "confirms")}
    events = [make_event("started", start, config=config, **of_others)]
    if datasets := get_datasets(trial):
        events.append(make_event("data", start, datasets=datasets))
    for epoch, report in get_reports(trial).items():
        bests.record_report(trial.number, epoch, report["metrics"], report["time"])
        events.append(make_event("reported", report["time"], epoch=epoch, metrics=report["metrics"]))
    best, at, confirms = bests.get_best(trial.number), get_end_time(trial), is_confirming(trial)
    if trial.state.is_finished():
        events.append(make_trial_end(get_outcome(trial), trial.user_attrs.get("reason", ""), best, at, confirms))
    elif over:
        events.append(make_trial_end("interrupted", "the search was stopped", best, at, confirms))
    return events


def write_spool(folder: Path, refused: Sequence[Event], end: Event | None) -> None:
    """Write refused events and the unsent end of the search. Remove the file if there are none."""
    path = folder / SPOOL
    if events := [*refused, *([end] if end else [])]:
        write_atomic(path, "".join(json.dumps(event) + "\n" for event in events))
    else:
        path.unlink(missing_ok=True)


def read_spooled_end(folder: Path) -> Event | None:
    """Return the unsent event of the search's end, or None if it was sent or the driver was killed."""
    try:
        events: list[Event] = [json.loads(line) for line in (folder / SPOOL).read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return None
    return next((event for event in events if event["kind"] == "finished"), None)
