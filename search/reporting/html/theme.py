"""The theme of the report: its colors in light and dark mode, and the common layout of figures.

Figures use CSS variables as colors, such as `INK`, which the browser resolves. The same figure therefore works in
light mode, in dark mode and on paper. The hues differ enough in lightness to be distinguished with any of the three
kinds of color blindness (Machado et al., 2009), and have a contrast of 3 to their background.
"""

from collections.abc import Iterable
from html import escape
from math import ceil
from typing import Any

from plotly.graph_objects import Figure, Scatter

from searchlight.search.formatting import format_duration

COLORS = {  # in light and dark mode; "faint" is less important text
    "ground": ("#f6f7f9", "#101318"),
    "card": ("#ffffff", "#191d23"),
    "ink": ("#171b21", "#e9ecf1"),
    "faint": ("#59616d", "#a3abb8"),
    "line": ("#e1e4e9", "#313843"),
    "blue": ("#3362d4", "#3d78f2"),
    "orange": ("#ed5c19", "#e2622c"),
    "green": ("#145237", "#89fce1"),
    "magenta": ("#a8357f", "#fb9eb4"),
    "violet": ("#560f87", "#ad8afe"),
    "gray": ("#878d97", "#7d848f"),
}
LIGHT, DARK = ({name: pair[index] for name, pair in COLORS.items()} for index in (0, 1))
HUES = ("blue", "orange", "green", "magenta", "violet", "gray")

INK, FAINT, LINE, CARD = (f"var(--{name})" for name in ("ink", "faint", "line", "card"))
COLORWAY = [f"var(--{name})" for name in HUES]
BLUE, ORANGE, GREEN, MAGENTA, VIOLET, GRAY = COLORWAY
ACCENT = BLUE  # of the subject of a figure, e.g. the best trial
OUTCOME_COLORS = {
    "completed": BLUE,
    "pruned": GRAY,
    "diverged": ORANGE,
    "infeasible": ORANGE,
    "failed": MAGENTA,
    "interrupted": VIOLET,
}
SYMBOLS = {"diverged": "x", "infeasible": "square-open", "failed": "diamond", "interrupted": "circle-open"}
HEIGHT = 340  # pixels
HALF = "half"  # marks figures that are shown side by side on a wide screen


def render_css() -> str:
    """Return the colors as CSS variables. Dark mode follows the browser, except on paper."""
    light, dark = (" ".join(f"--{name}: {color};" for name, color in colors.items()) for colors in (LIGHT, DARK))
    return (
        f":root {{ color-scheme: light; {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root:not(.paper) {{ color-scheme: dark; {dark} }} }}\n"
    )


def escape_text(value: Any) -> str:
    """Escape a text for a figure, in which plotly interprets tags such as `<b>`."""
    return escape(str(value), quote=False)


def build_figure(
    *traces: Any, x: str = "", y: str = "", height: int = HEIGHT, half: bool = False, **more: Any
) -> Figure:
    """Return a figure of `traces` with titled axes.

    Args:
        traces: Of plotly.
        x, y: Titles of the axes, in plain text.
        height: In pixels. The width is that of the page.
        half: Whether two figures are shown side by side on a wide screen.
        more: Arguments of plotly's layout, such as `xaxis_type="log"`.
    """
    drawn = Figure(
        list(traces),
        {
            "template": "none",  # the page applies TEMPLATE
            "height": height,
            "meta": HALF if half else None,
            "xaxis": {"title": {"text": escape_text(x)}},
            "yaxis": {"title": {"text": escape_text(y)}},
        },
    )
    return drawn.update_layout(**more) if more else drawn


def build_outcome_marker(outcome: str, size: int, opacity: float) -> dict[str, Any]:
    """Return plotly's marker of trials that ended with `outcome`."""
    symbol = SYMBOLS.get(outcome, "circle")
    return {"color": OUTCOME_COLORS[outcome], "symbol": symbol, "size": size, "opacity": opacity}


def build_points(points: Iterable[tuple[Any, Any, Any]], name: str, marker: Any, hover: str, **style: Any) -> Scatter:
    """Return plotly's trace of `points`: x, y, and what `%{customdata}` stands for in the text `hover`."""
    x, y, data = (list(column) for column in zip(*points, strict=True)) if (points := [*points]) else ([], [], [])
    named = {"mode": "markers", "name": name, "marker": marker, "hovertemplate": f"{hover}<extra></extra>", **style}
    return Scatter(x=x, y=y, customdata=data, **named)


def mark_pauses(figure: Figure, pauses: Iterable[tuple[float, float]]) -> Figure:
    """Draw a dashed line at each pause of the search, given as the seconds before it and its length."""
    for after, _ in pauses:
        figure.add_vline(x=after, line={"color": FAINT, "dash": "dash", "width": 1})
    return figure


def build_time_axis(seconds: float) -> dict[str, Any]:
    """Return an axis of `seconds` since the start, with round times as ticks."""
    step = next((step for step in _STEPS if seconds / step <= TICKS), 86400 * ceil(seconds / 86400 / TICKS))
    times = [step * index for index in range(int(seconds / step) + 1)]
    return {"tickvals": times, "ticktext": [format_duration(time) for time in times], "range": [0, 1.02 * seconds or 1]}


TICKS = 6  # largest number of ticks, for narrow screens
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
_AXIS = {
    "automargin": True,
    "gridcolor": LINE,
    "linecolor": LINE,
    "zeroline": False,
    "ticks": "",
    "tickfont": {"color": FAINT},
    "title": {"font": {"color": FAINT, "size": 13}, "standoff": 8},
    "exponentformat": "power",
}
TEMPLATE: dict[str, Any] = {
    "font": {"family": "system-ui, -apple-system, 'Segoe UI', sans-serif", "size": 13, "color": INK},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "colorway": COLORWAY,
    "margin": {"l": 8, "r": 8, "t": 8, "b": 8, "pad": 4},
    "xaxis": _AXIS,
    "yaxis": _AXIS,
    "title": {"font": {"size": 14}, "x": 0, "xanchor": "left"},
    "hovermode": "closest",
    "hoverlabel": {"bgcolor": CARD, "bordercolor": LINE, "font": {"color": INK}, "align": "left"},
    "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "font": {"color": FAINT}},
    "bargap": 0.35,
    "dragmode": False,
}
