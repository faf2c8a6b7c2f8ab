"""Operations on enclosed areas: cells that are not connected to the edge of the grid."""

from typing import Any

import numpy as np
from scipy import ndimage

from searchlight.models.arc.programs.operation import Operation
from searchlight.models.arc.programs.operations.measures import Mask, clip_colors, count_colors, label, rank_values
from searchlight.models.arc.puzzles import Grid

LARGEST_NUMBER = 100  # of areas of background: a grid with more shows noise


def find_enclosed(mask: Mask) -> Mask:
    """Return the cells of a mask that no path over edges of its cells connects to the edge of the grid."""
    labels, _ = label(mask)
    reached = np.unique(np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]]))
    enclosed: Mask = mask & ~np.isin(labels, reached)
    return enclosed


def fill_enclosed(grid: Grid) -> Any:
    """Fill enclosed background with the color of the nearest colored cell."""
    enclosed = find_enclosed(grid == 0)
    if not enclosed.any():
        return None
    nearest = ndimage.distance_transform_edt(grid == 0, return_distances=False, return_indices=True)
    return np.where(enclosed, grid[tuple(nearest)], grid)


def mark_enclosed(grid: Grid) -> Any:
    """Mark the cells of any color that their own color does not connect to the edge."""
    colors = np.flatnonzero(count_colors(grid))
    return np.any([find_enclosed(grid == color) for color in colors], axis=0)


def paint_by_size(grid: Grid) -> Any:
    """Paint each enclosed area of background by its number of cells."""
    labels, number = label(find_enclosed(grid == 0))
    if not number:
        return None
    sizes = np.bincount(labels.ravel())
    sizes[0] = 0
    return clip_colors(sizes)[labels]


def rank_background(grid: Grid) -> Any:
    """Paint each area of background, enclosed or not, by the rank of its size, from the largest."""
    labels, number = label(grid == 0)
    if not 2 <= number <= LARGEST_NUMBER:
        return None
    ranks = rank_values(np.bincount(labels.ravel())[1:].tolist())
    return np.array([0, *clip_colors(ranks)])[labels]


OPERATIONS = (
    Operation("mark_enclosed_background", "mark enclosed background", lambda grid: find_enclosed(grid == 0)),
    Operation("fill_enclosed", "fill enclosed background with the nearest color", fill_enclosed),
    Operation("mark_enclosed", "mark enclosed cells of any color", mark_enclosed),
    Operation("paint_enclosed_by_size", "paint enclosed areas by their number of cells", paint_by_size),
    Operation("rank_background", "paint areas of background by the rank of their size", rank_background),
)
