"""Operations that look at the neighbors of each cell, at its place, or at its row and column."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import ndimage

from searchlight.models.arc.programs.operation import Operation, Transform
from searchlight.models.arc.programs.operations.measures import (
    CORNERS,
    EDGES,
    Mask,
    clip_colors,
    layer,
    rank_values,
)
from searchlight.models.arc.puzzles import COLORS, Grid

CENTER = np.array([[0, 0, 0], [0, 1, 0], [0, 0, 0]], dtype=bool)


def count_neighbors(neighbors: Mask) -> Transform:
    """Return an operation that counts the colored ones among the given neighbors, shape (3, 3), of each cell."""
    weights = neighbors.astype(np.uint8)
    return lambda grid: ndimage.correlate((grid > 0).astype(np.uint8), weights, mode="constant")


def grow(neighbors: Mask) -> Transform:
    """Return an operation that gives background the highest color among its neighbors."""
    return lambda grid: layer(grid, ndimage.maximum_filter(grid, footprint=neighbors, mode="constant"))


def take_majority(grid: Grid) -> Any:
    """Give each cell the most frequent color of its 3 by 3 neighborhood, the lowest one of several."""
    window = CORNERS.astype(np.uint8)
    counts = [ndimage.correlate((grid == c).astype(np.uint8), window, mode="constant") for c in range(COLORS)]
    return np.argmax(counts, axis=0)


def erode(grid: Grid) -> Any:
    """Keep the cells whose four neighbors are colored; beyond the edge is background."""
    return grid * ndimage.binary_erosion(grid > 0, EDGES)


def outline(grid: Grid) -> Any:
    """Remove the cells whose eight neighbors are colored."""
    return np.where(ndimage.binary_erosion(grid > 0, CORNERS), 0, grid)


def number_cells(grid: Grid, period: int) -> Any:
    """Number the diagonals from the upper left corner, from 1 to `period` again and again."""
    return np.indices(grid.shape).sum(0) % period + 1


def number_lines(grid: Grid, axis: int) -> Any:
    """Number the rows (axis 0) or columns (axis 1) 1, 2, 1, 2 and so on."""
    return np.indices(grid.shape)[axis] % 2 + 1


def number_rings(grid: Grid) -> Any:
    """Number the rings from the edge to the middle from 1."""
    places = np.indices(grid.shape)
    ends = [places[axis][::-1, ::-1] for axis in (0, 1)]
    return clip_colors(np.min([*places, *ends], axis=0) + 1)


def mark_diagonals(grid: Grid) -> Any:
    """Mark the diagonal from the upper left corner with 1, that from the upper right with 2, both with 3."""
    rows, columns = np.indices(grid.shape)
    return (rows == columns) + 2 * (rows + columns == grid.shape[1] - 1)


def spread(values: ArrayLike, grid: Grid, axis: int) -> Any:
    """Give each row (axis 1) or column (axis 0) of a grid one value."""
    return np.broadcast_to(np.expand_dims(values, axis), grid.shape)


def mark_uniform(grid: Grid, axis: int) -> Any:
    """Mark the rows (axis 1) or columns (axis 0) of one color with 2, the others with 1."""
    return spread((grid == grid.take([0], axis)).all(axis) + 1, grid, axis)


def count_in_line(grid: Grid, axis: int) -> Any:
    """Paint each row (axis 1) or column (axis 0) by its number of colored cells."""
    return spread(clip_colors((grid > 0).sum(axis)), grid, axis)


def find_line_color(grid: Grid, axis: int) -> Any:
    """Paint each row (axis 1) or column (axis 0) in its most frequent color but background, the lowest of several."""
    counts = np.stack([(grid == color).sum(axis) for color in range(1, COLORS)])
    return spread(np.where(counts.any(0), counts.argmax(0) + 1, 0), grid, axis)


def keep_lines(grid: Grid, axis: int, fullest: bool) -> Any:
    """Keep the rows (axis 1) or columns (axis 0) with the most or, without `fullest`, the fewest colored cells."""
    counts = (grid > 0).sum(axis)
    if not counts.any():
        return grid
    extreme = counts.max() if fullest else counts[counts > 0].min()
    return grid * spread(counts == extreme, grid, axis)


def rank_columns(grid: Grid) -> Any:
    """Paint colored cells by the rank of their column's number of colored cells, from the largest."""
    ranks = clip_colors(rank_values((grid > 0).sum(0).tolist()))
    return np.where(grid > 0, ranks, 0)


OPERATIONS = (
    Operation("count_edge_neighbors", "count colored neighbors that share an edge", count_neighbors(EDGES & ~CENTER)),
    Operation("count_neighbors", "count colored neighbors", count_neighbors(CORNERS & ~CENTER)),
    Operation(
        "count_corner_neighbors", "count colored neighbors that share a corner only", count_neighbors(CORNERS & ~EDGES)
    ),
    Operation("grow_edges", "grow over the edges of cells", grow(EDGES)),
    Operation("grow_corners", "grow over the edges and corners of cells", grow(CORNERS)),
    Operation("erode", "keep cells with four colored neighbors", erode),
    Operation("outline", "remove cells with eight colored neighbors", outline),
    Operation("majority", "take the most frequent color around each cell", take_majority),
    Operation(
        "median", "take the median color around each cell", lambda g: ndimage.median_filter(g, 3, mode="nearest")
    ),
    Operation("number_rows", "number the rows 1 and 2", lambda grid: number_lines(grid, 0)),
    Operation("number_columns", "number the columns 1 and 2", lambda grid: number_lines(grid, 1)),
    Operation("checkerboard", "number the diagonals 1 and 2", lambda grid: number_cells(grid, 2)),
    Operation("number_diagonals", "number the diagonals 1 to 3", lambda grid: number_cells(grid, 3)),
    Operation("number_rings", "number the rings from the edge", number_rings),
    Operation("mask", "mark colored cells", lambda grid: grid > 0),
    Operation("invert", "mark background", lambda grid: grid == 0),
    Operation("diagonals", "mark both diagonals", mark_diagonals),
    Operation("uniform_rows", "mark rows of one color", lambda grid: mark_uniform(grid, 1)),
    Operation("uniform_columns", "mark columns of one color", lambda grid: mark_uniform(grid, 0)),
    Operation("count_in_rows", "paint rows by their number of colored cells", lambda grid: count_in_line(grid, 1)),
    Operation(
        "count_in_columns", "paint columns by their number of colored cells", lambda grid: count_in_line(grid, 0)
    ),
    Operation("row_color", "paint rows in their most frequent color", lambda grid: find_line_color(grid, 1)),
    Operation("column_color", "paint columns in their most frequent color", lambda grid: find_line_color(grid, 0)),
    Operation("fullest_rows", "keep the rows of the most colored cells", lambda grid: keep_lines(grid, 1, True)),
    Operation("fullest_columns", "keep the columns of the most colored cells", lambda grid: keep_lines(grid, 0, True)),
    Operation("emptiest_rows", "keep the rows of the fewest colored cells", lambda grid: keep_lines(grid, 1, False)),
    Operation(
        "emptiest_columns", "keep the columns of the fewest colored cells", lambda grid: keep_lines(grid, 0, False)
    ),
    Operation("rank_columns", "paint cells by the rank of their column's number of colored cells", rank_columns),
)
