"""Precision modes side by side: quality, throughput, memory, skipped updates, divergence."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from optuna.trial import FrozenTrial

from searchlight.search.analysis.best_trials import get_best_value_until, get_flat_config, select_comparable_trials
from searchlight.search.analysis.ranking import GPU_MEMORY, has_gpu
from searchlight.search.formatting import format_percent, format_value, join_words, pluralize
from searchlight.search.reporting.html.template import Section
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.trial import get_best_value, get_outcome, get_reports, intermediate_values

SPEED, MEMORY = "time/samples_per_s", "sys/memory_gib"
NOTE = (
    "Trials differ in more than their precision: in the other parameters, in their epochs, and in what ran at the same "
    "time. The best of more trials is better by chance, so only medians by the same epoch compare precisions."
)
Modes = Mapping[str, Sequence[FrozenTrial]]


@dataclass(frozen=True)
class Measure:
    """A measurement of each trial, and the format of its summary per precision."""

    title: str
    of: Callable[[FrozenTrial], float | None]
    typical: Callable[[list[float]], float] = median
    show: Callable[[float], str] = format_value

    def collect_values(self, trials: Sequence[FrozenTrial]) -> list[float]:
        return [value for trial in trials if (value := self.of(trial)) is not None]

    def aggregate_by_mode(self, modes: Modes) -> dict[str, float]:
        return {mode: self.typical(known) for mode, trials in modes.items() if (known := self.collect_values(trials))}


def build(searched: SearchRecord) -> Section | None:
    """Return the results and costs of each precision, or None for functions, whose precision is unknown."""
    modes: dict[str, list[FrozenTrial]] = {}
    for trial in searched.trials:
        if isinstance(mode := get_flat_config(trial).get("precision"), str):  # a function may mean a number by it
            modes.setdefault(mode, []).append(trial)
    if not modes:
        return None
    measures = [measure for measure in _build_measures(searched) if measure.collect_values(searched.trials)]
    table = _build_table(modes, measures)
    if len(modes) == 1:
        return Section("Precision", f"All trials ran in {next(iter(modes))}.", table=table)
    return Section("Precision", " ".join(_summary_text(searched, modes, measures)), table=table, notes=NOTE)


def _build_measures(searched: SearchRecord) -> Iterator[Measure]:
    objective, epoch = searched.objective, _find_comparison_epoch(searched)
    numbers = {trial.number for trial in select_comparable_trials(searched.trials)}
    yield Measure(
        f"best {objective.metric}",
        lambda trial: get_best_value(trial, objective) if trial.number in numbers else None,
        typical=objective.best,
    )
    if epoch is not None:
        yield Measure(
            f"{objective.metric} by epoch {epoch}",
            lambda trial: get_best_value_until(trial, epoch, objective) if _reached(trial, epoch) else None,
        )
    yield Measure(
        "samples per second", lambda trial: median(values) if (values := _get_finite_values(trial, SPEED)) else None
    )
    # With a GPU, its memory is the limit.
    is_of_gpu = has_gpu(searched.trials)
    title, metric = ("GPU memory, GiB", GPU_MEMORY) if is_of_gpu else ("memory, GiB", MEMORY)
    yield Measure(title, lambda trial: max(_get_finite_values(trial, metric), default=None), typical=max)
    yield Measure("updates skipped", _compute_skipped_share, typical=mean, show=format_percent)


def _find_comparison_epoch(searched: SearchRecord) -> int | None:
    """Return the last epoch that all comparable trials reached, since later ones depend on the value."""
    return min((max(intermediate_values(trial)) for trial in select_comparable_trials(searched.trials)), default=None)


def _reached(trial: FrozenTrial, epoch: int) -> bool:
    return max(intermediate_values(trial), default=0) >= epoch


def _summary_text(searched: SearchRecord, modes: Modes, measures: Sequence[Measure]) -> Iterator[str]:
    objective, epoch = searched.objective, _find_comparison_epoch(searched)
    values = {measure.title: {mode: measure.collect_values(modes[mode]) for mode in modes} for measure in measures}

    def format_medians(title: str) -> list[str]:
        known = [(mode, measured) for mode, measured in values.get(title, {}).items() if measured]
        return [
            f"{format_value(median(measured))} in {mode} ({pluralize(len(measured), 'trial')})"
            for mode, measured in known
        ]

    if bests := values.get(f"best {objective.metric}"):
        best = objective.best(value for measured in bests.values() for value in measured)
        shares = [
            f"{mode} ({measured.count(best)} of {pluralize(len(measured), 'trial')})"
            for mode, measured in bests.items()
            if best in measured
        ]
        yield f"The best value, {format_value(best)}, was reached in {join_words(shares)}."
    if epoch is not None:
        medians = join_words(format_medians(f"{objective.metric} by epoch {epoch}"))
        yield f"Among the trials that reached epoch {epoch}, the median is {medians}."
    if len(speeds := format_medians("samples per second")) > 1:
        yield f"The median of samples per second is {join_words(speeds)}."
    diverged = {mode: count for mode, trials in modes.items() if (count := _count_diverged(trials))}
    counts = [f"{count} of {len(modes[mode])} in {mode}" for mode, count in diverged.items()]
    yield f"{join_words(counts)} diverged." if counts else "None diverged."


def _build_table(modes: Modes, measures: Sequence[Measure]) -> list[list[str]]:
    typical = [(measure, measure.aggregate_by_mode(modes)) for measure in measures]
    rows = [["precision", "trials", *(measure.title for measure in measures), "diverged"]]
    for mode, trials in modes.items():
        values = [measure.show(of[mode]) if mode in of else "-" for measure, of in typical]
        rows.append([mode, str(len(trials)), *values, str(_count_diverged(trials))])
    return rows


def _count_diverged(trials: Sequence[FrozenTrial]) -> int:
    return sum(get_outcome(trial) == "diverged" for trial in trials)


def _get_finite_values(trial: FrozenTrial, metric: str) -> list[float]:
    values = [report["metrics"].get(metric) for report in get_reports(trial).values()]
    return [value for value in values if isinstance(value, int | float) and math.isfinite(value)]


def _compute_skipped_share(trial: FrozenTrial) -> float | None:
    """Return the share of skipped updates, or None if no update was reported.

    The last report has the counts since the trial's start.
    """
    reports = list(get_reports(trial).values())
    last = reports[-1]["metrics"] if reports else {}
    done = sum(last[name] for name in last if name.startswith("train/") and name.endswith("/updates"))
    skipped = sum(last[name] for name in last if name == "amp/skipped" or name.startswith("amp/skipped/"))
    return skipped / (done + skipped) if done + skipped else None
