"""The template of a self-contained HTML page."""

import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path

from plotly.graph_objects import Figure
from plotly.io import to_json
from plotly.offline import get_plotlyjs

from searchlight.search.reporting.html import theme

HERE = Path(__file__).resolve().parent
# The browser must not load anything, even if plotly tries.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


@dataclass(frozen=True)
class Section:
    """A heading, a summary in plain text, and figures or a table. Each line of the summary is a paragraph.

    Attributes:
        figures: Their colors must be those of `searchlight.search.reporting.html.theme`, which are readable in dark
            mode and on paper.
        table: Rows of plain text, the head first.
        notes: Small text at the end. Each line is a paragraph.
    """

    title: str
    says: str
    figures: Sequence[Figure] = ()
    table: Sequence[Sequence[str]] = ()
    notes: str = ""


def render_page(
    title: str,
    subtitle: str,
    sections: Sequence[Section],
    facts: Sequence[tuple[str, str]] = (),
    command: str = "",
    refresh_s: int = 0,
    controls: str = "",
) -> str:
    """Return the HTML of a page. All arguments are plain text.

    Args:
        title, subtitle: Shown in the header.
        sections: In reading order.
        facts: Key figures: a label and a value each.
        command: Shown for copying into a terminal.
        refresh_s: How often the page loads itself again. 0: never.
        controls: HTML before the sections.
    """
    figures = [figure for section in sections for figure in section.figures]
    indices = iter(range(len(figures)))
    drawn = ",".join(to_json(figure, validate=False) for figure in figures)
    data = f'{{"template": {json.dumps({"layout": theme.TEMPLATE})}, "figures": [{drawn}]}}'
    body = "\n".join(_render_section(section, [next(indices) for _ in section.figures]) for section in sections)
    tiles = "".join(f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for label, value in facts)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<style>
{theme.render_css()}{_read_asset("report.css")}</style>
</head>
<body data-refresh="{refresh_s}">
<header>
<h1>{escape(title)}</h1>
<p>{escape(subtitle)}</p>
{f"<pre>{escape(command)}</pre>" if command else ""}
</header>
{controls}
{f'<dl class="facts">{tiles}</dl>' if tiles else ""}
<main>
{body}
</main>
<script id="figures" type="application/json">{_escape_script_json(data)}</script>
<script id="plotly" type="text/plain">{_compress_plotly()}</script>
<script>
{_read_asset("report.js")}</script>
</body>
</html>
"""


@cache
def _compress_plotly() -> str:
    """Return plotly.js, compressed by gzip, in base64: 2 MB instead of 5, which would be most of a page."""
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()


def _render_section(section: Section, indices: Sequence[int]) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>"]
    parts += [f"<p>{escape(text)}</p>" for text in section.says.split("\n") if text]
    drawn = [_render_placeholder(figure, index) for figure, index in zip(section.figures, indices, strict=True)]
    parts += ['<div class="figures">', *drawn, "</div>"] if drawn else []
    parts += [_render_table(section.table)] if section.table else []
    parts += [f'<p class="notes">{escape(text)}</p>' for text in section.notes.split("\n") if text]
    return "<section>\n" + "\n".join(parts) + "\n</section>"


def _render_placeholder(figure: Figure, index: int) -> str:
    """Return the element of a figure, with the figure's height, so that nothing moves when it is drawn."""
    kind = "figure half" if figure.layout.meta == theme.HALF else "figure"
    height = figure.layout.height or theme.HEIGHT
    return f'<div class="{kind}" data-figure="{index}" style="min-height: {height}px"></div>'


def _render_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table with right-aligned numbers, which scrolls separately on a narrow screen."""
    head, *body = rows
    numbers = [all(_is_number(row[column]) for row in body) for column in range(len(head))]

    def render_row(cells: Sequence[str], tag: str) -> str:
        marks = (' class="number"' if number else "" for number in numbers)
        return "".join(f"<{tag}{mark}>{escape(cell)}</{tag}>" for cell, mark in zip(cells, marks, strict=True))

    lines = "\n".join(f"<tr>{render_row(row, 'td')}</tr>" for row in body)
    thead = f"<thead><tr>{render_row(head, 'th')}</tr></thead>"
    return f'<div class="scroll"><table>{thead}<tbody>\n{lines}\n</tbody></table></div>'


def _is_number(cell: str) -> bool:
    try:
        float(cell.rstrip("%").replace(",", "") or 0)
    except ValueError:
        return cell in ("-", "")
    return True


def _escape_script_json(data: str) -> str:
    """Escape JSON so that it cannot end its script element."""
    return data.replace("<", "\\u003c")


def _read_asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
