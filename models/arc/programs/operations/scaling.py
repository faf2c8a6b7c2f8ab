"""Operations that enlarge or shrink the grid by whole factors, and patterns of copies."""

from typing import Any

import numpy as np

from searchlight.models.arc.programs.operation import Operation, Transform
from searchlight.models.arc.programs.operations.measures import Mask, count_colors, sort_colors
from searchlight.models.arc.puzzles import COLORS, LARGEST_SIDE, Grid


def enlarge(grid: Grid, height: int, width: int) -> Grid:
    """Make each cell a block of the given size."""
    return grid.repeat(height, 0).repeat(width, 1)


def enlarge_by_count(grid: Grid, count: int) -> Any:
    """Enlarge the grid `count` times, if that is a change and fits."""
    return enlarge(grid, count, count) if count > 1 and max(grid.shape) * count <= LARGEST_SIDE else None


def shrink(grid: Grid) -> Any:
    """Make the largest blocks of one color, by which the whole grid is enlarged, single cells."""
    for factor in range(min(COLORS, *grid.shape), 1, -1):
        small = grid[::factor, ::factor]
        if np.array_equal(enlarge(small, factor, factor), grid):
            return small
    return None


def find_tile(grid: Grid) -> Any:
    """Return the smallest tile whose repetition is the grid, or None if that is the grid itself."""
    height, width = (_find_period(grid), _find_period(grid.T))
    return grid[:height, :width] if (height, width) != grid.shape else None


def _find_period(grid: Grid) -> int:
    length = len(grid)
    periods = (period for period in range(1, length) if length % period == 0)
    return next((one for one in periods if np.array_equal(grid[one:], grid[:-one])), length)


def copy_into(mask: Mask, grid: Grid) -> Any:
    """Put a copy of the grid in the place of each marked cell, and background elsewhere. It fits up to 5 by 5."""
    return np.kron(mask, grid) if max(grid.shape) ** 2 <= LARGEST_SIDE else None


def keep_every(step: int) -> Transform:
    """Return an operation that keeps each `step`-th row and column, the first ones included."""
    return lambda grid: grid[::step, ::step]


OPERATIONS = (
    Operation("enlarge_2", "enlarge twice", lambda grid: enlarge(grid, 2, 2)),
    Operation("enlarge_3", "enlarge three times", lambda grid: enlarge(grid, 3, 3)),
    Operation("every_second", "keep every second row and column", keep_every(2)),
    Operation("every_third", "keep every third row and column", keep_every(3)),
    Operation("shrink", "shrink blocks of one color to cells", shrink),
    Operation("tile", "take the tile that repeats", find_tile),
    Operation("copy_into_colored", "put a copy into each colored cell", lambda grid: copy_into(grid > 0, grid)),
    Operation("copy_into_background", "put a copy into each background cell", lambda grid: copy_into(grid == 0, grid)),
    Operation(
        "copy_into_commonest",
        "put a copy into each cell of the most frequent color, background included",
        lambda grid: copy_into(grid == count_colors(grid).argmax(), grid),
    ),
    Operation(
        "enlarge_by_colors",
        "enlarge by the number of colors",
        lambda grid: enlarge_by_count(grid, len(sort_colors(grid))),
    ),
    Operation(
        "enlarge_by_cells",
        "enlarge by the number of colored cells",
        lambda grid: enlarge_by_count(grid, int((grid > 0).sum())),
    ),
    Operation(
        "enlarge_by_itself",
        "enlarge by the grid's own size",
        lambda grid: enlarge(grid, *grid.shape) if max(grid.shape) ** 2 <= LARGEST_SIDE else None,
    ),
)
