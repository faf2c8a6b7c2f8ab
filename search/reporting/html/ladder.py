"""The page of searches at several sizes: the losses at each size, the path of the optimum, and the proof."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from plotly.graph_objects import Figure, Scatter

from searchlight.search.analysis.ladder import Ladder
from searchlight.search.formatting import join_words
from searchlight.search.reporting.console.ladder import SPREAD, build_forecast_rows, build_size_rows
from searchlight.search.reporting.html import theme
from searchlight.search.reporting.html.template import Section, render_page
from searchlight.search.scaling.law import ScaledParameter, ScalingLaw
from searchlight.search.scaling.size import describe_size
from searchlight.search.study.trial import get_best_value

PLACES = 40  # of the law's line


def render_ladder(name: str, ladder: Ladder) -> str:
    """Return the HTML page of `ladder`, which has at least one search."""
    sections = [_build_forecast(ladder), *_build_proof(ladder), _build_losses(ladder)]
    sections += [_build_paths(ladder, ladder.law)] if ladder.law is not None else []
    sections.append(Section("The sizes", "Each search has a page of its own.", table=build_size_rows(ladder)))
    sizes = join_words([search.name for search in ladder.searches])
    return render_page(name, f"searches at {sizes}, for {describe_size(ladder.target)}", sections)


def _build_forecast(ladder: Ladder) -> Section:
    title = f"The setting for {describe_size(ladder.target)}"
    if ladder.law is None:
        return Section(title, "No trial is complete, so there is no law yet.")
    runs = sum(ladder.law.runs.values())
    says = [f"It rests on {runs} complete trials at {len(ladder.law.runs)} sizes. {SPREAD}"]
    says += [f"Caution: {warning}." for warning in ladder.law.find_warnings(ladder.target)]
    notes = (
        "A parameter moves if its spread, a fifth wider, excludes the starting law, with enough trials at two sizes. "
        "How the law is fitted: docs/ladder.md."
    )
    return Section(title, "\n".join(says), table=build_forecast_rows(ladder, ladder.law), notes=notes)


def _build_proof(ladder: Ladder) -> list[Section]:
    if ladder.proof is None:
        return []
    statement = ladder.proof.statement
    return [Section("Does the law hold?", f"{statement[0].upper()}{statement[1:]}.")]


def _build_losses(ladder: Ladder) -> Section:
    figures = [_draw_losses(ladder, parameter) for parameter in ladder.parameters]
    says = "Each point is a complete trial. A diamond is the best one of its size."
    return Section("The objective at each size", says, figures)


def _draw_losses(ladder: Ladder, parameter: ScaledParameter) -> Figure:
    traces: list[Any] = []
    for index, search in enumerate(ladder.searches):
        color = theme.COLORWAY[index % len(theme.COLORWAY)]
        objective = search.record.objective
        points = [
            (trial.params[parameter.name], get_best_value(trial, objective), trial.number) for trial in search.completed
        ]
        marker = {"color": color, "size": 7, "opacity": 0.7}
        hover = f"{search.name}, trial %{{customdata}}<br>%{{x:.3~g}}: %{{y:.4~g}}"
        traces.append(theme.build_points(points, search.name, marker, hover))
        if points:
            best = objective.best(points, key=lambda point: point[1])
            large = {"color": color, "size": 13, "symbol": "diamond"}
            traces.append(theme.build_points([best], "best", large, hover, showlegend=False))
    kind: dict[str, Any] = {"xaxis_type": "log"} if parameter.log else {}
    metric = ladder.searches[0].record.objective.metric
    return theme.build_figure(*traces, x=parameter.name, y=metric, half=True, **kind)


def _build_paths(ladder: Ladder, law: ScalingLaw) -> Section:
    says = (
        "Points are the best trials found, the line is the law with the spread of the fit, and the star is the "
        f"predicted value for {describe_size(ladder.target)}."
    )
    figures = [_draw_path(ladder, law, row) for row in range(len(law.parameters))]
    return Section("The path of the optimum", says, figures)


def _draw_path(ladder: Ladder, law: ScalingLaw, row: int) -> Figure:
    parameter, axis = law.parameters[row], law.sizes[0]
    sizes = [search.size for search in ladder.searches] + [ladder.target]
    places = _interpolate(law.sizes, sizes)
    located = [law.locate(place)[0, row] for place in places]
    ends = np.array([law.locate_spread(place)[:, row] for place in places]).T
    x = [place[axis] for place in places]

    def scale(shares: Any) -> list[float]:
        return [parameter.from_share(float(share)) for share in shares]

    style = {"x": x, "mode": "lines", "hoverinfo": "skip", "showlegend": False}
    band = [
        Scatter(y=scale(ends[0]), line={"width": 0}, **style),
        Scatter(y=scale(ends[1]), line={"width": 0}, fill="tonexty", fillcolor="rgba(128,128,128,0.25)", **style),
        Scatter(y=scale(located), line={"color": theme.ACCENT, "width": 2}, **style),
    ]
    hover = "%{customdata}<br>%{y:.3~g}"
    found = [(s.size[axis], s.best.params[parameter.name], s.name) for s in ladder.searches if s.best is not None]
    marker = {"color": theme.ORANGE, "size": 9}
    star = {"color": theme.ACCENT, "size": 14, "symbol": "star"}
    value = law.predict(ladder.target)[parameter.name].value
    points = [
        theme.build_points(found, "best trial", marker, hover),
        theme.build_points([(ladder.target[axis], value, "predicted")], "predicted", star, hover),
    ]
    kinds: dict[str, Any] = {"xaxis_type": "log", **({"yaxis_type": "log"} if parameter.log else {})}
    return theme.build_figure(*band, *points, x=axis, y=parameter.name, half=True, **kinds)


def _interpolate(names: Sequence[str], sizes: Sequence[Any]) -> list[dict[str, float]]:
    """Return sizes between those of a ladder, in the order of the first name, each evenly in logarithms."""
    ordered = sorted(sizes, key=lambda size: float(size[names[0]]))
    logs = {name: [math.log(size[name]) for size in ordered] for name in names}
    at = np.linspace(0, len(ordered) - 1, PLACES)
    lines = {name: np.exp(np.interp(at, range(len(ordered)), logs[name])) for name in names}
    return [{name: float(lines[name][index]) for name in names} for index in range(PLACES)]
