"""Numbers that describe how a puzzle's outputs differ from its inputs, from which the policy guesses operations.

They depend on the demonstrations alone, so neither on a test's input nor on its answer.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from searchlight.models.arc.programs.operations.enclosed import find_enclosed
from searchlight.models.arc.programs.operations.measures import count_colors, find_box
from searchlight.models.arc.programs.operations.objects import find_objects
from searchlight.models.arc.programs.operations.parts import find_parts
from searchlight.models.arc.puzzles import Grid, Pair

LARGEST_AREA = 500  # cells of a grid in which a smaller grid is looked for
LARGEST_SIDE_LOG, MANY_OBJECTS_LOG = 6.0, 3.0  # natural logarithms that become about 1


def compute_statistics(demonstrations: Sequence[Pair]) -> NDArray[np.float32]:
    """Compute the statistics of a puzzle.

    Returns:
        The means and the minima over the demonstrations of each statistic of a pair, then whether all outputs have one
        size, whether all inputs have one size, and a fifth of the number of demonstrations. Most are 0 or 1. Shape
        (`STATISTICS`,).
    """
    pairs = np.array([_describe_pair(source, target) for source, target in demonstrations], dtype=np.float32)
    sizes = [len({grid.shape for grid in grids}) == 1 for grids in zip(*demonstrations, strict=True)]
    return np.concatenate(
        [pairs.mean(0), pairs.min(0), [sizes[1], sizes[0], len(demonstrations) / 5]], dtype=np.float32
    )


def _describe_pair(source: Grid, target: Grid) -> list[float]:
    return [
        *_compare_sizes(source, target),
        *_compare_colors(source, target),
        *_describe_changes(source, target),
        *_compare_objects(source, target),
        *_compare_parts(source, target),
        *_find_symmetries(source),
        *_find_symmetries(target),
        _is_part(target, source),
        _is_part(source, target),
    ]


def _compare_sizes(source: Grid, target: Grid) -> list[float]:
    (height, width), (rows, columns) = source.shape, target.shape
    return [
        source.shape == target.shape,
        height == rows,
        width == columns,
        math.log(rows / height),
        math.log(columns / width),
        rows % height == 0 and columns % width == 0,
        height % rows == 0 and width % columns == 0,
        target.size > source.size,
        min(target.shape) == 1,
        target.size == 1,
        target.shape == (3, 3),
        rows == columns,
        height == width,
        math.log(source.size) / LARGEST_SIDE_LOG,
    ]


def _compare_colors(source: Grid, target: Grid) -> list[float]:
    before, after = count_colors(source), count_colors(target)
    had, has = before > 0, after > 0
    return [
        (had & has).sum() / has.sum(),
        (had & ~has).sum() / 5,
        (~had & has).sum() / 3,
        had.sum() / 5,
        has.sum() / 5,
        before[0] / source.size,
        after[0] / target.size,
    ]


def _describe_changes(source: Grid, target: Grid) -> list[float]:
    """Describe the cells that change where the shape stays: share, colors, and whether they are enclosed."""
    if source.shape != target.shape:
        return [0.0] * 5
    changed = source != target
    number = max(1, int(changed.sum()))
    return [
        changed.mean(),
        (source[changed] == 0).sum() / number,
        (target[changed] == 0).sum() / number,
        len(np.unique(target[changed])) / 5,
        find_enclosed(source == 0)[changed].sum() / number,
    ]


def _compare_objects(source: Grid, target: Grid) -> list[float]:
    figures, pieces = find_objects(source, "figure"), find_objects(source, "piece")
    box = find_box(source > 0)
    return [
        box is not None and source[box].shape == target.shape,
        any(one.mask.shape == target.shape for one in figures),
        math.log1p(len(figures)) / MANY_OBJECTS_LOG,
        math.log1p(len(pieces)) / MANY_OBJECTS_LOG,
        len(pieces) > len(figures),
    ]


def _compare_parts(source: Grid, target: Grid) -> list[float]:
    (height, width), parts = source.shape, find_parts(source)
    return [
        parts is not None,
        parts is not None and parts.grids[0].shape == target.shape,
        parts is not None and (len(parts.rows), len(parts.columns)) == target.shape,
        (height, width // 2) == target.shape,
        (height // 2, width) == target.shape,
    ]


def _find_symmetries(grid: Grid) -> list[float]:
    return [np.array_equal(grid, image) for image in (grid.T, grid[:, ::-1], grid[::-1])]


def _is_part(small: Grid, large: Grid) -> float:
    """Return whether a grid is a part of a larger one."""
    if (
        small.shape == large.shape
        or large.size > LARGEST_AREA
        or any(a > b for a, b in zip(small.shape, large.shape, strict=True))
    ):
        return 0.0
    return float((sliding_window_view(large, small.shape) == small).all((2, 3)).any())


_DOT = np.zeros((1, 1), dtype=np.uint8)
STATISTICS = 2 * len(_describe_pair(_DOT, _DOT)) + 3
