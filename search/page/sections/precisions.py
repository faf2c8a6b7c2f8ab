"""Precision modes side by side: quality, throughput, memory, skipped updates, divergence."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from optuna.trial import FrozenTrial
from plotly.graph_objects import Box, Figure

from search.page import theme
from search.page.baseline import config_of, reached_by
from search.page.scale import robust
from search.page.section import Section
from search.page.words import listed, percent
from search.results import find_best
from search.searched import Searched
from search.shown import short
from search.trials import curve_of, outcome_of, reports_of

PRECISIONS = ("fp32", "bf16", "fp16")
SPEED, MEMORY = "time/samples_per_s", "memory/peak_gib"
Trials = Sequence[FrozenTrial]
Measure = Callable[[FrozenTrial], float | None]


def section(searched: Searched) -> Section | None:
    """What each mode reached and cost; None for functions, which have none that is known of."""
    modes = {mode: _of(mode, searched.trials) for mode in PRECISIONS if _of(mode, searched.trials)}
    if not modes:
        return None
    epoch = _compared_at(searched.trials)
    measures: dict[str, tuple[str, Measure]] = {
        SPEED: ("median samples/s", lambda trial: _median(trial, SPEED)),
        MEMORY: ("peak GiB", lambda trial: _most(trial, MEMORY)),
        "skipped": ("updates skipped", _skipped),
    }
    known = {name: measure for name, measure in measures.items() if _known(searched.trials, measure[1])}
    quality: Measure = lambda trial: reached_by(trial, epoch, searched.mode) if epoch else None  # noqa: E731
    figures = [_boxes(modes, quality, f"{searched.objective} by epoch {epoch}", searched.mode)] if epoch else []
    # A figure in which all is nothing says no more than the table.
    figures += [_boxes(modes, of, title) for title, of in known.values() if any(_known(searched.trials, of))]
    if len(modes) == 1:
        figures = []
    return Section(
        "Precision",
        _says(searched, modes, epoch, quality),
        figures,
        _table(searched, modes, epoch, quality, known),
        "Trials differ in more than their precision: in the other parameters, and in what ran beside them."
        if len(modes) > 1
        else "",
    )


def _of(mode: str, trials: Trials) -> list[FrozenTrial]:
    return [trial for trial in trials if config_of(trial).get("precision") == mode]


def _compared_at(trials: Trials) -> int | None:
    """The last epoch that all trials reached which were not cut short; what came further was chosen for its value."""
    ended = [trial for trial in trials if outcome_of(trial) in ("completed", "pruned") and curve_of(trial)]
    return min((max(curve_of(trial)) for trial in ended), default=None)


def _says(searched: Searched, modes: Mapping[str, Trials], epoch: int | None, quality: Measure) -> str:
    if len(modes) == 1:
        ((mode, trials),) = modes.items()
        return f"All trials ran in {mode}; {_diverged(trials)} of {len(trials)} diverged."
    told = []
    bests = {mode: best for mode, trials in modes.items() if (best := find_best(trials, searched.mode))}
    if bests:
        first, *others = sorted(bests, key=lambda m: bests[m].value, reverse=searched.mode == "max")
        against = [f"{short(bests[other].value)} in {other}" for other in others]
        told.append(
            f"The best value, {short(bests[first].value)}, came in {first}"
            + (f", against {listed(against)}." if against else ".")
        )
    if epoch:
        typical = {mode: median(known) for mode, trials in modes.items() if (known := _known(trials, quality))}
        shown = [f"{short(value)} in {mode}" for mode, value in typical.items()]
        told.append(f"By epoch {epoch}, which all trials reached, the median is {listed(shown)}.")
    speeds = {m: median(known) for m, trials in modes.items() if (known := _known(trials, lambda t: _median(t, SPEED)))}
    if len(speeds) > 1:
        fastest, slowest = max(speeds, key=lambda m: speeds[m]), min(speeds, key=lambda m: speeds[m])
        told.append(f"{fastest} was fastest, {speeds[fastest] / speeds[slowest]:.2g} times {slowest}.")
    diverged = {mode: _diverged(trials) for mode, trials in modes.items()}
    if any(diverged.values()):
        shown = [f"{count} of {len(modes[mode])} in {mode}" for mode, count in diverged.items()]
        told.append(f"{listed(shown)} diverged.")
    else:
        told.append("None diverged.")
    return " ".join(told)


def _table(
    searched: Searched,
    modes: Mapping[str, Trials],
    epoch: int | None,
    quality: Measure,
    known: Mapping[str, tuple[str, Measure]],
) -> list[list[str]]:
    rows = [["precision", "trials", f"best {searched.objective}", f"median by epoch {epoch}"]]
    rows[0] += [title for title, _ in known.values()] + ["diverged"]
    for mode, trials in modes.items():
        best = find_best(trials, searched.mode)
        row = [mode, str(len(trials)), short(best.value) if best else "-", _typical(trials, quality, median)]
        for name, (_, measure) in known.items():
            if name == "skipped":
                values = _known(trials, measure)
                row.append(percent(sum(values) / len(values)) if values else "-")
            else:
                row.append(_typical(trials, measure, max if name == MEMORY else median))
        diverged = _diverged(trials)
        rows.append([*row, f"{diverged} of {len(trials)}" if diverged else "0"])
    return rows


def _diverged(trials: Trials) -> int:
    return sum(outcome_of(trial) == "diverged" for trial in trials)


def _typical(trials: Trials, measure: Measure, of: Callable[[list[float]], float]) -> str:
    values = _known(trials, measure)
    return f"{of(values):.4g}" if values else "-"


def _known(trials: Trials, measure: Measure) -> list[float]:
    return [value for trial in trials if (value := measure(trial)) is not None]


def _boxes(modes: Mapping[str, Trials], measure: Measure, title: str, mode: str | None = None) -> Figure:
    """A point for each trial beside the quartiles of its mode."""
    boxes = []
    for name, trials in modes.items():
        points = [(trial.number, value) for trial in trials if (value := measure(trial)) is not None]
        boxes.append(
            Box(
                y=[value for _, value in points],
                customdata=[number for number, _ in points],
                name=name,
                boxpoints="all",
                jitter=0.5,
                pointpos=0,
                line={"color": theme.PRECISION_COLORS[name], "width": 1.5},
                fillcolor="rgba(0,0,0,0)",
                marker={"color": theme.PRECISION_COLORS[name], "size": 6, "opacity": 0.75},
                hoveron="points",
                hovertemplate="trial %{customdata}: %{y:.4~g}<extra></extra>",
            )
        )
    figure = theme.figure(*boxes, y=title, height=260, half=True, showlegend=False)
    if mode is None:
        return figure.update_yaxes(rangemode="tozero")
    return figure.update_yaxes(range=robust([y for box in boxes for y in box.y], mode))


def _values(trial: FrozenTrial, metric: str) -> list[float]:
    values = [report["metrics"].get(metric) for report in reports_of(trial).values()]
    return [value for value in values if isinstance(value, int | float) and math.isfinite(value)]


def _median(trial: FrozenTrial, metric: str) -> float | None:
    return median(values) if (values := _values(trial, metric)) else None


def _most(trial: FrozenTrial, metric: str) -> float | None:
    return max(_values(trial, metric), default=None)


def _skipped(trial: FrozenTrial) -> float | None:
    """The share of updates that were skipped, of all of the task's updates; None if it never reported any.

    Both are counted from the trial's start, and its last report has them all.
    """
    reports = list(reports_of(trial).values())
    last = reports[-1]["metrics"] if reports else {}
    done = sum(value for name, value in last.items() if name.startswith("train/") and name.endswith("/updates"))
    done += last.get("train/updates", 0)
    skipped = sum(value for name, value in last.items() if name == "amp/skipped" or name.startswith("amp/skipped/"))
    return skipped / (done + skipped) if done + skipped else None
