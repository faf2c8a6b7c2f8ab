"""The best value so far, over time and over trials."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from optuna.trial import FrozenTrial
from plotly.graph_objects import Figure, Scatter

from searchlight.search.analysis.best_trials import (
    ImprovingReport,
    find_improving_reports,
    find_incumbent,
    select_comparable_trials,
)
from searchlight.search.analysis.timeline import RunningTime, running_time
from searchlight.search.formatting import format_duration, format_value, pluralize
from searchlight.search.reporting.html import theme
from searchlight.search.reporting.html.axes import robust_range
from searchlight.search.reporting.html.template import Section
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.trial import (
    OUTCOMES,
    get_best_epoch,
    get_best_value,
    get_outcome,
    get_reports,
    intermediate_values,
)


def build(record: SearchRecord) -> Section | None:
    """Return the best value so far over time and over trials, or None without a report."""
    counts, best = select_comparable_trials(record.trials), find_incumbent(record.trials, record.objective)
    if best is None:
        return None
    clocked = running_time(record)
    steps = find_improving_reports(counts, record.objective)
    figures = [_build_trial_figure(record, counts)]
    if steps:
        figures.insert(0, _build_time_figure(record, steps, clocked))
    return Section("Progress", _summary_text(record, steps, clocked, best), figures)


def _summary_text(
    record: SearchRecord, steps: Sequence[ImprovingReport], clocked: RunningTime, best: FrozenTrial
) -> str:
    sentences = []
    if steps:
        (_, first, value), (at, last, reached) = steps[0], steps[-1]
        sentences.append(f"The first report, of trial {first}, was {record.objective.metric} {format_value(value)}.")
        spent = f"{format_duration(clocked.at(at))} of {format_duration(clocked.total)}"
        sentences.append(
            f"The best, {format_value(reached)}, came after {spent}, from trial {last}."
            if reached != value
            else "None was better."
        )
    epoch = get_best_epoch(best, record.objective)
    later = [trial for trial in select_comparable_trials(record.trials) if trial.number > best.number]
    if later:
        count = sum(max(intermediate_values(trial)) >= epoch for trial in later)
        sentences.append(
            f"{pluralize(len(later), 'trial')} that started after trial {best.number} reported no better value; "
            f"{count} of them reached its epoch {epoch}."
        )
    elif best.number == record.trials[-1].number:
        sentences.append("It is from the last trial that started: more trials may find better values.")
    if pauses := clocked.pauses:
        length = format_duration(sum(seconds for _, seconds in pauses))
        sentences.append(
            f"The time is without {pluralize(len(pauses), 'pause')}, {length} in all, which are dashed below."
        )
    return " ".join(sentences)


def _build_time_figure(record: SearchRecord, steps: Sequence[ImprovingReport], clocked: RunningTime) -> Figure:
    """Return the best value so far as steps over time, and each trial at its best report."""

    def get_time(trial: FrozenTrial) -> float | None:
        report = get_reports(trial)[get_best_epoch(trial, record.objective)]
        return clocked.at(report["time"]) if "time" in report else None

    times = [*(clocked.at(at) for at, _, _ in steps), clocked.total]
    values = [*(value for _, _, value in steps), steps[-1][2]]
    axis = theme.build_time_axis(clocked.total)
    figure = _build_figure(record, get_time, times, values, x="time since the start", xaxis=axis)
    return theme.mark_pauses(figure, clocked.pauses)


def _build_trial_figure(record: SearchRecord, counts: Sequence[FrozenTrial]) -> Figure:
    """Return the best value so far over the trials' numbers."""
    objective = record.objective
    values = (get_best_value(trial, objective) for trial in counts)
    best = list(accumulate(values, lambda *pair: objective.best(pair)))
    numbers = [*(trial.number for trial in counts), record.trials[-1].number]
    title = "trial, in the order of their start"
    return _build_figure(record, lambda trial: trial.number, numbers, [*best, best[-1]], x=title)


def _build_figure(
    record: SearchRecord,
    get_position: Callable[[FrozenTrial], float | None],
    x_best: Sequence[float],
    y_best: Sequence[float],
    **layout: Any,
) -> Figure:
    """Return a figure of all trials at their positions and best values, and of the best value so far."""
    objective, traces = record.objective, []
    for outcome in OUTCOMES:
        trials = [trial for trial in record.trials if intermediate_values(trial) and get_outcome(trial) == outcome]
        if placed := [(at, trial) for trial in trials if (at := get_position(trial)) is not None]:
            points = [(at, get_best_value(trial, objective), trial.number) for at, trial in placed]
            marker, hover = (
                theme.build_outcome_marker(outcome, 8, 0.8),
                f"trial %{{customdata}}, {outcome}<br>%{{y:.4~g}}",
            )
            traces.append(theme.build_points(points, outcome, marker, hover))
    line = {"color": theme.INK, "width": 2.5, "shape": "hv"}
    traces.append(Scatter(x=x_best, y=y_best, mode="lines", name="best so far", line=line, hoverinfo="skip"))
    figure = theme.build_figure(*traces, y=objective.metric, **layout)
    return figure.update_yaxes(range=robust_range([y for trace in traces for y in trace.y], objective))
