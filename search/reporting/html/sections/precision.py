"""Precision modes side by side: quality, throughput, memory, skipped updates, divergence."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean, median
from typing import NamedTuple

from optuna.trial import FrozenTrial

from searchlight.search.analysis.best_trials import (
    find_incumbent,
    find_ties,
    get_best_value_until,
    get_flat_config,
    select_comparable_trials,
)
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


class Measure(NamedTuple):
    """A column of the table: a measurement of each trial, and the summary of those of one precision."""

    title: str
    of: Callable[[FrozenTrial], float | None]
    summarize: Callable[[list[float]], float] = median
    show: Callable[[float], str] = format_value

    def collect_values(self, trials: Sequence[FrozenTrial]) -> list[float]:
        return [value for trial in trials if (value := self.of(trial)) is not None]


def build(record: SearchRecord) -> Section | None:
    """Return the results and costs of each precision, or None for functions, whose precision is unknown."""
    modes: dict[str, list[FrozenTrial]] = {}
    for trial in record.trials:
        if isinstance(mode := get_flat_config(trial).get("precision"), str):  # a function may mean a number by it
            modes.setdefault(mode, []).append(trial)
    if not modes:
        return None
    measures = [measure for measure in _build_measures(record) if measure.collect_values(record.trials)]
    table = _build_table(modes, measures)
    if len(modes) == 1:
        return Section("Precision", f"All trials ran in {next(iter(modes))}.", table=table)
    return Section("Precision", _summary_text(record, modes), table=table, notes=NOTE)


def _build_measures(record: SearchRecord) -> Iterator[Measure]:
    objective, comparable = record.objective, select_comparable_trials(record.trials)
    # The last epoch that all comparable trials reached, since later ones depend on the value.
    epoch = min((max(intermediate_values(trial)) for trial in comparable), default=None)
    numbers = {trial.number for trial in comparable}
    yield Measure(
        f"best {objective.metric}",
        lambda trial: get_best_value(trial, objective) if trial.number in numbers else None,
        objective.best,
    )
    if epoch is not None:
        yield Measure(
            f"median {objective.metric} by epoch {epoch}",
            lambda trial: get_best_value_until(trial, epoch, objective) if _reached(trial, epoch) else None,
        )
    yield Measure(
        "median samples per second",
        lambda trial: median(values) if (values := _get_finite_values(trial, SPEED)) else None,
    )
    # With a GPU, its memory is the limit.
    is_of_gpu = has_gpu(record.trials)
    title, metric = ("GPU memory, GiB", GPU_MEMORY) if is_of_gpu else ("memory, GiB", MEMORY)
    yield Measure(title, lambda trial: max(_get_finite_values(trial, metric), default=None), summarize=max)
    yield Measure("updates skipped", _compute_skipped_share, summarize=mean, show=format_percent)


def _reached(trial: FrozenTrial, epoch: int) -> bool:
    return max(intermediate_values(trial), default=0) >= epoch


def _summary_text(record: SearchRecord, modes: Modes) -> str:
    diverged = {mode: count for mode, trials in modes.items() if (count := _count_diverged(trials))}
    counts = [f"{count} of {len(modes[mode])} in {mode}" for mode, count in diverged.items()]
    sentences = [f"{join_words(counts)} diverged." if counts else "None diverged."]
    best = find_incumbent(record.trials, record.objective)
    if best is not None:
        winners = {best.number, *find_ties(record.trials, best, record.objective)}
        comparable = {trial.number for trial in select_comparable_trials(record.trials)}
        numbers = {mode: comparable & {trial.number for trial in trials} for mode, trials in modes.items()}
        shares = [
            f"{mode} ({len(own & winners)} of {pluralize(len(own), 'trial')})"
            for mode, own in numbers.items()
            if own & winners
        ]
        value = format_value(get_best_value(best, record.objective))
        sentences.insert(0, f"The best value, {value}, was reached in {join_words(shares)}.")
    return " ".join(sentences)


def _build_table(modes: Modes, measures: Sequence[Measure]) -> list[list[str]]:
    rows = [["precision", "trials", *(measure.title for measure in measures), "diverged"]]
    for mode, trials in modes.items():
        known = [(measure, measure.collect_values(trials)) for measure in measures]
        cells = [measure.show(measure.summarize(values)) if values else "-" for measure, values in known]
        rows.append([mode, str(len(trials)), *cells, str(_count_diverged(trials))])
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
