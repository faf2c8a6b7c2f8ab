"""The results of a search: how its trials ended, the best one, the Pareto front."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from optuna.trial import FrozenTrial

from searchlight.search.formatting import format_value
from searchlight.search.space.objectives import Objective, select_non_dominated
from searchlight.search.study.trial import (
    OUTCOMES,
    WITH_RESULT,
    get_best_epoch,
    get_best_value,
    get_curve,
    get_outcome,
    get_reports,
    intermediate_values,
    is_feasible,
    measure_violation,
    objective_losses,
    objective_values,
)
from searchlight.trainables.flatten import flatten

FEWEST_ALIKE = 3  # trials that are equal in each report, before their parameters are doubted
NUMBER = re.compile(r"0x[0-9a-f]+|[-+]?\d+(\.\d+)?(e[-+]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class BestTrial:
    """The best trial: its number, value, config, and the checkpoint of the report that has the value.

    A function may report without a checkpoint. If the trial is confirmed, the config with its seed and the checkpoint
    come from its best confirming run, `run`, which trained it again under a new seed. The value stays that of the
    trial in the search: that of the run is another one, and the confirmed mean is in the result's `confirmation`.
    """

    trial_id: int
    value: float
    config: dict[str, Any]
    checkpoint: str | None
    run: int | None = None


@dataclass(frozen=True)
class ParetoTrial:
    """A trial on the Pareto front, with all objectives by name as its checkpoint has reached them."""

    trial_id: int
    values: dict[str, float]
    config: dict[str, Any]
    checkpoint: str | None


class ImprovingReport(NamedTuple):
    """A report that was better than all before it: its time in seconds since 1970, its trial, its value."""

    at: float
    trial: int
    value: float


class BestReport(NamedTuple):
    """The best report of a trial: its epoch, all objectives by name, and when the trial last reported.

    `violation` is by how much the report violates constraints.
    """

    epoch: int
    point: dict[str, float]
    last_at: float
    violation: float = 0.0


class BestReports:
    """The best report of each trial by the first objective, updated with each report."""

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self._objectives = objectives
        self._reports: dict[int, BestReport] = {}

    def record_report(
        self, number: int, epoch: int, metrics: Mapping[str, float], at: float = 0.0, violation: float = 0.0
    ) -> None:
        """Record a report of trial `number` that was made `at`. It is ignored if an objective is not finite."""
        point = {objective.metric: metrics.get(objective.metric, math.nan) for objective in self._objectives}
        if all(map(math.isfinite, point.values())):
            report = BestReport(epoch, point, at, violation)
            self._reports[number] = self._choose([self._reports.get(number, report), report])._replace(last_at=at)

    def discard(self, number: int) -> None:
        """Forget trial `number`, which has no result."""
        self._reports.pop(number, None)

    def get_best(self, number: int) -> BestReport | None:
        """Return the best report of trial `number`, or None if it reported nothing finite."""
        return self._reports.get(number)

    def find_incumbent(self) -> tuple[int, BestReport] | None:
        """Return the number and the report of the best feasible trial, or None if no such trial reported."""
        reports = dict(self._reports)  # copied first, since another thread may add to them
        reports = {number: report for number, report in reports.items() if not report.violation}
        best = self._choose(list(reports.values())) if reports else None
        return next(((number, report) for number, report in reports.items() if report is best), None)

    def _choose(self, reports: Sequence[BestReport]) -> BestReport:
        first = self._objectives[0]
        return min(reports, key=lambda report: (report.violation, first.loss(report.point[first.metric])))


def count_outcomes(trials: Sequence[FrozenTrial]) -> dict[str, int]:
    """Return the number of trials by outcome, in the order of OUTCOMES, without outcomes that did not occur."""
    counts = Counter(get_outcome(trial) for trial in trials)
    return {outcome: counts[outcome] for outcome in OUTCOMES if counts[outcome]}


def group_by_reason(trials: Sequence[FrozenTrial]) -> list[list[FrozenTrial]]:
    """Return trials in groups, the largest first. Their reasons differ within a group at most in numbers."""
    groups: defaultdict[tuple[str, str], list[FrozenTrial]] = defaultdict(list)
    for trial in trials:
        groups[get_outcome(trial), NUMBER.sub("#", trial.user_attrs.get("reason", ""))].append(trial)
    return sorted(groups.values(), key=len, reverse=True)


def select_comparable_trials(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials with a result, or those that can continue as long as no trial has a result."""
    reported = [trial for trial in trials if intermediate_values(trial)]
    settled = [trial for trial in reported if get_outcome(trial) in WITH_RESULT]
    return settled or [trial for trial in reported if get_outcome(trial) == "interrupted"]


def find_incumbent(trials: Sequence[FrozenTrial], objective: Objective) -> FrozenTrial | None:
    """Return the best feasible one of the comparable trials, the first of equal ones, or None if there are none."""
    bests = BestReports([objective])
    for trial in select_comparable_trials(trials):
        if is_feasible(trial, objective):
            bests.record_report(trial.number, 0, {objective.metric: get_best_value(trial, objective)})
    incumbent = bests.find_incumbent()
    return next((trial for trial in trials if incumbent and trial.number == incumbent[0]), None)


def find_best(trials: Sequence[FrozenTrial], objective: Objective) -> BestTrial | None:
    """Return the best completed or pruned trial, or None if no trial was completed or pruned."""
    best = find_incumbent(trials, objective)
    if best is None or get_outcome(best) not in WITH_RESULT:
        return None
    value, checkpoint = get_best_value(best, objective), _get_best_checkpoint(best, objective)
    return BestTrial(best.number, value, best.user_attrs["config"], checkpoint)


def find_improving_reports(trials: Sequence[FrozenTrial], objective: Objective) -> list[ImprovingReport]:
    """Return the reports of `trials` that meet all constraints and were better than all before them."""
    reports = sorted(
        ImprovingReport(report["time"], trial.number, intermediate_values(trial)[epoch])
        for trial in trials
        for epoch, report in get_reports(trial).items()
        if epoch in intermediate_values(trial) and "time" in report and not measure_violation(report)
    )
    improvements: list[ImprovingReport] = []
    for report in reports:
        if not improvements or objective.is_better(report.value, improvements[-1].value):
            improvements.append(report)
    return improvements


def find_pareto_front(trials: Sequence[FrozenTrial], objectives: Sequence[Objective]) -> list[ParetoTrial]:
    """Return the Pareto front, best by the first objective first."""
    names = [objective.metric for objective in objectives]
    return [
        ParetoTrial(
            trial.number,
            dict(zip(names, objective_values(trial, objectives) or (), strict=True)),
            trial.user_attrs["config"],
            _get_best_checkpoint(trial, objectives[0]),
        )
        for trial in select_pareto_trials(trials, objectives)
    ]


def _get_best_checkpoint(trial: FrozenTrial, objective: Objective) -> str | None:
    checkpoint: str | None = get_reports(trial)[get_best_epoch(trial, objective)]["checkpoint"]
    return checkpoint


def select_pareto_trials(trials: Sequence[FrozenTrial], objectives: Sequence[Objective]) -> list[FrozenTrial]:
    """Return the completed and pruned trials that no other trial dominates, sorted by the first objective.

    A trial dominates another if it is worse in no objective and better in at least one. Of equal trials, all are
    returned.
    """
    by_number = {trial.number: trial for trial in trials if get_outcome(trial) in WITH_RESULT}
    losses = {number: objective_losses(trial, objectives) for number, trial in by_number.items()}
    return [by_number[number] for number in select_non_dominated({n: point for n, point in losses.items() if point})]


def get_best_value_until(trial: FrozenTrial, epoch: int, objective: Objective) -> float | None:
    """Return the best value that `trial` had reported after `epoch` epochs, or None before its first report."""
    epochs = [done for done in intermediate_values(trial) if done <= epoch]
    return intermediate_values(trial)[get_best_epoch(trial, objective, epochs)] if epochs else None


def compare_at_equal_epochs(
    trial: FrozenTrial, other: FrozenTrial, objective: Objective
) -> tuple[int, float, float] | None:
    """Return the last epoch that both trials reached, and the best value of each by then. Return None without one."""
    curves = intermediate_values(trial), intermediate_values(other)
    if not all(curves):
        return None
    epoch = min(map(max, curves))
    value, reference = (get_best_value_until(each, epoch, objective) for each in (trial, other))
    return None if value is None or reference is None else (epoch, value, reference)


def describe_metrics(trial: FrozenTrial, objective: Objective, units: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the units and the baseline of the metrics in the best report of `trial`.

    Args:
        trial: The trial.
        objective: The objective.
        units: The units of metrics by name, as the task declares them.

    Returns:
        The objective's unit and its baseline, such as " (1 is the best, baseline 0.4)", or "". And a line for each
        other metric that has a unit.
    """
    metrics = get_reports(trial)[get_best_epoch(trial, objective)]["metrics"]
    baseline = metrics.get(f"{objective.metric}_baseline")
    notes = [units.get(objective.metric, ""), "" if baseline is None else f"baseline {format_value(baseline)}"]
    others = [name for name in units if name in metrics and name != objective.metric]
    lines = [f"{name} {format_value(metrics[name])}, {units[name]}" for name in others]
    return f" ({', '.join(filter(None, notes))})" if any(notes) else "", lines


def find_ties(trials: Sequence[FrozenTrial], best: FrozenTrial, objective: Objective) -> list[int]:
    """Return the numbers of the other comparable trials whose best value equals that of `best`."""
    value, others = get_best_value(best, objective), select_comparable_trials(trials)
    return [
        trial.number for trial in others if trial.number != best.number and get_best_value(trial, objective) == value
    ]


def describe_no_effect(trials: Sequence[FrozenTrial]) -> str:
    """Return a line if nothing shows that the parameters have an effect, or "".

    At least three trials with different parameters must have been trained, and all have equal values as far as both of
    two were trained.
    """
    trained = [trial for trial in trials if len(intermediate_values(trial)) > 1]
    curves = sorted((get_curve(trial) for trial in trained), key=len)
    are_alike = all(longer[: len(shorter)] == shorter for shorter, longer in pairwise(curves))
    if len({str(trial.params) for trial in trained}) < FEWEST_ALIKE or not are_alike:
        return ""
    equal = f"all {len(trained)} trials have equal values in every epoch"
    return f"no effect: {equal}, whatever their parameters. Do these reach the training?"


def get_flat_config(trial: FrozenTrial) -> dict[str, Any]:
    """Return the whole config of `trial` by dotted name, or its parameters if it ended before its config was known."""
    return flatten(trial.user_attrs.get("config") or trial.params)
