"""Operations that restore hidden cells of a pattern: one that repeats, or one that is symmetric."""

from collections.abc import Callable
from typing import Any

import numpy as np

from searchlight.models.arc.programs.operation import Operation, Transform
from searchlight.models.arc.programs.operations.measures import Mask, Numbers, count_colors, find_box
from searchlight.models.arc.puzzles import Grid

LARGEST_HIDDEN = 0.7  # of the cells: the others must show the pattern
LARGEST_AREA = 450  # cells of a grid whose period is looked for, since that takes long
SMALLEST_HOLE = 4  # cells of a rectangle
UNKNOWN = -1

Hidden = Callable[[Grid], Mask]
Complete = Callable[[Grid, Mask], Any]


def hide_background(grid: Grid) -> Mask:
    """Return the cells of background."""
    return np.asarray(grid == 0)


def hide_rectangle(grid: Grid) -> Mask:
    """Return the cells of the color that fills one rectangle, the largest of several; background if there is none."""
    largest, color = 0, 0
    for candidate in np.flatnonzero(count_colors(grid)):
        mask = grid == candidate
        box = find_box(mask)
        if box is not None and mask[box].all() and mask.sum() >= max(SMALLEST_HOLE, largest):
            largest, color = int(mask.sum()), int(candidate)
    return np.asarray(grid == color)


def continue_period(grid: Grid, hidden: Mask) -> Any:
    """Repeat the smallest tile that agrees with all known cells, or return None if there is none."""
    height, width = grid.shape
    if grid.size > LARGEST_AREA:
        return None
    best: tuple[int, Any] | None = None
    for down in range(1, height + 1):
        for right in range(1, width + 1):
            area = down * right
            if area > grid.size // 2 or (best is not None and area >= best[0]):
                continue
            repeated = _repeat_tile(grid, hidden, down, right)
            best = best if repeated is None else (area, repeated)
    return None if best is None else best[1]


def _repeat_tile(grid: Grid, hidden: Mask, down: int, right: int) -> Any:
    """Return the grid that repeats a tile of the given size, or None if known cells disagree or tell too little."""
    rows, columns = (np.arange(side) for side in grid.shape)
    places = (rows % down)[:, None] * right + (columns % right)[None]
    known, colors = places[~hidden], grid[~hidden]
    tile = np.full(down * right, UNKNOWN)
    tile[known] = colors
    return tile[places] if (tile != UNKNOWN).all() and (tile[known] == colors).all() else None


def continue_mirrors(grid: Grid, hidden: Mask) -> Any:
    """Fill hidden cells from mirror images: top-bottom, then left-right, then along the diagonal.

    Of the axes near the middle, the one is taken for which most known cells have a known image, if all of these agree.
    Cells that no image shows stay as they are. Return None without any axis.
    """
    cells = np.where(hidden, UNKNOWN, grid.astype(np.int64))
    found = False
    for list_images in (_list_mirrors, lambda cells: [image.T for image in _list_mirrors(cells.T)], _list_transposed):
        best: tuple[int, Any] | None = None
        for image in list_images(cells):
            both = (cells != UNKNOWN) & (image != UNKNOWN)
            number = int(both.sum())
            better = number >= grid.size // 3 and (best is None or number > best[0])
            if better and (cells[both] == image[both]).all():
                best = number, image
        if best is not None:
            found = True
            cells = np.where(cells == UNKNOWN, best[1], cells)
    return np.where(cells == UNKNOWN, grid, cells) if found else None


def _list_mirrors(cells: Numbers) -> list[Numbers]:
    """Return the mirror images top-bottom along axes in the middle third. What is not known is UNKNOWN."""
    height = len(cells)
    images = []
    for last in range(height - 1 - height // 3, height + height // 3):
        rows = last - np.arange(height)
        inside = (rows >= 0) & (rows < height)
        images.append(np.where(inside[:, None], cells[rows.clip(0, height - 1)], UNKNOWN))
    return images


def _list_transposed(cells: Numbers) -> list[Numbers]:
    return [cells.T] if cells.shape[0] == cells.shape[1] else []


def complete(continue_pattern: Complete, hide: Hidden, only_hidden: bool = False) -> Transform:
    """Return an operation that restores the hidden cells; with `only_hidden`, it crops to them."""

    def apply(grid: Grid) -> Any:
        hidden = hide(grid)
        if not hidden.any() or hidden.mean() > LARGEST_HIDDEN:
            return None
        whole = continue_pattern(grid, hidden)
        return whole[find_box(hidden)] if only_hidden and whole is not None else whole

    return apply


OPERATIONS = (
    Operation(
        "continue_tiles", "repeat the smallest tile over the background", complete(continue_period, hide_background)
    ),
    Operation(
        "continue_tiles_in_hole", "repeat the smallest tile over a rectangle", complete(continue_period, hide_rectangle)
    ),
    Operation(
        "take_hole_by_tiles", "take what a rectangle hides of tiles", complete(continue_period, hide_rectangle, True)
    ),
    Operation("continue_mirrors", "fill the background by mirror images", complete(continue_mirrors, hide_background)),
    Operation(
        "continue_mirrors_in_hole", "fill a rectangle by mirror images", complete(continue_mirrors, hide_rectangle)
    ),
    Operation(
        "take_hole_by_mirrors",
        "take what a rectangle hides of mirror images",
        complete(continue_mirrors, hide_rectangle, True),
    ),
)
