"""Tables in a terminal, which may be narrow."""

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

GAP = 2  # between two columns
LONGEST = 16  # of a cell, where the terminal is narrow


def table_of(columns: Mapping[str, Sequence[str]], width: int | None = None) -> Table:
    """A table of `columns` by their head.

    Those that do not fit into `width` are left out, as all of them would be unreadable otherwise: the last ones.
    """
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    fit: list[Sequence[str]] = []
    left = width
    for head, cells in columns.items():
        wide = max(map(len, [head, *cells]))
        if left is not None:
            wide = min(LONGEST, wide)
            if wide > left:
                break
            left -= wide + GAP
        table.add_column(
            Text(head), justify="left" if _has_words(cells) else "right", width=wide, no_wrap=True, overflow="ellipsis"
        )
        fit.append(cells)
    for row in zip(*fit, strict=True):
        table.add_row(*map(Text, row))
    return table


def _has_words(cells: Sequence[str]) -> bool:
    return any(cell[:1].isalpha() and cell not in ("nan", "inf") for cell in cells)
