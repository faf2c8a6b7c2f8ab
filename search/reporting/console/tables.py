"""Consoles that tolerate a closed stream, and their tables."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

GAP = 2  # between two columns
LONGEST = 16  # largest width of a cell in a narrow terminal


class SafeStream:
    """A standard stream that ignores errors of a closed pipe or terminal.

    Otherwise, Rich would end the process.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):  # the end of the process writes what is left
            self._stream.flush()


def create_console(stream: TextIO, width: int | None = None) -> Console:
    """Return a console on `stream`, as wide as the terminal unless a `width` is given."""
    return Console(file=SafeStream(stream), width=width)  # type: ignore[arg-type]


def build_details(rows: Sequence[Sequence[str]], has_head: bool = True) -> Table:
    """Return a table of `rows`, the head first, which keeps all columns. Long cells are wrapped."""
    table = Table(box=None, pad_edge=False, show_header=has_head, header_style="bold")
    for head, *cells in zip(*rows, strict=True):
        table.add_column(Text(head), style="dim" if head == "defaults" else "", justify=_choose_side(cells))
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    return table


def _choose_side(cells: Sequence[str]) -> Literal["left", "right"]:
    """Return the side of a column's cells: numbers lie on the right."""
    return "left" if any(cell.strip()[:1].isalpha() and cell not in ("nan", "inf") for cell in cells) else "right"


def print_line(console: Console, line: str, style: str = "") -> None:
    """Print `line` as it is, however long."""
    console.print(line, soft_wrap=True, highlight=False, markup=False, style=style)


def create_report_console() -> Console:
    """Return a console for standard output. In a file or a pipe, tables keep their full width."""
    return create_console(sys.stdout, None if sys.stdout.isatty() else 10_000)


def build_table(rows: Sequence[Sequence[str]], width: int | None = None) -> Table:
    """Return a table of `rows`, the head first. Omit the last columns if they exceed `width`.

    Callers must list omitted columns: see `list_omitted_columns`.
    """
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    fit, left = 0, width
    for head, *cells in zip(*rows, strict=True):
        wide = max(map(len, [head, *cells]))
        if left is not None:
            wide = min(LONGEST, wide)
            if wide > left:
                break
            left -= wide + GAP
        table.add_column(Text(head), width=wide, no_wrap=True, overflow="ellipsis", justify=_choose_side(cells))
        fit += 1
    for row in rows[1:]:
        table.add_row(*map(Text, row[:fit]))
    return table


def list_omitted_columns(table: Table, rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the heads of columns of `rows` that `build_table` omitted from `table`."""
    return [*rows[0][len(table.columns) :]]
