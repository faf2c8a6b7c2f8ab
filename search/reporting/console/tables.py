"""Tables in the terminal."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from search.reporting.console.streams import create_console

GAP = 2  # between two columns
LONGEST = 16  # of a cell, where the terminal is narrow


def build_comparison_table(rows: Sequence[Sequence[str]]) -> Table:
    """Return a table of `rows`, the head first, with the names of the rows on the left."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    head, *body = rows
    for place, cell in enumerate(head):
        table.add_column(Text(cell), justify="right" if place else "left")
    for row in body:
        table.add_row(*map(Text, row))
    return table


def create_report_console() -> Console:
    """Return a console for standard output, as wide as the terminal. A file or a pipe is as wide as a table needs."""
    return create_console(sys.stdout, None if sys.stdout.isatty() else 10_000)


def get_table_width(console: Console) -> int | None:
    """Return how wide a table may be on `console`, or None if that is not limited."""
    return console.width if console.is_terminal else None


def build_table(rows: Sequence[Sequence[str]], width: int | None = None) -> Table:
    """Return a table of `rows`, the head first. The last columns are left out if `width` has no room for them."""
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    fit, left = 0, width
    for head, *cells in zip(*rows, strict=True):
        wide = max(map(len, [head, *cells]))
        if left is not None:
            wide = min(LONGEST, wide)
            if wide > left:
                break
            left -= wide + GAP
        table.add_column(Text(head), width=wide, no_wrap=True, overflow="ellipsis")
        table.columns[-1].justify = "left" if _has_words(cells) else "right"
        fit += 1
    for row in rows[1:]:
        table.add_row(*map(Text, row[:fit]))
    return table


def _has_words(cells: Sequence[str]) -> bool:
    return any(cell[:1].isalpha() and cell not in ("nan", "inf") for cell in cells)
