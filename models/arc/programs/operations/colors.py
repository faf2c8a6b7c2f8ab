"""Operations that change colors by their frequency, and those that list colors and counts."""

from collections.abc import Callable
from typing import Any

import numpy as np

from searchlight.models.arc.programs.operation import Operation, Transform
from searchlight.models.arc.programs.operations.measures import (
    Numbers,
    count_colors,
    find_most_frequent,
    find_rarest,
    rank_values,
    sort_colors,
)
from searchlight.models.arc.programs.operations.objects import find_objects
from searchlight.models.arc.puzzles import COLORS, LARGEST_SIDE, Grid


def swap_background(grid: Grid) -> Any:
    """Swap the background with the most frequent color."""
    color = count_colors(grid).argmax()
    return swap(grid, 0, int(color)) if color else None


def swap_two_colors(grid: Grid) -> Any:
    """Swap the two colors of a grid that has two besides background."""
    colors = sort_colors(grid)
    return swap(grid, *colors) if len(colors) == 2 else None


def swap(grid: Grid, first: int, second: int) -> Grid:
    """Give the cells of each of two colors the other color."""
    return np.where(grid == first, second, np.where(grid == second, first, grid)).astype(np.uint8)


def rank_colors(grid: Grid) -> Any:
    """Replace each color by the rank of its frequency, from the most frequent. Background stays."""
    counts = count_colors(grid, background=False)
    ranks = np.array([0, *rank_values(counts[1:].tolist())])
    return ranks[grid]


def with_color(find_color: Callable[[Grid], int | None], change: Callable[[Grid, int], Any]) -> Transform:
    """Return an operation that changes the grid, given a color that is found in it."""

    def apply(grid: Grid) -> Any:
        color = find_color(grid)
        return None if color is None else change(grid, color)

    return apply


def keep_color(grid: Grid, color: int) -> Any:
    return np.where(grid == color, grid, 0)


def remove_color(grid: Grid, color: int) -> Any:
    return np.where(grid == color, 0, grid)


def paint_all(grid: Grid, color: int) -> Any:
    return np.where(grid > 0, color, 0)


def list_colors(grid: Grid) -> Any:
    return np.array(sort_colors(grid))[:, None] if grid.any() else None


def list_cells(grid: Grid) -> Any:
    """List the colored cells as a row, column by column."""
    cells = grid.T[grid.T > 0]
    return cells[None] if len(cells) <= LARGEST_SIDE else None


def draw_bars(counts: Numbers) -> Any:
    """Draw a row of cells for each color that is counted, as long as its count, the longest first."""
    longest = int(counts.max())
    if not 0 < longest <= LARGEST_SIDE:
        return None
    order = [int(color) for color in np.argsort(-counts, kind="stable") if counts[color]]
    return np.where(np.arange(longest) < counts[order][:, None], np.array(order)[:, None], 0)


def count_pieces(grid: Grid) -> Numbers:
    """Count the pieces of each color, shape (10,)."""
    return np.bincount([piece.color for piece in find_objects(grid, "piece")], minlength=COLORS)


OPERATIONS = (
    Operation("swap_background", "swap the background with the most frequent color", swap_background),
    Operation("swap_two_colors", "swap the two colors", swap_two_colors),
    Operation("only_rarest", "keep the rarest color only", with_color(find_rarest, keep_color)),
    Operation("only_commonest", "keep the most frequent color only", with_color(find_most_frequent, keep_color)),
    Operation("remove_rarest", "remove the rarest color", with_color(find_rarest, remove_color)),
    Operation("remove_commonest", "remove the most frequent color", with_color(find_most_frequent, remove_color)),
    Operation("paint_all_rarest", "paint all cells in the rarest color", with_color(find_rarest, paint_all)),
    Operation(
        "paint_all_commonest", "paint all cells in the most frequent color", with_color(find_most_frequent, paint_all)
    ),
    Operation("rank_colors", "replace colors by the rank of their frequency", rank_colors),
    Operation(
        "fill_commonest",
        "fill the grid with its most frequent color, background included",
        lambda grid: np.full_like(grid, count_colors(grid).argmax()),
    ),
    Operation("list_colors", "list the colors as a column, the most frequent first", list_colors),
    Operation("list_cells", "list the colored cells as a row, column by column", list_cells),
    Operation(
        "bars_of_cells", "draw a bar for each color as long as its cells", lambda g: draw_bars(count_colors(g, False))
    ),
    Operation(
        "bars_of_pieces", "draw a bar for each color as long as its pieces", lambda g: draw_bars(count_pieces(g))
    ),
)
