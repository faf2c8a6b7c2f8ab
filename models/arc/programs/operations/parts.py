"""Operations on parts: what full lines of one color separate in a grid."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from searchlight.models.arc.programs.operation import Operation, Transform
from searchlight.models.arc.programs.operations.measures import (
    Mask,
    clip_colors,
    count_colors,
    count_equal,
    find_most_frequent,
    layer,
    rank_values,
)
from searchlight.models.arc.puzzles import Grid

LARGEST_NUMBER = 100  # of parts
Bounds = list[tuple[int, int]]  # the first row of a part and the row after its last one, or columns


class Parts(NamedTuple):
    """The parts of a grid, which lie in rows and columns.

    Attributes:
        rows: The bounds of each row of parts.
        columns: The bounds of each column of parts.
        grids: The parts, row by row.
    """

    rows: Bounds
    columns: Bounds
    grids: list[Grid]

    @property
    def are_equal(self) -> bool:
        """Return whether all parts have the same size."""
        return len({grid.shape for grid in self.grids}) == 1

    def arrange(self, values: Sequence[int]) -> Any:
        """Return one cell for each part."""
        return np.array(values).reshape(len(self.rows), len(self.columns))

    def spread(self, grid: Grid, values: Sequence[int]) -> Any:
        """Return the whole grid with each part in one color, and the lines in color 0."""
        painted = np.zeros_like(grid)
        boxes = [(slice(*rows), slice(*columns)) for rows in self.rows for columns in self.columns]
        for box, value in zip(boxes, values, strict=True):
            painted[box] = value
        return painted


def find_parts(grid: Grid) -> Parts | None:
    """Find the parts between full rows and columns of one color.

    The lines have the lowest color that makes at least two parts. Background is the last choice.
    """
    colors = np.flatnonzero(count_colors(grid))
    for color in (*colors[colors > 0], *colors[colors == 0]):
        lines = grid == color
        rows, columns = _find_bounds(lines.all(1)), _find_bounds(lines.all(0))
        if len(rows) * len(columns) > 1:
            if len(rows) * len(columns) > LARGEST_NUMBER:
                return None
            grids = [grid[top:bottom, left:right] for top, bottom in rows for left, right in columns]
            return Parts(rows, columns, grids)
    return None


def _find_bounds(is_line: Mask) -> Bounds:
    """Return the bounds of the stretches between lines."""
    changes = np.flatnonzero(np.diff(np.concatenate([[True], is_line, [True]])))
    return [(int(start), int(end)) for start, end in changes.reshape(-1, 2)]


def count_cells(grids: Sequence[Grid]) -> list[int]:
    """Return the number of colored cells of each part."""
    return [int(np.count_nonzero(grid)) for grid in grids]


def choose_part(measure: Callable[[Sequence[Grid]], Sequence[int]]) -> Transform:
    """Return an operation that takes the part with the largest measure, the first one of several."""

    def choose(grid: Grid) -> Any:
        parts = find_parts(grid)
        return None if parts is None else parts.grids[int(np.argmax(measure(parts.grids)))]

    return choose


def use_parts(compute: Callable[[Parts, Grid], Any], of_one_size: bool = False) -> Transform:
    """Return an operation that computes a grid from the parts, which must be `of_one_size` if that is asked for."""

    def apply(grid: Grid) -> Any:
        parts = find_parts(grid)
        return None if parts is None or (of_one_size and not parts.are_equal) else compute(parts, grid)

    return apply


def count_by_cell(parts: Parts, _: Grid) -> Any:
    """Count by cell how many parts are colored there."""
    return clip_colors(np.sum([part > 0 for part in parts.grids], axis=0))


def encode_by_cell(parts: Parts, _: Grid) -> Any:
    """Encode by cell which of two or three parts are colored there: 1, 2, 4 and their sums."""
    return sum((part > 0) << index for index, part in enumerate(parts.grids)) if len(parts.grids) <= 3 else None


def mark_fullest(parts: Parts, grid: Grid) -> Any:
    """Paint parts 2 if no part has more colored cells, 3 if none has fewer, 4 if both, else 1."""
    counts = count_cells(parts.grids)
    return parts.spread(grid, [1 + (count == max(counts)) + 2 * (count == min(counts)) for count in counts])


OPERATIONS = (
    Operation("first_part", "take the first part", choose_part(lambda grids: [1] + [0] * (len(grids) - 1))),
    Operation("last_part", "take the last part", choose_part(lambda grids: range(len(grids)))),
    Operation("fullest_part", "take the part with the most colored cells", choose_part(count_cells)),
    Operation(
        "emptiest_part",
        "take the part with the fewest colored cells",
        choose_part(lambda grids: [-count for count in count_cells(grids)]),
    ),
    Operation(
        "odd_part",
        "take the part that is unlike the others",
        choose_part(lambda grids: [-count for count in count_equal([(one.shape, one.tobytes()) for one in grids])]),
    ),
    Operation(
        "most_colorful_part",
        "take the part of the most colors",
        choose_part(lambda grids: [len(np.unique(one)) for one in grids]),
    ),
    Operation(
        "odd_count_part",
        "take the part with the rarest number of colored cells",
        choose_part(lambda grids: [-count for count in count_equal(count_cells(grids))]),
    ),
    Operation(
        "symmetric_part",
        "take the first part that is symmetric left-right",
        choose_part(lambda grids: [int(np.array_equal(one, one[:, ::-1])) for one in grids]),
    ),
    Operation(
        "first_part_on_top",
        "lay all parts over each other, the first on top",
        use_parts(lambda p, _: layer(*p.grids), True),
    ),
    Operation(
        "last_part_on_top",
        "lay all parts over each other, the last on top",
        use_parts(lambda parts, _: layer(*parts.grids[::-1]), True),
    ),
    Operation("count_in_parts", "count the parts that are colored at each cell", use_parts(count_by_cell, True)),
    Operation("compare_parts", "mark which parts are colored at each cell", use_parts(encode_by_cell, True)),
    Operation(
        "summarize_parts",
        "make each part a cell of its most frequent color",
        use_parts(lambda parts, _: parts.arrange([find_most_frequent(part) or 0 for part in parts.grids])),
    ),
    Operation(
        "rank_parts",
        "make each part a cell that ranks its number of colored cells",
        use_parts(lambda parts, _: parts.arrange(clip_colors(rank_values(count_cells(parts.grids))))),
    ),
    Operation(
        "paint_parts_by_count",
        "paint parts by their number of colored cells",
        use_parts(lambda parts, grid: parts.spread(grid, clip_colors(count_cells(parts.grids)))),
    ),
    Operation("mark_fullest_parts", "mark the fullest and the emptiest parts", use_parts(mark_fullest)),
)
