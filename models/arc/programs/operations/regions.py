"""Operations that cut a region out of the grid, or drop rows and columns."""

from collections.abc import Callable
from typing import Any

import numpy as np

from searchlight.models.arc.programs.operation import Operation, Transform
from searchlight.models.arc.programs.operations.measures import find_box, find_most_frequent, find_rarest, layer
from searchlight.models.arc.puzzles import Grid


def crop_to_content(grid: Grid) -> Any:
    box = find_box(grid > 0)
    return None if box is None else grid[box]


def crop_to_color(find_color: Callable[[Grid], int | None], inside: bool = False) -> Transform:
    """Return an operation that crops to the box of a color, or to its `inside`, without the outermost cells."""

    def crop(grid: Grid) -> Any:
        color = find_color(grid)
        box = None if color is None else find_box(grid == color)
        if box is None:
            return None
        return grid[box][1:-1, 1:-1] if inside else grid[box]

    return crop


def drop_repeated_lines(grid: Grid) -> Any:
    rows = np.append(True, (grid[1:] != grid[:-1]).any(1))
    columns = np.append(True, (grid[:, 1:] != grid[:, :-1]).any(0))
    return grid[rows][:, columns]


def drop_empty_lines(grid: Grid) -> Any:
    return grid[(grid > 0).any(1)][:, (grid > 0).any(0)]


def drop_uniform_lines(grid: Grid) -> Any:
    return grid[(grid != grid[:, :1]).any(1)][:, (grid != grid[:1]).any(0)]


def split_halves(grid: Grid, across: bool) -> tuple[Grid, Grid] | None:
    """Return the left and right half, or the upper and lower one; an odd middle line is in none of them."""
    height, width = grid.shape
    if (width if across else height) < 2:
        return None
    if across:
        return grid[:, : width // 2], grid[:, (width + 1) // 2 :]
    return grid[: height // 2], grid[(height + 1) // 2 :]


def encode_halves(first: Grid, second: Grid) -> Any:
    """Mark the cells that are colored in the first half only with 1, in the second only with 2, in both with 3."""
    return (first > 0) + 2 * (second > 0)


def combine_halves(across: bool, combine: Callable[[Grid, Grid], Any]) -> Transform:
    """Return an operation that combines two halves to one grid of their size."""

    def apply(grid: Grid) -> Any:
        halves = split_halves(grid, across)
        return None if halves is None else combine(*halves)

    return apply


OPERATIONS = (
    Operation("left_half", "take the left half", lambda grid: grid[:, : grid.shape[1] // 2]),
    Operation("right_half", "take the right half", lambda grid: grid[:, (grid.shape[1] + 1) // 2 :]),
    Operation("top_half", "take the upper half", lambda grid: grid[: grid.shape[0] // 2]),
    Operation("bottom_half", "take the lower half", lambda grid: grid[(grid.shape[0] + 1) // 2 :]),
    Operation("left_third", "take the left third", lambda grid: grid[:, : grid.shape[1] // 3]),
    Operation("right_third", "take the right third", lambda grid: grid[:, grid.shape[1] - grid.shape[1] // 3 :]),
    Operation("top_third", "take the upper third", lambda grid: grid[: grid.shape[0] // 3]),
    Operation("bottom_third", "take the lower third", lambda grid: grid[grid.shape[0] - grid.shape[0] // 3 :]),
    Operation("left_square", "take the square on the left", lambda grid: grid[:, : grid.shape[0]]),
    Operation("right_square", "take the square on the right", lambda grid: grid[:, -grid.shape[0] :]),
    Operation("top_square", "take the square at the top", lambda grid: grid[: grid.shape[1]]),
    Operation("bottom_square", "take the square at the bottom", lambda grid: grid[-grid.shape[1] :]),
    Operation("first_row", "take the first row", lambda grid: grid[:1]),
    Operation("last_row", "take the last row", lambda grid: grid[-1:]),
    Operation("first_column", "take the first column", lambda grid: grid[:, :1]),
    Operation("last_column", "take the last column", lambda grid: grid[:, -1:]),
    Operation("trim", "drop the outermost cells", lambda grid: grid[1:-1, 1:-1]),
    Operation("pad", "add a border of background", lambda grid: np.pad(grid, 1)),
    Operation("crop_content", "crop to all colored cells", crop_to_content),
    Operation("crop_rarest", "crop to the rarest color", crop_to_color(find_rarest)),
    Operation("crop_commonest", "crop to the most frequent color", crop_to_color(find_most_frequent)),
    Operation("crop_inside_rarest", "crop to the inside of the rarest color", crop_to_color(find_rarest, True)),
    Operation(
        "crop_inside_commonest",
        "crop to the inside of the most frequent color",
        crop_to_color(find_most_frequent, True),
    ),
    Operation("drop_repeated_lines", "drop rows and columns that repeat the one before", drop_repeated_lines),
    Operation("drop_empty_lines", "drop empty rows and columns", drop_empty_lines),
    Operation("drop_uniform_lines", "drop rows and columns of one color", drop_uniform_lines),
    Operation("compare_halves_across", "compare the left and right half", combine_halves(True, encode_halves)),
    Operation("compare_halves_down", "compare the upper and lower half", combine_halves(False, encode_halves)),
    Operation("left_over_right", "lay the left half over the right one", combine_halves(True, layer)),
    Operation("top_over_bottom", "lay the upper half over the lower one", combine_halves(False, layer)),
    Operation(
        "right_over_left", "lay the right half over the left one", combine_halves(True, lambda a, b: layer(b, a))
    ),
    Operation(
        "bottom_over_top", "lay the lower half over the upper one", combine_halves(False, lambda a, b: layer(b, a))
    ),
)
