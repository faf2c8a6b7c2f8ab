"""Events of a search for MLflow, derived from the study, and a file of unsent ones."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from searchlight.search.analysis.best_trials import BestReports
from searchlight.search.space.objectives import Objective
from searchlight.search.study.changes import TrialChanges, find_changes
from searchlight.search.study.trial import (
    describe_micro_batches,
    get_end_time,
    get_reports,
    is_confirming,
    measure_violation,
)
from searchlight.trainables.filesystem.atomic_file import write_atomic
from searchlight.trainables.flatten import flatten

Event = dict[str, Any]
SPOOL = "mlflow-unsent.jsonl"


def make_event(kind: str, at: float | None = None, **content: Any) -> Event:
    """Return an event that happened `at`, in seconds since 1970. Default: now.

    Args:
        kind: "started" (with a flat `config`, `copied_from`, `confirms`), "data" (`datasets`), "reported" (`epoch`,
            `metrics`) or "ended" (`outcome`, `reason`, `micro_batches`, `best`, `group`) of a trial. "finished" (the
            `status` of the parent run, `note`, `metrics`, why it `stopped` early, and `confirmed`) of the search.
    """
    return {"kind": kind, "time": int(1000 * (time.time() if at is None else at)), **content}


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


def build_trial_events(trial: FrozenTrial, objectives: Sequence[Objective], is_over: bool = False) -> list[Event]:
    """Return all events of `trial`. A trial that has not ended is interrupted if the search `is_over`."""
    return build_events(trial, find_changes(trial, is_over=is_over), objectives)


def build_events(trial: FrozenTrial, changes: TrialChanges, objectives: Sequence[Objective]) -> list[Event]:
    """Return the events of the `changes` of `trial`, in order."""
    assert trial.datetime_start is not None
    attributes, start = trial.user_attrs, trial.datetime_start.timestamp()
    events = []
    if changes.has_begun:
        of_others = {name: attributes.get(name) for name in ("copied_from", "confirms")}
        events.append(make_event("started", start, config=flatten(attributes["config"]), **of_others))
    if changes.datasets:
        events.append(make_event("data", start, datasets=changes.datasets))
    for epoch, report in changes.reports:
        events.append(make_event("reported", report["time"], epoch=epoch, metrics=report["metrics"]))
    if changes.outcome:
        events.append(_make_trial_end(trial, changes, objectives))
    return events


def _make_trial_end(trial: FrozenTrial, changes: TrialChanges, objectives: Sequence[Objective]) -> Event:
    """Return the event of a trial's end. It has the best report, with the time of the last one.

    An infeasible trial has none, since the UI sorts trials by it.
    """
    bests = BestReports(objectives)
    for epoch, report in get_reports(trial).items():
        bests.record_report(trial.number, epoch, report["metrics"], report["time"], measure_violation(report))
    best = None if changes.outcome == "infeasible" else bests.get_best(trial.number)
    return make_event(
        "ended",
        get_end_time(trial),
        outcome=changes.outcome,
        reason=changes.reason,
        micro_batches=describe_micro_batches(trial),
        best=best and (best.point, best.last_at),
        group="confirmed" if is_confirming(trial) else "best",  # the UI sorts trials by "best"
    )


def name_run(number: int, event: Event) -> str:
    """Return the name of the run of trial `number`, of its event "started"."""
    return f"{'trial' if event['confirms'] is None else 'confirm'}-{number:03d}"


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
