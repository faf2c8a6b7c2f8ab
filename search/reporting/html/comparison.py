"""The HTML comparison of several searches."""

from collections.abc import Sequence

from plotly.graph_objects import Figure, Scatter

from searchlight.search.analysis.comparison import (
    ONE_EACH,
    SearchCurve,
    build_comparison_rows,
    build_config_rows,
    config_differences,
    summarize_difference,
)
from searchlight.search.reporting.html import theme
from searchlight.search.reporting.html.axes import robust_range
from searchlight.search.reporting.html.template import Section, render_page
from searchlight.trainables.filesystem.atomic_file import write_atomic
from searchlight.trainables.filesystem.paths import StoragePath


def write_comparison(sides: Sequence[SearchCurve], path: StoragePath) -> None:
    """Write the page atomically.

    Raises:
        OSError: It cannot be written.
    """
    write_atomic(path, _render_html(sides))


def _render_html(sides: Sequence[SearchCurve]) -> str:
    first, *others = sides
    says = "\n".join(summarize_difference(first, other) for other in others)
    notes = [line for other in others for line in config_differences(first, other)]
    sections = [
        Section("Which one found more", says, table=build_comparison_rows(sides), notes="\n".join([*notes, ONE_EACH]))
    ]
    if any(side.steps for side in sides):
        told = "The best value so far, over the running time of each search and over its started trials."
        sections.append(Section("Progress", told, _build_figures(sides)))
    configs = build_config_rows(sides)
    same = "The best trials have the same config." if len(configs) == 1 else "The differences between their configs."
    if all(side.best for side in sides):
        sections.append(Section("The best trials", same, table=configs if len(configs) > 1 else ()))
    subtitle = str(first.searched.about.get("config", {}).get("task", ""))
    return render_page(" and ".join(side.name for side in sides), subtitle, sections)


def _build_figures(sides: Sequence[SearchCurve]) -> list[Figure]:
    objective = sides[0].searched.objective
    clock = theme.build_time_axis(max(side.seconds for side in sides))
    drawn = [(place, side) for place, side in enumerate(sides) if side.steps]
    over_time = [_build_line(side, place, [step.seconds for step in side.steps], side.seconds) for place, side in drawn]
    over_trials = [
        _build_line(side, place, [step.trials for step in side.steps], len(side.searched.trials))
        for place, side in drawn
    ]
    figures = [
        theme.build_figure(*over_time, x="since the start", y=objective.metric, half=True, xaxis=clock),
        theme.build_figure(*over_trials, x="trials begun", y=objective.metric, half=True),
    ]
    figures[1].update_xaxes(rangemode="tozero")
    ends = robust_range([step.value for side in sides for step in side.steps], objective)
    return [figure.update_yaxes(range=ends) for figure in figures]


def _build_line(side: SearchCurve, place: int, at: Sequence[float], until: float) -> Scatter:
    """Return the best value so far of a search, as steps until its end."""
    values = [step.value for step in side.steps]
    return Scatter(
        x=[*at, max(until, at[-1])],
        y=[*values, values[-1]],
        mode="lines",
        name=theme.escape_text(side.name),
        line={"color": theme.COLORWAY[place % len(theme.COLORWAY)], "width": 2.5, "shape": "hv"},
        showlegend=True,
        hovertemplate="%{y:.4~g}<extra></extra>",
    )
