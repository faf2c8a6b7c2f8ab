"""What several families of operations measure: colors, ranks, boxes and connected cells."""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from searchlight.models.arc.puzzles import COLORS, Grid

EDGES = ndimage.generate_binary_structure(2, 1)  # cells that share an edge
CORNERS = ndimage.generate_binary_structure(2, 2)  # or a corner
LARGEST_COLOR = COLORS - 1

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]


def count_colors(grid: Grid, background: bool = True) -> Numbers:
    """Count the cells of each color, shape (10,). Without `background`, color 0 counts 0."""
    counts = np.bincount(grid.ravel(), minlength=COLORS)
    if not background:
        counts[0] = 0
    return counts


def sort_colors(grid: Grid) -> list[int]:
    """Return the colors of a grid without the background, the most frequent first."""
    counts = count_colors(grid, background=False)
    return [int(color) for color in np.argsort(-counts, kind="stable") if counts[color]]


def find_most_frequent(grid: Grid) -> int | None:
    """Return the most frequent color but background, the lowest one of several, or None if there is none."""
    counts = count_colors(grid, background=False)
    return int(counts.argmax()) if counts.any() else None


def find_rarest(grid: Grid) -> int | None:
    """Return the rarest color that is there but background, the lowest one of several, or None if there is none."""
    counts = count_colors(grid, background=False)
    return int(np.where(counts > 0, counts, grid.size + 1).argmin()) if counts.any() else None


def find_box(mask: Mask) -> tuple[slice, slice] | None:
    """Return the smallest box around the cells of a mask, as rows and columns, or None if there are none."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return None
    return slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)


def rank_values(values: Sequence[float], descending: bool = True) -> list[int]:
    """Return the rank of each value, from 1. Equal values share a rank, and the next rank is one more."""
    order = sorted(set(values), reverse=descending)
    return [order.index(value) + 1 for value in values]


def count_equal(values: Sequence[Hashable]) -> list[int]:
    """Return how often each value is in the list."""
    counts = Counter(values)
    return [counts[value] for value in values]


def clip_colors(numbers: Any) -> Any:
    """Show numbers as colors: those over 9 as 9."""
    return np.minimum(numbers, LARGEST_COLOR)


def label(mask: Mask, structure: Mask = EDGES) -> tuple[Numbers, int]:
    """Number the connected groups of a mask from 1, as scipy.ndimage does; 0 is outside of the mask."""
    labels, number = ndimage.label(mask, structure)
    return labels, int(number)


def layer(*grids: Any) -> Any:
    """Lay grids of one shape over each other, the first on top. Background is transparent."""
    result = grids[0]
    for grid in grids[1:]:
        result = np.where(result > 0, result, grid)
    return result
