"""The state of a search, its trials, their explanation and its commands as lines of text."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from searchlight.search.analysis.ranking import has_gpu
from searchlight.search.formatting import format_duration, format_trials, format_value
from searchlight.search.reporting.status import describe_state
from searchlight.search.space.fidelity import format_amount, unit_label
from searchlight.search.study.record import SearchRecord


def print_log(record: SearchRecord) -> None:
    """Print who changed a search, when, why, and with what effect."""
    for entry in record.commands:
        made, answer = entry.command, entry.answer
        why = f" ({made.why})" if made.why else ""
        effect = answer.effect if answer.accepted else f"refused: {answer.effect}"
        print(f"{entry.revision}  {made.id}  {made.operation} by {made.author}{why}: {effect}")
    if not record.commands:
        print(f"no commands to {record.name} yet")


def describe_status(record: SearchRecord, status: Mapping[str, Any]) -> list[str]:
    """Return the result of `build_status` as lines."""
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in status["outcomes"].items()) or "no trial yet"
    state = "paused" if status["paused"] and status["running"] else describe_state(record)
    lines = [
        f"{record.name}: {state}; {outcomes}",
        _describe_budget(status["budget"], _takes_gpus(record)),
    ]
    if best := status["best"]:
        metric = record.objective.metric
        spread = f" ({best['statement']})" if best["statement"] else ", not confirmed"
        lines.append(f"best: trial {best['trial']}, {metric} {format_value(best['value'])}{spread}")
    if end := status["expected_end"]:
        lines.append(f"expected end: in {format_duration(end['left_s'])}, by {end['basis']}")
    waits: dict[str, list[int]] = {}
    for trial in status["unfinished"]:
        if trial["waits_for"]:
            waits.setdefault(trial["waits_for"], []).append(trial["trial"])
        else:
            value = "" if trial["value"] is None else f", {format_value(trial['value'])}"
            lines.append(f"  trial {trial['trial']}: epoch {trial['epoch']}{value}")
    lines += [f"waiting for {reason}: {format_trials(numbers)}" for reason, numbers in waits.items()]
    lines += [f"waiting: {each}" for each in status["waiting"]]
    lines += [f"problem: {each}" for each in status["problems"]]
    return [*lines, f"commands: {status['revision']}"]


def _takes_gpus(record: SearchRecord) -> bool:
    """Return whether trials take GPUs. Until a report tells, their time is told as that of workers, which is equal."""
    return bool(record.about.get("config", {}).get("gpus_per_worker")) or has_gpu(record.all_trials)


def _describe_budget(budget: Mapping[str, Any], takes_gpus: bool) -> str:
    def compare(name: str, format: Callable[[float], str]) -> str:
        used, limit, left = (budget[name][part] for part in ("used", "limit", "left"))
        return format(used) + ("" if limit is None else f" of {format(limit)}, {format(left)} left")

    parts = [f"trials {compare('trials', str)}"]
    parts.append(
        f"{'GPU' if takes_gpus else 'worker'} time {compare('gpu_hours', lambda hours: format_duration(3600 * hours))}"
    )
    if budget["seconds"]["used"] is not None:
        parts.append(f"time {compare('seconds', format_duration)}")
    if budget["concurrency"] is not None:
        parts.append(f"{budget['concurrency']} at a time")
    return f"budget: {'; '.join(parts)}"


def print_trials(record: SearchRecord, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the result of `select_trials`, a line for each trial, and one for its curve if there is one."""
    for row in rows:
        values = ", ".join(f"{key}={format_value(value)}" for key, value in row["params"].items())
        value = "" if row["value"] is None else f"  {record.objective.metric} {format_value(row['value'])}"
        print(f"{row['trial']}  {row['outcome']}  epoch {row['epoch']}{value}  {values}")
        if "curve" in row:
            print("   " + ", ".join(f"{epoch}: {format_value(at)}" for epoch, at in row["curve"].items()))


def print_explanation(record: SearchRecord, found: Mapping[str, Any]) -> None:
    """Print the result of `explain_search` or of `explain_trial`."""
    if "trial" not in found:
        print(f"best: {found['best']}")
        lines = [f"{outcome}: {each}" for outcome in ("diverged", "infeasible", "failed") for each in found[outcome]]
        return print("\n".join(lines) or "no trial failed")
    reason = f", {found['reason']}" if found["reason"] else ""
    print(f"trial {found['trial']}: {found['outcome']}{reason}\n{found['origin']}")
    for rung in found["rungs"]:
        better = rung["better"]
        ahead = f"; better: {', '.join(map(str, better[:10]))}{', ...' if len(better) > 10 else ''}" if better else ""
        place = f"{format_value(rung['value'])}, {rung['rank']} of {rung['of']}"
        print(f"at {format_amount(rung['rung'])} {unit_label(record.unit)}: {place}{ahead}")
    for command in found["commands"]:
        print(command)
