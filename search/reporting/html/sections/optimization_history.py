"""How the best value came: over time, and trial by trial."""

from collections.abc import Sequence
from itertools import accumulate

from optuna.trial import FrozenTrial
from plotly.graph_objects import Figure, Scatter

from search.analysis.best_trials import Improvement, improvements
from search.analysis.incumbent import judged, leading
from search.analysis.timeline import Elapsed, elapsed
from search.formatting import change, clock, counted, short
from search.reporting.html import theme
from search.reporting.html.axes import robust
from search.reporting.html.section import Section
from search.study.record import Searched
from search.study.trial import OUTCOMES, best_epoch, best_value, curve_of, outcome_of, reports_of


def section(searched: Searched) -> Section | None:
    """The best value so far over the time that the search ran, and over its trials; None if none reported."""
    counts, best = judged(searched), leading(searched)
    if best is None:
        return None
    clocked = elapsed(searched.trials)
    reported = [trial for trial in searched.trials if curve_of(trial)]
    steps = improvements(counts, searched.mode)
    figures = [_over_trials(searched, reported, counts)]
    if steps:
        figures.insert(0, _over_time(searched, steps, clocked))
    return Section("Progress", _says(searched, steps, clocked, best.number), figures)


def _says(searched: Searched, steps: Sequence[Improvement], clocked: Elapsed, best: int) -> str:
    later = [trial for trial in searched.trials if trial.number > best]
    told = []
    if steps:
        (_, first, value), (at, last, reached) = steps[0], steps[-1]
        began = f"The first report, of trial {first}, was {searched.objective} {short(value)}."
        ended = f"The best came after {clock(clocked(at))} of {clock(clocked.total)}, from trial {last}"
        told += [began, f"{ended}: {change(reached, value)} better." if reached != value else "None was better."]
    told.append(
        f"{counted(len(later), 'trial')} begun after the best one did not beat it."
        if later
        else "It is of the last trial that was begun: more trials may well find more."
    )
    if pauses := clocked.pauses:
        length = clock(sum(seconds for _, seconds in pauses))
        told.append(f"Nothing ran in {counted(len(pauses), 'pause')}, {length} in all: left out, and dashed below.")
    return " ".join(told)


def _over_time(searched: Searched, steps: Sequence[Improvement], clocked: Elapsed) -> Figure:
    """The best so far as steps, and each trial where it reported its best."""
    traces = []
    for outcome in OUTCOMES:
        trials = [trial for trial in searched.trials if curve_of(trial) and outcome_of(trial) == outcome]
        placed = [
            (clocked(report["time"]), trial)
            for trial in trials
            if "time" in (report := reports_of(trial)[best_epoch(trial, searched.mode)])
        ]
        if placed:
            traces.append(_dots(searched, outcome, [x for x, _ in placed], [trial for _, trial in placed]))
    times = [*(clocked(at) for at, _, _ in steps), clocked.total]
    values = [*(value for _, _, value in steps), steps[-1][2]]
    traces.append(_line(times, values, "best so far"))
    figure = theme.figure(*traces, x="time since the start", y=searched.objective, xaxis=theme.time_axis(clocked.total))
    figure.update_yaxes(range=robust([y for trace in traces for y in trace.y], searched.mode))
    for after, _ in clocked.pauses:
        figure.add_vline(x=after, line={"color": theme.FAINT, "dash": "dash", "width": 1})
    return figure


def _over_trials(searched: Searched, reported: Sequence[FrozenTrial], counts: Sequence[FrozenTrial]) -> Figure:
    """The same by the number of the trial."""
    better = max if searched.mode == "max" else min
    dots = [
        _dots(searched, outcome, [trial.number for trial in trials], trials)
        for outcome in OUTCOMES
        if (trials := [trial for trial in reported if outcome_of(trial) == outcome])
    ]
    best = list(accumulate((best_value(trial, searched.mode) for trial in counts), better))
    line = _line([*(trial.number for trial in counts), searched.trials[-1].number], [*best, best[-1]], "best so far")
    figure = theme.figure(*dots, line, x="trial, in the order of their start", y=searched.objective)
    return figure.update_yaxes(range=robust([y for trace in (*dots, line) for y in trace.y], searched.mode))


def _dots(searched: Searched, outcome: str, x: Sequence[float], trials: Sequence[FrozenTrial]) -> Scatter:
    return Scatter(
        x=x,
        y=[best_value(trial, searched.mode) for trial in trials],
        customdata=[trial.number for trial in trials],
        mode="markers",
        name=outcome,
        marker={"color": theme.OUTCOME_COLORS[outcome], "symbol": theme.SYMBOLS[outcome], "size": 8, "opacity": 0.8},
        hovertemplate=f"trial %{{customdata}}, {outcome}<br>%{{y:.4~g}}<extra></extra>",
    )


def _line(x: Sequence[float], y: Sequence[float], name: str) -> Scatter:
    return Scatter(
        x=x, y=y, mode="lines", name=name, line={"color": theme.INK, "width": 2.5, "shape": "hv"}, hoverinfo="skip"
    )
