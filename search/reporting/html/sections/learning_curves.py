"""The learning curves of all trials. Those of stopped trials are faded."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from optuna.trial import FrozenTrial
from plotly.graph_objects import Scatter

from searchlight.search.analysis.best_trials import find_incumbent
from searchlight.search.formatting import join_words, pluralize
from searchlight.search.reporting.html import theme
from searchlight.search.reporting.html.axes import robust_range
from searchlight.search.reporting.html.template import Section
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.trial import OUTCOMES, get_outcome, intermediate_values

FADED = {"completed": 0.6, "pruned": 0.5, "diverged": 0.7, "infeasible": 0.5, "failed": 0.7, "interrupted": 0.5}
DIGITS = 5  # more is invisible, and a search may have 100,000 reports


def build(record: SearchRecord) -> Section | None:
    """Return the learning curves as one trace per outcome, since 500 traces would be slow, or None without a curve."""
    reported = [trial for trial in record.trials if intermediate_values(trial)]
    if all(len(intermediate_values(trial)) == 1 for trial in reported):
        return None
    best = find_incumbent(record.trials, record.objective)
    traces = []
    for outcome in OUTCOMES:
        trials = [trial for trial in reported if get_outcome(trial) == outcome]
        if trials:
            line = {"color": theme.OUTCOME_COLORS[outcome], "width": 1.25}
            style = {"mode": "lines", "name": outcome, "legendgroup": outcome, "opacity": FADED[outcome], "line": line}
            traces += [_build_curves(trials, outcome, **style), _build_end_markers(trials, outcome)]
    if best:
        mode = "lines+markers" if len(intermediate_values(best)) <= 30 else "lines"
        style = {"name": f"best (trial {best.number})", "line": {"color": theme.INK, "width": 3.5}}
        traces.append(_build_curves([best], "the best", mode=mode, marker={"size": 7}, **style))
    figure = theme.build_figure(*traces, x="epoch", y=record.objective.metric, height=400)
    values = [value for trial in reported for value in intermediate_values(trial).values()]
    figure.update_yaxes(range=robust_range(values, record.objective))
    longest = max(epoch for trial in reported for epoch in intermediate_values(trial))
    # Of few epochs, plotly would also label halves, as if they were whole ones.
    figure.update_xaxes(tickformat="d", rangemode="tozero", dtick=1 if longest <= 10 else None)
    return Section("Learning curves", _summary_text(reported), [figure])


def _summary_text(trials: Sequence[FrozenTrial]) -> str:
    longest = max(max(intermediate_values(trial)) for trial in trials)
    ends = Counter(max(intermediate_values(trial)) for trial in trials if get_outcome(trial) == "pruned")
    full = sum(max(intermediate_values(trial)) == longest for trial in trials)
    summary = f"{pluralize(len(trials), 'trial')} reported; {full} of them reached the last epoch, {longest}."
    if ends:
        stops = join_words([f"{count} after epoch {epoch}" for epoch, count in ends.most_common(3)])
        summary += (
            f" {pluralize(ends.total(), 'trial')} stopped early{', most often' if len(ends) > 3 else ':'} {stops}."
        )
    return summary


def _build_curves(trials: Sequence[FrozenTrial], label: str, **style: Any) -> Scatter:
    """Return the curves of all `trials` as one trace, with gaps between them."""
    points: list[tuple[int | None, float | None, int | None]] = []
    for trial in trials:
        curve = sorted(intermediate_values(trial).items())
        points += [(epoch, float(f"{value:.{DIGITS}g}"), trial.number) for epoch, value in curve]
        points.append((None, None, None))
    return theme.build_points(points, hover=_describe_point(label), **{"marker": None, **style})


def _build_end_markers(trials: Sequence[FrozenTrial], outcome: str) -> Scatter:
    """Return a marker at the end of each curve, which makes curves of one report visible."""
    points = [(*max(intermediate_values(trial).items()), trial.number) for trial in trials]
    marker = theme.build_outcome_marker(outcome, 6, min(1.0, FADED[outcome] + 0.3))
    return theme.build_points(points, outcome, marker, _describe_point(outcome), legendgroup=outcome, showlegend=False)


def _describe_point(label: str) -> str:
    return f"trial %{{customdata}}, {label}<br>epoch %{{x}}: %{{y:.4~g}}"
