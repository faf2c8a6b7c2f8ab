"""Operations whose sizes are read from the demonstrations: by which factor outputs are larger, or their common size."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from searchlight.models.arc.programs.operation import Fit, Operation, Transform
from searchlight.models.arc.programs.operations.measures import clip_colors, layer
from searchlight.models.arc.programs.operations.objects import find_objects
from searchlight.models.arc.programs.operations.scaling import enlarge
from searchlight.models.arc.puzzles import COLORS, Grid

Size = tuple[int, int]
Sized = Callable[[Grid, Size], Any]
ReadSize = Callable[[Sequence[Grid], Sequence[Grid]], Size | None]


def read_growth(inputs: Sequence[Grid], outputs: Sequence[Grid]) -> Size | None:
    """Return by which whole factors all outputs are higher and wider than their inputs, or None."""
    ratios = {
        tuple(divmod(big, small) for big, small in zip(b.shape, a.shape, strict=True))
        for a, b in zip(inputs, outputs, strict=True)
    }
    ((height, rest), (width, more)) = next(iter(ratios))
    return (height, width) if len(ratios) == 1 and not rest and not more and height * width > 1 else None


def read_shrinkage(inputs: Sequence[Grid], outputs: Sequence[Grid]) -> Size | None:
    """Return by which whole factors all inputs are higher and wider than their outputs, or None."""
    return read_growth(outputs, inputs)


def read_size(inputs: Sequence[Grid], outputs: Sequence[Grid]) -> Size | None:
    """Return the size that all outputs have, or None."""
    shapes = {output.shape for output in outputs}
    return outputs[0].shape if len(shapes) == 1 else None


def fit_size(read: ReadSize, apply: Sized) -> Fit:
    """Return the `fit` of an operation that depends on a size."""

    def fit(inputs: Sequence[Grid], outputs: Sequence[Grid]) -> Transform | None:
        size = read(inputs, outputs)
        return None if size is None else lambda grid: apply(grid, size)

    return fit


def tile_mirrored(grid: Grid, factors: Size, first: int) -> Any:
    """Tile the grid; every other tile is mirrored, from the second (`first` 0) or from the first one (`first` 1)."""

    def orient(number: int) -> int:
        return -1 if (number + first) % 2 else 1

    rows = [np.hstack([grid[:: orient(i), :: orient(j)] for j in range(factors[1])]) for i in range(factors[0])]
    return np.vstack(rows)


def cut_blocks(grid: Grid, size: Size) -> NDArray[np.uint8] | None:
    """Cut the grid into blocks of the given size.

    Returns:
        The blocks, shape (rows of blocks, columns of blocks, height, width), or None if they do not fit.
    """
    (height, width), (down, right) = grid.shape, size
    if height % down or width % right:
        return None
    return grid.reshape(height // down, down, width // right, right).swapaxes(1, 2)


def pool_blocks(pool: Callable[[NDArray[np.uint8]], Any]) -> Sized:
    """Return a function that makes each block of a size one cell by `pool`, from (rows, columns, cells)."""

    def apply(grid: Grid, size: Size) -> Any:
        blocks = cut_blocks(grid, size)
        return None if blocks is None else pool(blocks.reshape(*blocks.shape[:2], -1))

    return apply


def find_mode(cells: NDArray[np.uint8]) -> Any:
    """Return the most frequent color of each block, the lowest one of several."""
    return np.argmax([(cells == color).sum(-1) for color in range(COLORS)], axis=0)


def merge_blocks(merge: Callable[[NDArray[np.uint8]], Any]) -> Sized:
    """Return a function that cuts the grid into `factors` blocks, then merges these, shape (blocks, height, width)."""

    def apply(grid: Grid, factors: Size) -> Any:
        size = (grid.shape[0] // factors[0], grid.shape[1] // factors[1])
        blocks = cut_blocks(grid, size) if all(size) else None
        if blocks is None or blocks.shape[:2] != factors:
            return None
        return merge(blocks.reshape(-1, *size))

    return apply


def cut_corner(grid: Grid, size: Size, last: bool) -> Any:
    """Cut the upper left or, for `last`, the lower right corner out of a grid that is not smaller."""
    if grid.shape[0] < size[0] or grid.shape[1] < size[1]:
        return None
    return grid[-size[0] :, -size[1] :] if last else grid[: size[0], : size[1]]


def repeat_to(grid: Grid, size: Size) -> Any:
    """Tile the plane with the grid and cut the size out."""
    repeats = [-(-wanted // side) for wanted, side in zip(size, grid.shape, strict=True)]
    return np.tile(grid, repeats)[: size[0], : size[1]]


def extend_to(grid: Grid, size: Size) -> Any:
    """Put the grid in the upper left corner of an empty grid of the size."""
    return np.pad(grid, [(0, side) for side in size])[: size[0], : size[1]]


def wrap_cells(grid: Grid, size: Size) -> Any:
    """Write the colored cells into a grid of the size, row by row, again and again."""
    return np.resize(grid[grid > 0], size) if grid.any() else None


def fill_count(count: Callable[[Grid], int]) -> Sized:
    """Return a function that marks as many cells of a grid of the size as are counted, row by row."""
    return lambda grid, size: (np.arange(size[0] * size[1]) < count(grid)).reshape(size)


OPERATIONS = (
    Operation("tile_to_fit", "tile as often as the outputs are larger", fit=fit_size(read_growth, np.tile)),
    Operation(
        "tile_mirrored",
        "tile with every second tile mirrored",
        fit=fit_size(read_growth, lambda grid, factors: tile_mirrored(grid, factors, 0)),
    ),
    Operation(
        "tile_mirrored_first",
        "tile with every first tile mirrored",
        fit=fit_size(read_growth, lambda grid, factors: tile_mirrored(grid, factors, 1)),
    ),
    Operation(
        "enlarge_to_fit",
        "enlarge as much as the outputs are larger",
        fit=fit_size(read_growth, lambda grid, factors: enlarge(grid, *factors)),
    ),
    Operation(
        "pool_highest",
        "make blocks cells of their highest color",
        fit=fit_size(read_shrinkage, pool_blocks(lambda cells: cells.max(-1))),
    ),
    Operation(
        "pool_commonest",
        "make blocks cells of their most frequent color",
        fit=fit_size(read_shrinkage, pool_blocks(find_mode)),
    ),
    Operation(
        "first_block_on_top",
        "lay equal blocks over each other, the first on top",
        fit=fit_size(read_shrinkage, merge_blocks(lambda blocks: layer(*blocks))),
    ),
    Operation(
        "last_block_on_top",
        "lay equal blocks over each other, the last on top",
        fit=fit_size(read_shrinkage, merge_blocks(lambda blocks: layer(*blocks[::-1]))),
    ),
    Operation(
        "count_in_blocks",
        "count the equal blocks that are colored at each cell",
        fit=fit_size(read_shrinkage, merge_blocks(lambda blocks: clip_colors((blocks > 0).sum(0)))),
    ),
    Operation(
        "upper_left_corner",
        "take the upper left corner of the outputs' size",
        fit=fit_size(read_size, lambda grid, size: cut_corner(grid, size, False)),
    ),
    Operation(
        "lower_right_corner",
        "take the lower right corner of the outputs' size",
        fit=fit_size(read_size, lambda grid, size: cut_corner(grid, size, True)),
    ),
    Operation("repeat_to_size", "repeat up to the outputs' size", fit=fit_size(read_size, repeat_to)),
    Operation("extend_to_size", "extend by background to the outputs' size", fit=fit_size(read_size, extend_to)),
    Operation("wrap_cells", "write colored cells into the outputs' size", fit=fit_size(read_size, wrap_cells)),
    Operation(
        "count_pieces_to_size",
        "mark as many cells of the outputs' size as there are pieces",
        fit=fit_size(read_size, fill_count(lambda grid: len(find_objects(grid, "piece")))),
    ),
    Operation(
        "count_cells_to_size",
        "mark as many cells of the outputs' size as are colored",
        fit=fit_size(read_size, fill_count(np.count_nonzero)),
    ),
)
