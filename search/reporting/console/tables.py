"""Consoles that tolerate a closed stream, and their tables."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TextIO

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


def build_comparison_table(rows: Sequence[Sequence[str]]) -> Table:
    """Return a table of `rows`, the head first, with the row names on the left."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    head, *body = rows
    for place, cell in enumerate(head):
        table.add_column(Text(cell), justify="right" if place else "left")
    for row in body:
        table.add_row(*map(Text, row))
    return table


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
        table.add_column(Text(head), width=wide, no_wrap=True, overflow="ellipsis")
        has_words = any(cell[:1].isalpha() and cell not in ("nan", "inf") for cell in cells)
        table.columns[-1].justify = "left" if has_words else "right"
        fit += 1
    for row in rows[1:]:
        table.add_row(*map(Text, row[:fit]))
    return table


def list_omitted_columns(table: Table, rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the heads of columns of `rows` that `build_table` omitted from `table`."""
    return [*rows[0][len(table.columns) :]]
