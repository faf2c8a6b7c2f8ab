"""The two parameters that mattered most, together."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial
from plotly.graph_objects import Contour, Figure, Scatter

from search.reporting.html import theme
from search.reporting.html.axes import Axis, is_number
from search.study.record import SearchRecord
from search.study.trial import get_outcome

FEWEST = 30  # trials: fewer leave holes that would be guessed
TOLD = 0.3  # of how trials differ, that their neighbours must tell for a surface to be drawn
WIDTHS = (0.06, 0.09, 0.13, 0.19)  # of the neighbourhood, in parts of what was searched
STEPS = 41
FAR = 2.0  # widths from the nearest trial: what lies beyond is left white

Array = NDArray[np.float64]


def build_contour(searched: SearchRecord, across: Axis, up: Axis, places: Mapping[int, float]) -> tuple[Figure, str]:
    """How many trials a point beats: a surface where trials tell of their neighbours, their points alone elsewhere.

    Returns:
        The figure, and what it is in a sentence.
    """
    trials = [t for t in searched.trials if t.number in places and {across.name, up.name} <= t.params.keys()]
    beats = np.array([1 - places[trial.number] for trial in trials])
    surface, width = None, None
    if is_number(across) and is_number(up) and len(trials) >= FEWEST:
        points = np.array([[axis.to_share(trial.params[axis.name]) for axis in (across, up)] for trial in trials])
        width = _select_bandwidth(points, beats)
        surface = None if width is None else _interpolate_surface(points, beats, width)
    figure = theme.build_figure(*_build_traces(trials, beats, surface, across, up), height=420)
    figure.update_xaxes(**across.build_layout()).update_yaxes(**up.build_layout())
    return figure, _summary_text(across, up, surface is not None)


def _summary_text(across: Axis, up: Axis, drawn: bool) -> str:
    told = f"{across.name} and {up.name} together: the color is how many trials one beats"
    if drawn:
        return f"{told}. Between the points it is what their neighbours say; no trial lies where nothing is drawn."
    return f"{told}. There are points alone, since they tell too little of what lies between them."


def _select_bandwidth(points: Array, beats: Array) -> float | None:
    """The neighbourhood from which trials are told best by the others; None if none tells them."""
    best: tuple[float, float] | None = None
    for width in WIDTHS:
        weights = _compute_kernel_weights(points, points, width)
        np.fill_diagonal(weights, 0.0)
        total = weights.sum(1)
        known = total > 1e-3
        if known.sum() < FEWEST:
            continue
        guessed = weights[known] @ beats / total[known]
        error = ((guessed - beats[known]) ** 2).sum() / ((beats[known] - beats[known].mean()) ** 2).sum()
        best = min(best or (np.inf, width), (float(error), width))
    return best[1] if best and best[0] <= 1 - TOLD else None


def _interpolate_surface(points: Array, beats: Array, width: float) -> list[list[float | None]]:
    grid = np.linspace(0, 1, STEPS)
    places = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    weights = _compute_kernel_weights(places, points, width)
    near = np.sqrt(((places[:, None] - points[None]) ** 2).sum(-1)).min(1) <= FAR * width
    values = weights @ beats / np.maximum(weights.sum(1), 1e-12)
    rows = zip(values.reshape(STEPS, STEPS), near.reshape(STEPS, STEPS), strict=True)
    return [[float(v) if n else None for v, n in zip(row, seen, strict=True)] for row, seen in rows]


def _compute_kernel_weights(places: Array, points: Array, width: float) -> Array:
    distance: Array = ((places[:, None] - points[None]) ** 2).sum(-1)
    near: Array = np.exp(-distance / (2 * width * width))
    return near


def _build_traces(
    trials: Sequence[FrozenTrial], beats: Array, surface: list[list[float | None]] | None, across: Axis, up: Axis
) -> list[Any]:
    scale = {"title": {"text": "beats"}, "tickformat": ".0%", "outlinewidth": 0, "thickness": 12}
    colors = {"colorscale": theme.SCALE, "colorbar": scale}
    traces: list[Any] = []
    if surface is not None:
        grid = np.linspace(0, 1, STEPS)
        x, y = ([axis.from_share(share) for share in grid] for axis in (across, up))
        lines = {"start": 0.1, "end": 0.9, "size": 0.1, "showlines": False}
        traces.append(Contour(x=x, y=y, z=surface, zmin=0, zmax=1, contours=lines, hoverinfo="skip", **colors))
        marker: dict[str, Any] = {"color": theme.CARD, "size": 6}
    else:
        marker = {"color": beats, "cmin": 0, "cmax": 1, "size": 10, **colors}
    best = int(beats.argmax())
    text = [f"trial {trial.number}, {get_outcome(trial)}" for trial in trials]
    traces.append(
        Scatter(
            x=[across.get_position(trial) for trial in trials],
            y=[up.get_position(trial) for trial in trials],
            customdata=beats,
            text=text,
            mode="markers",
            marker={**marker, "line": {"color": theme.INK, "width": 1}},
            hovertemplate="%{text}<br>beats %{customdata:.0%} of trials<extra></extra>",
            showlegend=False,
        )
    )
    ring = {"size": 18, "symbol": "circle-open", "color": theme.ORANGE, "line": {"width": 3}}
    at = {"x": [across.get_position(trials[best])], "y": [up.get_position(trials[best])]}
    traces.append(Scatter(**at, mode="markers", name="best", showlegend=True, marker=ring, hoverinfo="skip"))
    return traces
