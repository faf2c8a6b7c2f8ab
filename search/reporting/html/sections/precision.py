"""Precision modes side by side: quality, throughput, memory, skipped updates, divergence."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from optuna.trial import FrozenTrial
from plotly.graph_objects import Box, Figure

from search.analysis.baseline import get_best_value_until, get_flat_config
from search.analysis.incumbent import comparable_trials, incumbent
from search.config.objectives import Mode
from search.formatting import format_percent, format_value, join_words
from search.reporting.html import theme
from search.reporting.html.axes import robust_range
from search.reporting.html.section import Section
from search.study.record import SearchRecord
from search.study.trial import get_best_value, get_outcome, get_reports, intermediate_values

PRECISIONS = ("fp32", "bf16", "fp16")
SPEED, GPU_MEMORY, MEMORY = "time/samples_per_s", "sys/gpu_memory_gib", "sys/memory_gib"
NOTE = "Trials differ in more than their precision: in the other parameters, and in what ran beside them."
Modes = Mapping[str, Sequence[FrozenTrial]]


@dataclass(frozen=True)
class Measure:
    """What is measured of a trial, what of many is shown, and how."""

    title: str
    of: Callable[[FrozenTrial], float | None]
    typical: Callable[[list[float]], float] = median
    show: Callable[[float], str] = format_value
    better: Mode | None = None  # of the objective
    ticks: str = ""  # of its axis, as d3 has it

    def collect_values(self, trials: Sequence[FrozenTrial]) -> list[float]:
        return [value for trial in trials if (value := self.of(trial)) is not None]

    def aggregate_by_mode(self, modes: Modes) -> dict[str, float]:
        return {mode: self.typical(known) for mode, trials in modes.items() if (known := self.collect_values(trials))}


def build(searched: SearchRecord) -> Section | None:
    """What each mode reached and cost; None for functions, of which it is not known."""
    modes = {mode: trials for mode in PRECISIONS if (trials := _select_mode_trials(mode, searched.trials))}
    if not modes:
        return None
    measures = [measure for measure in _build_measures(searched) if measure.collect_values(searched.trials)]
    table = _build_table(searched, modes, measures)
    if len(modes) == 1:
        return Section("Precision", f"All trials ran in {next(iter(modes))}.", table=table)
    # A figure in which all is nothing says no more than the table.
    figures = [_build_box_plot(modes, measure) for measure in measures if any(measure.collect_values(searched.trials))]
    return Section("Precision", " ".join(_summary_text(searched, modes, measures)), figures, table, NOTE)


def _select_mode_trials(mode: str, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    return [trial for trial in trials if get_flat_config(trial).get("precision") == mode]


def _build_measures(searched: SearchRecord) -> Iterator[Measure]:
    epoch = _find_comparison_epoch(searched)
    if epoch is not None:
        yield Measure(
            _format_quality_title(searched, epoch),
            lambda trial: get_best_value_until(trial, epoch, searched.mode),
            better=searched.mode,
        )
    yield Measure(
        "samples per second", lambda trial: median(values) if (values := _get_finite_values(trial, SPEED)) else None
    )
    # Where there is a GPU, its memory is what runs out.
    memory = next(
        (of for of in (GPU_MEMORY, MEMORY) if any(_get_finite_values(trial, of) for trial in searched.trials)), MEMORY
    )
    title = "GPU memory, GiB" if memory == GPU_MEMORY else "memory, GiB"
    yield Measure(title, lambda trial: max(_get_finite_values(trial, memory), default=None), typical=max)
    yield Measure("updates skipped", _compute_skipped_share, typical=mean, show=format_percent, ticks=".2~%")


def _find_comparison_epoch(searched: SearchRecord) -> int | None:
    """The last epoch that all trials came to but those that broke off; which went further was chosen by the value."""
    return min((max(intermediate_values(trial)) for trial in comparable_trials(searched)), default=None)


def _format_quality_title(searched: SearchRecord, epoch: int) -> str:
    return f"{searched.objective} by epoch {epoch}"


def _summary_text(searched: SearchRecord, modes: Modes, measures: Sequence[Measure]) -> Iterator[str]:
    bests = _find_best_values(searched, modes)
    if bests:
        first, *others = sorted(bests, key=bests.__getitem__, reverse=searched.mode == "max")
        against = (
            f", against {join_words([f'{format_value(bests[mode])} in {mode}' for mode in others])}" if others else ""
        )
        yield f"The best value, {format_value(bests[first])}, came in {first}{against}."
    typical = {measure.title: measure.aggregate_by_mode(modes) for measure in measures}
    epoch = _find_comparison_epoch(searched)
    if epoch is not None:
        shown = [
            f"{format_value(value)} in {mode}"
            for mode, value in typical[_format_quality_title(searched, epoch)].items()
        ]
        yield f"By epoch {epoch}, which all came to that did not break off, the median is {join_words(shown)}."
    speeds = typical.get("samples per second", {})
    if len(speeds) > 1:
        slowest, *_, fastest = sorted(speeds, key=speeds.__getitem__)
        yield f"{fastest} was fastest, {speeds[fastest] / speeds[slowest]:.2g} times {slowest}."
    diverged = {mode: count for mode, trials in modes.items() if (count := _count_diverged(trials))}
    told = [f"{count} of {len(modes[mode])} in {mode}" for mode, count in diverged.items()]
    yield f"{join_words(told)} diverged." if told else "None diverged."


def _build_table(searched: SearchRecord, modes: Modes, measures: Sequence[Measure]) -> list[list[str]]:
    typical = [(measure, measure.aggregate_by_mode(modes)) for measure in measures]
    rows = [["precision", "trials", f"best {searched.objective}", *(measure.title for measure in measures), "diverged"]]
    bests = _find_best_values(searched, modes)
    for mode, trials in modes.items():
        values = [measure.show(of[mode]) if mode in of else "-" for measure, of in typical]
        rows.append(
            [
                mode,
                str(len(trials)),
                format_value(bests[mode]) if mode in bests else "-",
                *values,
                str(_count_diverged(trials)),
            ]
        )
    return rows


def _find_best_values(searched: SearchRecord, modes: Modes) -> dict[str, float]:
    leaders = {mode: incumbent(searched, trials) for mode, trials in modes.items()}
    return {mode: get_best_value(trial, searched.mode) for mode, trial in leaders.items() if trial is not None}


def _count_diverged(trials: Sequence[FrozenTrial]) -> int:
    return sum(get_outcome(trial) == "diverged" for trial in trials)


def _build_box_plot(modes: Modes, measure: Measure) -> Figure:
    """A point for each trial, and the quartiles of its mode."""
    boxes = []
    for mode, trials in modes.items():
        points = [(trial.number, value) for trial in trials if (value := measure.of(trial)) is not None]
        boxes.append(
            Box(
                y=[value for _, value in points],
                customdata=[number for number, _ in points],
                name=mode,
                boxpoints="all",
                jitter=0.5,
                pointpos=0,
                line={"color": theme.PRECISION_COLORS[mode], "width": 1.5},
                fillcolor="rgba(0,0,0,0)",
                marker={"color": theme.PRECISION_COLORS[mode], "size": 6, "opacity": 0.75},
                hoveron="points",
                hovertemplate="trial %{customdata}: %{y:.4~g}<extra></extra>",
            )
        )
    figure = theme.build_figure(*boxes, y=measure.title, height=260, half=True, showlegend=False)
    shown = robust_range([y for box in boxes for y in box.y], measure.better) if measure.better else None
    return figure.update_yaxes(
        range=shown, rangemode="normal" if measure.better else "tozero", tickformat=measure.ticks
    )


def _get_finite_values(trial: FrozenTrial, metric: str) -> list[float]:
    values = [report["metrics"].get(metric) for report in get_reports(trial).values()]
    return [value for value in values if isinstance(value, int | float) and math.isfinite(value)]


def _compute_skipped_share(trial: FrozenTrial) -> float | None:
    """The share of updates that were skipped, of all updates of the task; None if none was ever reported.

    Both are counted from the trial's start, and its last report has them all.
    """
    reports = list(get_reports(trial).values())
    last = reports[-1]["metrics"] if reports else {}
    done = sum(last[name] for name in last if name.startswith("train/") and name.endswith("/updates"))
    skipped = sum(last[name] for name in last if name == "amp/skipped" or name.startswith("amp/skipped/"))
    return skipped / (done + skipped) if done + skipped else None
