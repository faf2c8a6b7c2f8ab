"""The state of a search for people and programs: one page of it, and its trials by a condition."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from optuna.trial import FrozenTrial

from searchlight.search.analysis.confirmed_best import get_confirmed_config
from searchlight.search.analysis.result import SearchResult
from searchlight.search.errors import UsageError, suggest_nearest
from searchlight.search.formatting import SCHEMA, format_duration, format_location, pluralize
from searchlight.search.space.constraints import Constraint
from searchlight.search.steering.driver_state import SILENT_S, DriverState
from searchlight.search.steering.region import parse_region
from searchlight.search.steering.state import SteeringState, build_state, describe_author, is_of
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.trial import (
    get_best_value,
    get_end_time,
    get_outcome,
    get_reports,
    get_segments,
    gpu_seconds_used,
    intermediate_values,
    is_confirming,
)

HOUR = 3600.0


def has_ended(record: SearchRecord) -> bool:
    """Return whether the last driver of a search has ended in good order."""
    return not record.drivers or record.drivers[-1][1] is not None


def is_running(record: SearchRecord) -> bool:
    """Return whether a driver runs the search. If nothing tells, one that has not ended does."""
    return not has_ended(record) and record.is_open is not False


def describe_state(record: SearchRecord) -> str:
    """Return whether the search runs, has ended, or was killed, as a text."""
    if has_ended(record):
        return "ended"
    if record.is_open is None:
        return "running, unless it was killed"
    return "running" if record.is_open else "not running: its driver was killed"


def build_status(record: SearchRecord, driver: DriverState | None = None) -> dict[str, Any]:
    """Return the state of a search as JSON: its budget, best trial, unfinished trials, expected end and problems.

    Args:
        driver: What its last driver has written, if it has.
    """
    if driver is not None and driver.at < max((start for start, _ in record.drivers), default=0.0):
        driver = None  # of the driver before
    state, running = build_state(record.commands), is_running(record)
    present = driver if running else None
    gpu_s = max(sum(map(gpu_seconds_used, record.all_trials)), driver.gpu_s if driver else 0.0)
    result = SearchResult.from_record(record)
    return {
        "schema": SCHEMA,
        "name": record.name,
        "running": running,
        "paused": state.pause is not None,
        "revision": len(record.commands),
        "trials": len(record.trials),
        "gpu_hours": gpu_s / HOUR,
        "outcomes": Counter(map(get_outcome_so_far, record.trials)),
        "budget": _build_budget(record, state, driver, gpu_s / HOUR),
        "best": _build_best(result),
        "unfinished": [
            _describe_unfinished(record, trial, present, state.pause is not None)
            for trial in record.all_trials
            if not trial.state.is_finished()
        ],
        "waiting": [*_list_waiting(record, state, present)] if running else [],
        "expected_end": _build_end(present) if state.pause is None else None,
        "problems": [*_list_problems(record, result, present)],
    }


def _build_budget(
    record: SearchRecord, state: SteeringState, driver: DriverState | None, gpu_hours: float
) -> dict[str, Any]:
    """Return what is used of each limit and what is left. A limit that there is not is None."""
    config = record.about.get("config", {})

    def compare(used: float | None, limit: float | None) -> dict[str, Any]:
        left = None if used is None or limit is None else max(0, limit - used)
        return {"used": used, "limit": limit, "left": left}

    if driver is None:  # it begins or is of an older version: what the search began with, and commands have changed
        trials = state.get_limit("trials") or config.get("trials")
        hours = state.get_limit("gpu_hours") or config.get("gpu_hours")
        seconds = compare(None, config.get("time_budget"))
    else:
        trials, hours = driver.trials, driver.gpu_hours
        seconds = compare(driver.at - record.drivers[-1][0], driver.time_limit_s)
    return {
        "trials": compare(len(record.trials), trials),
        "gpu_hours": compare(gpu_hours, hours),
        "seconds": seconds,
        "concurrency": driver.concurrency if driver else None,
    }


def _build_best(result: SearchResult) -> dict[str, Any] | None:
    if result.best is None:
        return None
    config = get_confirmed_config(result.confirmation) if result.confirmation else None
    return {
        "trial": result.best.trial_id,
        "value": result.best.value,
        "statement": result.statement,
        "mean": config.mean if config else None,
        "interval": list(config.interval) if config else None,
    }


def _describe_unfinished(
    record: SearchRecord, trial: FrozenTrial, driver: DriverState | None, is_paused: bool
) -> dict[str, Any]:
    epoch = max(intermediate_values(trial), default=0)
    is_live = None  # unknown, also of a trial that has gone on since the driver wrote
    if driver is not None and get_end_time(trial) <= driver.at:
        is_live = trial.number in driver.live
    return {
        "trial": trial.number,
        "epoch": epoch,
        "value": _get_best(record, trial),
        "trains": is_live,
        "waits_for": _explain_wait(record, trial, epoch, is_paused) if is_live is False else "",
    }


def _explain_wait(record: SearchRecord, trial: FrozenTrial, epoch: int, is_paused: bool) -> str:
    """Return what a trial that no worker trains waits for."""
    if is_paused:
        return "the search to continue"
    at_rung = record.unit == "epochs" and epoch in record.about.get("rungs", ())
    if is_confirming(trial) or not at_rung:
        return "free workers"
    return "a rank among the best at its rung, or free workers"


def _list_waiting(record: SearchRecord, state: SteeringState, driver: DriverState | None) -> Iterator[str]:
    """Yield what the search as a whole waits for."""
    if state.pause is not None:
        where = record.name if record.place is None else format_location(record.place)
        yield f"paused {describe_author(state.pause)}. Let it go on: searchlight continue {where}"
    if driver is not None and driver.waiting:
        yield driver.waiting
    for command in state.find("try"):
        if not any(is_of(trial, command) for trial in record.trials):
            point = ", ".join(f"{name}={value}" for name, value in command.args["point"].items())
            yield f"the point {point} {describe_author(command)} waits for its turn"


def _build_end(driver: DriverState | None) -> dict[str, Any] | None:
    """Return when the search will probably end, or None if nothing supports an estimate."""
    if driver is None or driver.left_s is None:
        return None
    return {"at": driver.at + driver.left_s, "left_s": driver.left_s, "basis": driver.basis}


def _list_problems(record: SearchRecord, result: SearchResult, driver: DriverState | None) -> Iterator[str]:
    """Yield what goes wrong: failed trials, lost workers, and what the driver has warned of or whether it is silent."""
    yield from (f"diverged: {each}" for each in result.divergence)
    yield from (f"infeasible: {each}" for each in result.infeasibility)
    if failed := [trial for trial in record.all_trials if get_outcome_so_far(trial) == "failed"]:
        last = failed[-1]
        reason = last.user_attrs.get("reason", "")
        yield f"failed: {pluralize(len(failed), 'trial')}, the last one is trial {last.number}: {reason}"
    lost = [
        (part["ended"], t.number, part["lost"]) for t in record.all_trials for part in get_segments(t) if "lost" in part
    ]
    if lost:
        _, number, reason = max(lost)
        yield f"lost workers: {pluralize(len(lost), 'time')}, the last time those of trial {number}: {reason}"
    if driver is not None:
        if (silent_s := time.time() - driver.at) > SILENT_S:
            age = f"{format_duration(silent_s)} old by this machine's clock"
            yield f"the driver's last word is {age}: it was killed or is cut off, unless the clocks differ"
        for at, text in driver.warnings:
            yield f"warning at {time.strftime('%H:%M:%S', time.localtime(at))}: {text}"


def select_trials(record: SearchRecord, where: str = "", curves: bool = False) -> list[dict[str, Any]]:
    """Return trials as JSON, by number: all, or those that meet a condition on parameters, metrics, epoch, outcome.

    The value is the best one of the objective so far, and another metric has its last value.

    Raises:
        UsageError: The condition has another form.
    """

    def parse(name: str, text: str) -> Any:
        return _parse_value(text, [trial.params[name] for trial in record.trials if name in trial.params])

    try:
        region = parse_region(where, parse) if where else None
    except ValueError as error:
        raise UsageError(f"a condition {error}.") from error
    about = record.about
    known = {each.metric for each in record.objectives} | {*about.get("searched", ()), *about.get("fixed", ())}
    known |= {Constraint.from_text(text).metric for text in about.get("config", {}).get("constraint", ())}
    known |= {"trial", "outcome", "epoch", "value"}
    rows = []
    for trial in record.trials:
        curve, reports = intermediate_values(trial), get_reports(trial)
        row = {
            "trial": trial.number,
            "outcome": get_outcome_so_far(trial),
            "epoch": max(curve, default=0),
            "value": _get_best(record, trial),
            "params": trial.params,
            "reason": trial.user_attrs.get("reason", ""),
        }
        metrics = reports[max(reports)]["metrics"] if reports else {}
        named = {**metrics, **trial.params, **{name: row[name] for name in ("trial", "outcome", "epoch", "value")}}
        known |= {*named}
        if region is None or region.contains(named):
            rows.append(row | ({"curve": dict(curve)} if curves else {}))
    for condition in region.conditions if region is not None else ():
        if condition.parameter not in known:
            raise UsageError(
                f"a condition must name a parameter or a metric, but no trial has {condition.parameter!r}. "
                f"{suggest_nearest(condition.parameter, known)}"
            )
    return rows


def get_outcome_so_far(trial: FrozenTrial) -> str:
    """Return the outcome of a trial. One that has none yet may run, wait at a rung, or be interrupted."""
    return get_outcome(trial) if trial.state.is_finished() else "unfinished"


def _get_best(record: SearchRecord, trial: FrozenTrial) -> float | None:
    return get_best_value(trial, record.objective) if intermediate_values(trial) else None


def _parse_value(text: str, known: Sequence[Any]) -> Any:
    """Return the number, boolean, None or text that `text` stands for, given values of the same parameter."""
    if text in known:  # a choice may be the text "none"
        return text
    for value, names in ((True, ("true",)), (False, ("false",)), (None, ("null", "none"))):
        if text.lower() in names and any(each is value for each in known):
            return value
    try:
        return float(text)
    except ValueError:
        return text
