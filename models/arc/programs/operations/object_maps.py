"""Operations that paint each object by one of its properties, so that the readout can recolor it."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from searchlight.models.arc.programs.operation import Operation, Transform
from searchlight.models.arc.programs.operations.measures import count_colors, count_equal, rank_values
from searchlight.models.arc.programs.operations.objects import GridObject, Kind, Objects, find_objects, paint_objects
from searchlight.models.arc.puzzles import Grid

Property = Callable[[Objects, tuple[int, ...]], Sequence[float]]  # of all objects of a grid, and its shape


def paint_by(kind: Kind, compute: Property) -> Transform:
    """Return an operation that paints the objects of a kind by a property; numbers over 9 become 9."""

    def paint(grid: Grid) -> Any:
        objects = find_objects(grid, kind)
        return paint_objects(grid, objects, compute(objects, grid.shape)) if objects else None

    return paint


def rate_solidity(one: GridObject) -> int:
    """Return 3 for a full square, 2 for another full rectangle, else 1."""
    return 1 + one.fills_box + (one.fills_box and one.mask.shape[0] == one.mask.shape[1])


def find_rarest_color(one: GridObject) -> int:
    """Return the color of the fewest cells of an object, the lowest one of several."""
    counts = count_colors(one.cells, background=False)
    return int(np.where(counts > 0, counts, one.size + 1).argmin())


def fill_boxes(grid: Grid) -> Any:
    filled = grid.copy()
    for one in find_objects(grid, "object"):
        inside = filled[one.box]
        inside[inside == 0] = one.color
    return filled


def paint_boxes(grid: Grid) -> Any:
    painted = np.zeros_like(grid)
    for one in find_objects(grid, "object"):
        painted[one.box] = one.color
    return painted


PROPERTIES: dict[str, tuple[str, Property]] = {
    "size": ("their number of cells", lambda objects, _: [one.size for one in objects]),
    "size_rank": ("the rank of their size, from the largest", lambda all, _: rank_values([one.size for one in all])),
    "size_rank_up": (
        "the rank of their size, from the smallest",
        lambda objects, _: rank_values([one.size for one in objects], descending=False),
    ),
    "holes": ("their number of holes", lambda objects, _: [one.holes + 1 for one in objects]),
    "edge": ("whether they touch the edge", lambda objects, shape: [1 + one.touches_edge(shape) for one in objects]),
    "shape_count": ("the number of equal shapes", lambda objects, _: count_equal([one.shape for one in objects])),
    "height": ("their height", lambda objects, _: [one.mask.shape[0] for one in objects]),
    "width": ("their width", lambda objects, _: [one.mask.shape[1] for one in objects]),
    "solidity": ("whether they are rectangles or squares", lambda objects, _: [*map(rate_solidity, objects)]),
    "symmetry": ("whether they are symmetric", lambda objects, _: [1 + one.is_symmetric for one in objects]),
    "column_order": (
        "their order from left to right",
        lambda objects, _: rank_values([one.left for one in objects], descending=False),
    ),
    "row_order": (
        "their order from top to bottom",
        lambda objects, _: rank_values([one.top for one in objects], descending=False),
    ),
}
OF_FIGURES = ("size", "size_rank", "holes", "shape_count", "symmetry")

OPERATIONS = (
    *(
        Operation(f"paint_{name}_of_pieces", f"paint pieces by {words}", paint_by("piece", compute))
        for name, (words, compute) in PROPERTIES.items()
    ),
    *(
        Operation(
            f"paint_{name}_of_figures",
            f"paint figures by {PROPERTIES[name][0]}",
            paint_by("figure", PROPERTIES[name][1]),
        )
        for name in OF_FIGURES
    ),
    Operation(
        "paint_rarest_of_figures",
        "paint figures in their rarest color",
        paint_by("figure", lambda objects, _: [*map(find_rarest_color, objects)]),
    ),
    Operation(
        "paint_colors_of_figures",
        "paint figures by their number of colors",
        paint_by("figure", lambda objects, _: [one.colors for one in objects]),
    ),
    Operation("fill_boxes", "fill the boxes around objects with their color", fill_boxes),
    Operation("paint_boxes", "paint the boxes of objects, the later ones over the earlier", paint_boxes),
)
