"""The importance of each parameter with its uncertainty, and the objective against the important ones."""

from itertools import pairwise

from plotly.graph_objects import Bar, Figure

from searchlight.search.analysis.importance import FEWEST, SHUFFLES, SURE, Importance, Importances, find_importances
from searchlight.search.analysis.ranking import rank_trials
from searchlight.search.formatting import format_percent, join_words, pluralize
from searchlight.search.reporting.html import theme
from searchlight.search.reporting.html.axes import build_axes
from searchlight.search.reporting.html.sections.slice import build_slice, describe_best_range
from searchlight.search.reporting.html.template import Section
from searchlight.search.study.record import SearchRecord

MOST = 12  # bars; the others are negligible
SLICES = 4
UNSURE = 2  # slices if no parameter is significant
NOTES = (
    "Trials are ranked by the epoch that they reached, then by their best value; diverged trials are last. A random "
    "forest predicts the ranks of trials that it was not trained on. The share of a parameter is the loss of accuracy "
    "after its values are shuffled; an effect of two parameters together counts for both. The lines are "
    f"{format_percent(SURE)} intervals, from the differences between halves of the trials. A parameter matters if its "
    "interval is above 0, and its share exceeds what any parameter gets by chance, with the values of other trials, in "
    f"all but one of {SHUFFLES} shuffles."
)


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
