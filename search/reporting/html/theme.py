"""How the page looks: its colors in the light and in the dark, and what all figures have in common.

A figure names colors as CSS variables, such as `INK`, and the browser puts in what they are at the moment. So one
figure is right in the light, in the dark and on paper. The hues differ in lightness too, by so much that they are told
apart with any of the three kinds of color blindness (Machado et al., 2009), and have a contrast of 3 to their ground.
"""

from collections.abc import Iterable
from html import escape
from math import ceil
from typing import Any

from plotly.graph_objects import Figure

from search.formatting import format_duration

COLORS = {  # in the light and in the dark; "faint" is text that matters less
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
LIGHT, DARK = ({name: pair[place] for name, pair in COLORS.items()} for place in (0, 1))
HUES = ("blue", "orange", "green", "magenta", "violet", "gray")

INK, FAINT, LINE, CARD = (f"var(--{name})" for name in ("ink", "faint", "line", "card"))
COLORWAY = [f"var(--{name})" for name in HUES]
BLUE, ORANGE, GREEN, MAGENTA, VIOLET, GRAY = COLORWAY
ACCENT = BLUE  # what a figure is about: the best trial
OUTCOME_COLORS = {"completed": BLUE, "pruned": GRAY, "diverged": ORANGE, "failed": MAGENTA, "interrupted": VIOLET}
SYMBOLS = {"diverged": "x", "failed": "diamond", "interrupted": "circle-open"}
# By trainables.precision.Precision, which is not imported because it would import torch.
PRECISION_COLORS = {"fp32": VIOLET, "bf16": GREEN, "fp16": MAGENTA}
HEIGHT = 340  # pixels
HALF = "half"  # what figures say of themselves that stand side by side, where there is room


def render_css() -> str:
    """Return the colors as CSS variables: dark where the reader has it so, and never on paper."""
    light, dark = (" ".join(f"--{name}: {color};" for name, color in colors.items()) for colors in (LIGHT, DARK))
    return (
        f":root {{ color-scheme: light; {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root:not(.paper) {{ color-scheme: dark; {dark} }} }}\n"
    )


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


def build_outcome_marker(outcome: str, size: int, opacity: float) -> dict[str, Any]:
    """Return plotly's marker of trials that ended with `outcome`."""
    symbol = SYMBOLS.get(outcome, "circle")
    return {"color": OUTCOME_COLORS[outcome], "symbol": symbol, "size": size, "opacity": opacity}


def mark_pauses(figure: Figure, pauses: Iterable[tuple[float, float]]) -> Figure:
    """Draw a dashed line where the search paused. A pause is the seconds before it and its length."""
    for after, _ in pauses:
        figure.add_vline(x=after, line={"color": FAINT, "dash": "dash", "width": 1})
    return figure


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
