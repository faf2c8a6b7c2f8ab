"""What a page is made of."""

from collections.abc import Sequence
from dataclasses import dataclass

from plotly.graph_objects import Figure


@dataclass(frozen=True)
class Section:
    """A heading, what is to be seen in a sentence or two, and that which shows it.

    Attributes:
        title: In plain text.
        says: In plain text; what a reader should take with them, with its numbers. A line is a paragraph.
        figures: In no colors of their own but those of `search.reporting.html.theme`, so that they are readable in
            the dark and on paper.
        table: Rows of plain text; the first is the head.
        notes: In plain text, small, below all others. A line is a paragraph.
    """

    title: str
    says: str
    figures: Sequence[Figure] = ()
    table: Sequence[Sequence[str]] = ()
    notes: str = ""
