"""The objective against single parameters, and the range of the best trials in each."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.trial import FrozenTrial
from plotly.graph_objects import Figure, Scatter

from searchlight.search.formatting import format_value, join_words
from searchlight.search.reporting.html import theme
from searchlight.search.reporting.html.axes import Axis, robust_range
from searchlight.search.space.objectives import Objective
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.trial import get_best_value, get_outcome, intermediate_values

BEST, FEWEST_BEST = 0.1, 5  # the best trials: a tenth, and at least five
EDGE = 0.1  # share of the searched range
OPACITY = {"pruned": 0.4, "completed": 0.95, "diverged": 0.9}  # in drawing order


def build_slice(record: SearchRecord, axis: Axis, ranks: Mapping[int, float]) -> Figure:
    """Return the figure. Trials that diverged or are far worse than most lie at the worst edge."""
    trials = [trial for trial in record.trials if trial.number in ranks and axis.name in trial.params]
    objective = record.objective
    judged = [trial for trial in trials if get_outcome(trial) != "diverged"]
    ends = _compute_value_range([get_best_value(trial, objective) for trial in judged], objective)

    def get_height(trial: FrozenTrial) -> float:
        if get_outcome(trial) == "diverged":
            return objective.worst(ends)
        return min(max(get_best_value(trial, objective), ends[0]), ends[1])

    def format_hover_text(trial: FrozenTrial) -> str:
        value = format_value(get_best_value(trial, objective)) if intermediate_values(trial) else "no report"
        choice = theme.escape_text(format_value(trial.params[axis.name]))
        return f"trial {trial.number}, {get_outcome(trial)}<br>{choice}: {value}"

    def build_markers(matching: Sequence[FrozenTrial], name: str, marker: Mapping[str, Any]) -> Scatter:
        points = [(axis.get_position(trial), get_height(trial), format_hover_text(trial)) for trial in matching]
        return theme.build_points(points, name, marker, "%{customdata}", cliponaxis=False)

    traces = []
    for outcome, opacity in OPACITY.items():
        if matching := [trial for trial in trials if get_outcome(trial) == outcome]:
            traces.append(build_markers(matching, outcome, theme.build_outcome_marker(outcome, 8, opacity)))
    best = min(trials, key=lambda trial: ranks[trial.number])
    ring = {"size": 15, "symbol": "circle-open", "color": theme.INK, "line": {"width": 2.5}}
    traces.append(build_markers([best], "best", ring))
    figure = theme.build_figure(*traces, y=objective.metric, half=True)
    return figure.update_xaxes(**axis.build_layout()).update_yaxes(range=ends)


def describe_best_range(record: SearchRecord, axis: Axis, ranks: Mapping[int, float]) -> str:
    """Return a sentence on the range of the best trials, and whether it is at an end of the searched range."""
    known = [t for t in record.trials if t.number in ranks and get_outcome(t) != "diverged"]
    best = sorted(known, key=lambda trial: ranks[trial.number])[: max(FEWEST_BEST, round(BEST * len(known)))]
    values = [trial.params[axis.name] for trial in best if axis.name in trial.params]
    if not values:
        return f"{axis.name} does not apply to any of the best {len(best)} trials."
    all_have_it = len(values) == len(best)
    some = f"the best {len(best)}" if all_have_it else f"the {len(values)} of the best {len(best)} that have it"
    if axis.choices:
        counts = [f"{format_value(choice)} in {count}" for choice, count in Counter(values).most_common()]
        return f"{axis.name}: of {some} trials, it is {join_words(counts)}."
    low, high = _format_rounded(min(values)), _format_rounded(max(values))
    between = f"at {low}" if low == high else f"between {low} and {high}"
    ends = axis.distribution.low, axis.distribution.high
    shares = [axis.to_share(value) for value in values]
    lower, upper = sum(share <= EDGE for share in shares), sum(share >= 1 - EDGE for share in shares)
    for name, end, there in (("lower", ends[0], lower), ("upper", ends[1], upper)):
        if 2 * there > len(values):
            edge = f"most of them at the {name} end of the range, {format_value(end)}: search beyond it"
            return f"{axis.name}: {some} trials lie {between}, {edge}."
    return f"{axis.name}: {some} trials lie {between}; {format_value(ends[0])} to {format_value(ends[1])} was searched."


def _format_rounded(value: float) -> str:
    return f"{value:.2g}" if isinstance(value, float) else str(value)


def _compute_value_range(values: Sequence[float], objective: Objective) -> list[float]:
    found = robust_range(values, objective)
    if found is not None:
        return found
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.06 * (high - low) or 0.06 * abs(high) or 1.0
    return [low - room, high + room]
