"""The state of a search for people and programs: one page of it, and its trials by a condition."""

from collections import Counter
from typing import Any

from optuna.trial import FrozenTrial

from searchlight.search.analysis.confirmed_best import confirm, find_confirmed_best
from searchlight.search.analysis.result import SearchResult
from searchlight.search.errors import UsageError, suggest_nearest
from searchlight.search.formatting import SCHEMA
from searchlight.search.steering.region import parse_region
from searchlight.search.steering.state import build_state
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.trial import get_outcome, get_reports, gpu_seconds_used, intermediate_values

HOUR = 3600.0


def is_running(record: SearchRecord) -> bool:
    """Return whether the last driver of a search has not ended. It may have been killed."""
    return bool(record.drivers) and record.drivers[-1][1] is None


def build_status(record: SearchRecord) -> dict[str, Any]:
    """Return the state of a search as JSON: budget, best trial, unfinished trials, and the number of commands."""
    state = build_state(record.commands)
    best = find_confirmed_best(record, confirm(record))
    statement = SearchResult.from_record(record).statement if best else ""
    return {
        "schema": SCHEMA,
        "name": record.name,
        "running": is_running(record),
        "paused": state.pause is not None,
        "revision": len(record.commands),
        "trials": len(record.trials),
        "gpu_hours": sum(map(gpu_seconds_used, record.all_trials)) / HOUR,
        "outcomes": Counter(map(get_outcome_so_far, record.trials)),
        "best": {"trial": best.trial_id, "value": best.value, "statement": statement} if best else None,
        "unfinished": [
            {"trial": trial.number, "epoch": max(intermediate_values(trial), default=0), "value": _get_last(trial)}
            for trial in record.all_trials
            if not trial.state.is_finished()
        ],
    }


def select_trials(record: SearchRecord, where: str = "", curves: bool = False) -> list[dict[str, Any]]:
    """Return trials as JSON, by number: all, or those that meet a condition on parameters, metrics, epoch, outcome.

    A metric has its last value.

    Raises:
        UsageError: The condition has another form.
    """
    try:
        region = parse_region(where, lambda name, text: _parse_value(text)) if where else None
    except ValueError as error:
        raise UsageError(f"--where {error}.") from error
    rows, known = [], set[str]()
    for trial in record.trials:
        curve, reports = intermediate_values(trial), get_reports(trial)
        row = {
            "trial": trial.number,
            "outcome": get_outcome_so_far(trial),
            "epoch": max(curve, default=0),
            "value": _get_last(trial),
            "params": trial.params,
            "reason": trial.user_attrs.get("reason", ""),
        }
        metrics = reports[max(reports)]["metrics"] if reports else {}
        named = {**metrics, **trial.params, **{name: row[name] for name in ("trial", "outcome", "epoch", "value")}}
        known |= {*named}
        if region is None or region.contains(named):
            rows.append(row | ({"curve": dict(curve)} if curves else {}))
    for condition in region.conditions if region is not None and known else ():
        if condition.parameter not in known:
            raise UsageError(
                f"--where must name a parameter or a metric, but no trial has {condition.parameter!r}. "
                f"{suggest_nearest(condition.parameter, known)}"
            )
    return rows


def get_outcome_so_far(trial: FrozenTrial) -> str:
    """Return the outcome of a trial. One that has none yet may run, wait at a rung, or be interrupted."""
    return get_outcome(trial) if trial.state.is_finished() else "unfinished"


def _get_last(trial: FrozenTrial) -> float | None:
    curve = intermediate_values(trial)
    return curve[max(curve)] if curve else None


def _parse_value(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
