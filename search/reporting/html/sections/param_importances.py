"""The importance of each parameter with its uncertainty, and the objective against the important ones."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from optuna.trial import FrozenTrial
from plotly.graph_objects import Bar, Figure, Scatter

from searchlight.search.analysis.importance import FEWEST, SHUFFLES, SURE, Importance, Importances, find_importances
from searchlight.search.analysis.ranking import rank_trials
from searchlight.search.formatting import format_interval, format_percent, format_value, join_words, pluralize
from searchlight.search.reporting.html import theme
from searchlight.search.reporting.html.axes import Axis, build_axes, robust_range
from searchlight.search.reporting.html.template import Section
from searchlight.search.space.objectives import Objective
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.trial import WORSE, get_best_value, get_outcome, intermediate_values

MOST = 12  # bars; the others are negligible
SLICES = 4
UNSURE = 2  # slices if no parameter is significant
NOTES = (
    "Trials are ranked by the epoch that they reached, then by their best value; diverged and infeasible trials are "
    "last. A random forest predicts the ranks of trials that it was not trained on. The share of a parameter is the "
    "loss of accuracy after its values are shuffled; an effect of two parameters together counts for both. The lines "
    f"are {format_percent(SURE)} intervals, from the differences between halves of the trials. A parameter matters if "
    "its interval is above 0, and its share exceeds what any parameter gets by chance, with the values of other "
    f"trials, in all but one of {SHUFFLES} shuffles."
)
BEST, FEWEST_BEST = 0.1, 5  # the best trials: a tenth, and at least five
EDGE = 0.1  # share of the searched range
OPACITY = {"pruned": 0.4, "completed": 0.95, "diverged": 0.9, "infeasible": 0.9}  # in drawing order


def build(record: SearchRecord) -> Section | None:
    """Return the importances, or None if no parameter was searched."""
    if not any(trial.params for trial in record.trials):
        return None
    importances = find_importances(record)
    if importances.chance is None:
        return Section("What mattered", _explain_no_importances(importances))
    ranks = rank_trials(record)
    names = importances.significant_names[:SLICES] or [one.name for one in importances.each[:UNSURE]]
    axes = build_axes(record, names)
    says = [_summary_text(record, importances), *(describe_best_range(record, axis, ranks) for axis in axes)]
    figures = [_build_bar_chart(importances), *(build_slice(record, axis, ranks) for axis in axes)]
    return Section("What mattered", "\n".join(says), figures, notes=NOTES)


def _explain_no_importances(importances: Importances) -> str:
    if importances.trials < FEWEST:
        return (
            f"Too few trials: {importances.trials} can be compared, and with fewer than {FEWEST} "
            "hardly any effect can be distinguished from chance."
        )
    return f"No importance can be computed: the {importances.trials} trials have equal values, or equal parameters."


def _summary_text(record: SearchRecord, importances: Importances) -> str:
    of_one = f" by {record.objective.metric}, the first objective" if len(record.objectives) > 1 else ""
    summary = f"From {pluralize(importances.trials, 'trial')}{of_one}: "
    mattering = [one for one in importances.each if one.matters]
    rest = [one.name for one in importances.each if not one.matters]
    if not mattering:
        return (
            f"{summary}it is unclear what mattered. No parameter explains clearly more of the differences between "
            f"trials than chance may, {format_percent(importances.chance or 0)} here. More trials may show more."
        )
    first = mattering[0]
    is_clear = all(one.high < first.low for one in importances.each if one is not first)
    names = first.name if is_clear else join_words([one.name for one in mattering])
    shares = ", ".join(_format_importance(one) for one in mattering)
    summary += f"{names} mattered{' most' if is_clear else ''}. The share of the differences that each explains: "
    summary += f"{shares}."
    if any(after.high >= before.low for before, after in pairwise(mattering)):
        summary += " Where two of these intervals overlap, the order may be chance."
    if rest:
        summary += f" Whether {join_words(rest)} had an effect is not clear: chance alone "
        summary += f"gives up to {format_percent(importances.chance or 0)}."
    return summary


def _format_importance(one: Importance) -> str:
    return f"{one.name} {format_percent(one.share)} ({format_percent(one.low)} to {format_percent(one.high)})"


def _build_bar_chart(importances: Importances) -> Figure:
    """Return a bar chart, the most important parameter first. Insignificant ones are gray."""
    rows = [*reversed(importances.each[:MOST])]
    lengths = {
        "array": [one.high - one.share for one in rows],
        "arrayminus": [one.share - one.low for one in rows],
    }
    bars = Bar(
        x=[one.share for one in rows],
        y=[theme.escape_text(one.name) for one in rows],
        orientation="h",
        marker={"color": [theme.ACCENT if one.matters else theme.GRAY for one in rows]},
        error_x={"symmetric": False, "color": theme.INK, "thickness": 1.5, "width": 5, **lengths},
        hovertemplate="%{y}: %{x:.1%}<extra></extra>",
        showlegend=False,
    )
    figure = theme.build_figure(bars, x="share of how trials differ", height=90 + 34 * len(rows))
    figure.update_xaxes(tickformat=".0%", rangemode="tozero").update_yaxes(showgrid=False)
    if importances.chance:
        figure.add_vline(x=importances.chance, line={"color": theme.FAINT, "dash": "dash", "width": 1})
        above = {"y": 1, "yref": "paper", "yanchor": "bottom", "xanchor": "left", "showarrow": False}
        figure.add_annotation(x=importances.chance, text="by chance", font_color=theme.FAINT, **above)
        figure.update_layout(margin_t=28)
    return figure


def build_slice(record: SearchRecord, axis: Axis, ranks: Mapping[int, float]) -> Figure:
    """Return the figure. Trials that diverged, are infeasible or are far worse than most lie at the worst edge."""
    trials = [trial for trial in record.trials if trial.number in ranks and axis.name in trial.params]
    objective = record.objective
    judged = [trial for trial in trials if get_outcome(trial) not in WORSE]
    ends = _compute_value_range([get_best_value(trial, objective) for trial in judged], objective)

    def get_height(trial: FrozenTrial) -> float:
        if get_outcome(trial) in WORSE:
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
    known = [t for t in record.trials if t.number in ranks and get_outcome(t) not in WORSE]
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
    return f"{axis.name}: {some} trials lie {between}; {format_interval(*ends)} was searched."


def _format_rounded(value: float) -> str:
    return f"{value:.2g}" if isinstance(value, float) else str(value)


def _compute_value_range(values: Sequence[float], objective: Objective) -> list[float]:
    found = robust_range(values, objective)
    if found is not None:
        return found
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.06 * (high - low) or 0.06 * abs(high) or 1.0
    return [low - room, high + room]
