"""How the page looks: its colors in the light and in the dark, and what all figures have in common.

A figure names colors as CSS variables, such as `INK`, and the browser puts in what they are at the moment. So one
figure is right in the light, in the dark and on paper. The hues differ in lightness too, by so much that they are told
apart with any of the three kinds of color blindness (Machado et al., 2009), and have a contrast of 3 to their ground.
"""

from collections.abc import Mapping
from html import escape
from math import ceil
from typing import Any

from plotly.graph_objects import Figure

from search.formatting import format_duration

LIGHT = {
    "ground": "#f6f7f9",
    "card": "#ffffff",
    "ink": "#171b21",
    "faint": "#59616d",  # text that matters less
    "line": "#e1e4e9",
    "blue": "#3362d4",
    "orange": "#ed5c19",
    "green": "#145237",
    "magenta": "#a8357f",
    "violet": "#560f87",
    "gray": "#878d97",
}
DARK = {
    "ground": "#101318",
    "card": "#191d23",
    "ink": "#e9ecf1",
    "faint": "#a3abb8",
    "line": "#313843",
    "blue": "#3d78f2",
    "orange": "#e2622c",
    "green": "#89fce1",
    "magenta": "#fb9eb4",
    "violet": "#ad8afe",
    "gray": "#7d848f",
}
HUES = ("blue", "orange", "green", "magenta", "violet", "gray")

INK, FAINT, LINE, CARD = (f"var(--{name})" for name in ("ink", "faint", "line", "card"))
BLUE, ORANGE, GREEN, MAGENTA, VIOLET, GRAY = (f"var(--{name})" for name in HUES)
ACCENT = BLUE  # what a figure is about: the best trial
OUTCOME_COLORS = {"completed": BLUE, "pruned": GRAY, "diverged": ORANGE, "failed": MAGENTA, "interrupted": VIOLET}
SYMBOLS = {
    "completed": "circle",
    "pruned": "circle",
    "diverged": "x",
    "failed": "diamond",
    "interrupted": "circle-open",
}
PRECISION_COLORS = {"fp32": VIOLET, "bf16": GREEN, "fp16": MAGENTA}
COLORWAY = [BLUE, ORANGE, GREEN, MAGENTA, VIOLET, GRAY]
HEIGHT = 340  # pixels
HALF = "half"  # what figures say of themselves that stand side by side, where there is room


def render_css() -> str:
    """The colors as CSS variables: dark where the reader has it so, and never on paper."""
    light, dark = _render_css_variables(LIGHT), _render_css_variables(DARK)
    return (
        f":root {{ color-scheme: light; {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root:not(.paper) {{ color-scheme: dark; {dark} }} }}\n"
    )


def _render_css_variables(colors: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {color};" for name, color in colors.items())


def escape_text(value: Any) -> str:
    """Text for a figure, which would take `<b>` in it for bold."""
    return escape(str(value), quote=False)


def build_figure(
    *traces: Any, x: str = "", y: str = "", height: int = HEIGHT, half: bool = False, **more: Any
) -> Figure:
    """A figure of `traces` with titles of its axes.

    Args:
        traces: Of plotly.
        x, y: Titles of the axes, in plain text.
        height: In pixels; the width is that of the page.
        half: Whether two stand side by side, where there is room.
        more: Of plotly's layout, such as `xaxis_type="log"`.
    """
    drawn = Figure(
        list(traces),
        {
            "template": "none",  # the page has TEMPLATE once, for all
            "height": height,
            "meta": HALF if half else None,
            "xaxis": {"title": {"text": escape_text(x)}},
            "yaxis": {"title": {"text": escape_text(y)}},
        },
    )
    return drawn.update_layout(**more) if more else drawn


def build_time_axis(seconds: float) -> dict[str, Any]:
    """An axis of so many seconds since the start, with round times on it."""
    step = next((step for step in _STEPS if seconds / step <= TICKS), 86400 * ceil(seconds / 86400 / TICKS))
    times = [step * place for place in range(int(seconds / step) + 1)]
    return {"tickvals": times, "ticktext": [format_duration(time) for time in times], "range": [0, 1.02 * seconds or 1]}


TICKS = 6  # at most, which have room on a phone
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
