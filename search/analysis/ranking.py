"""Trials in order, best first, although most of them were stopped early."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from optuna.trial import FrozenTrial

from searchlight.search.analysis.best_trials import select_pareto_trials
from searchlight.search.formatting import format_value
from searchlight.search.space.fidelity import cumulative_cost, format_amount
from searchlight.search.space.objectives import Objective
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.trial import (
    WITH_RESULT,
    WORSE,
    get_best_value,
    get_outcome,
    get_reports,
    intermediate_values,
    objective_values,
)

GPU_MEMORY = "sys/gpu_memory_gib"  # a metric of each report from a GPU

Key = tuple[int, float, float]


def trial_rows(trials: Sequence[FrozenTrial], objectives: Sequence[Objective]) -> list[list[str]]:
    """Return the table of all trials as rows of text, the head first, then the best trial by the first objective.

    Trials that reported nothing come last. The seconds are those of GPUs, or of workers if no report is from a GPU.
    They are left out if they are known of no trial.
    """
    points = {trial.number: objective_values(trial, objectives) for trial in trials}
    ranked = sorted(trials, key=lambda t: objectives[0].loss(point[0]) if (point := points[t.number]) else math.inf)
    columns = {
        "trial": [str(trial.number) for trial in ranked],
        "outcome": [get_outcome(trial) for trial in ranked],
        "epochs": [str(max(intermediate_values(trial), default=0)) for trial in ranked],
    }
    seconds = [_get_seconds(trial) for trial in ranked]
    if any(seconds):
        columns["GPU-s" if has_gpu(trials) else "worker-s"] = [
            format_amount(amount) if amount else "-" for amount in seconds
        ]
    if len(objectives) > 1:
        front = {trial.number for trial in select_pareto_trials(trials, objectives)}
        columns["front"] = ["*" if trial.number in front else "" for trial in ranked]
    for index, objective in enumerate(objectives):
        columns[objective.metric] = [format_value(point[index]) if (point := points[t.number]) else "-" for t in ranked]
    for name in dict.fromkeys(name for trial in trials for name in trial.params):
        columns[name] = [format_value(trial.params.get(name, "-")) for trial in ranked]
    return [list(columns), *map(list, zip(*columns.values(), strict=True))]


def _get_seconds(trial: FrozenTrial) -> float:
    """Return the GPU-seconds of all epochs of `trial`, also of those that were trained again."""
    reports = get_reports(trial)
    again = sum(report.get("repeated_s", 0.0) for report in reports.values())
    return max(cumulative_cost(reports, "gpu-seconds").values(), default=0.0) + float(again)


def has_gpu(trials: Sequence[FrozenTrial]) -> bool:
    """Return whether a report of `trials` is from a GPU."""
    return any(GPU_MEMORY in report["metrics"] for trial in trials for report in get_reports(trial).values())


def rank_trials(record: SearchRecord) -> dict[int, float]:
    """Return each trial's rank by number, scaled to [0, 1] with 0 the best. Tied trials share a rank.

    The last values of trials that were stopped at different epochs cannot be compared. Therefore, a trial that reached
    a later epoch is better, because the scheduler continued it. At the same epoch, the best value counts. Completed
    trials come first, and diverged or infeasible trials last. Failed and interrupted trials are left out, because their
    values are unknown. Copies are left out, because they continue from the weights of another trial.
    """
    measure = _build_progress_measure(record)
    keyed = ((trial.number, _build_sort_key(trial, record.objective, measure)) for trial in record.trials)
    keys = {number: key for number, key in keyed if key is not None}
    order = sorted(keys.values())
    last = max(1, len(order) - 1)
    return {number: (bisect_left(order, key) + bisect_right(order, key) - 1) / 2 / last for number, key in keys.items()}


def _build_sort_key(trial: FrozenTrial, objective: Objective, measure: Callable[[FrozenTrial], float]) -> Key | None:
    """Return a key that is smaller for better trials, or None for a trial without a rank."""
    outcome = get_outcome(trial)
    if "copied_from" in trial.user_attrs:
        return None
    if outcome in WORSE:
        return 2, 0.0, 0.0
    if outcome not in WITH_RESULT or not intermediate_values(trial):
        return None
    loss = objective.loss(get_best_value(trial, objective))
    return (0, 0.0, loss) if outcome == "completed" else (1, -measure(trial), loss)


def _build_progress_measure(record: SearchRecord) -> Callable[[FrozenTrial], float]:
    """Return a function of how far a trial came: in epochs, or in rungs if trials reach these at other epochs."""
    if record.unit == "epochs":
        return lambda trial: max(intermediate_values(trial))
    rungs = record.rungs

    def count_passed_rungs(trial: FrozenTrial) -> float:
        spent = max(cumulative_cost(get_reports(trial), record.unit).values(), default=0.0)
        return sum(spent >= rung for rung in rungs)

    return count_passed_rungs
