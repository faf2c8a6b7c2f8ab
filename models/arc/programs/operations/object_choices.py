"""Operations that crop to one object, keep some objects, or list them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from searchlight.models.arc.programs.operation import Operation, Transform
from searchlight.models.arc.programs.operations.objects import (
    CRITERIA,
    GridObject,
    Kind,
    Measure,
    find_objects,
    paint_objects,
)
from searchlight.models.arc.puzzles import LARGEST_SIDE, Grid

# Objects have one color, so that they do not differ in these criteria.
FIGURES_ONLY = ("most_colors", "most_spots")
KEPT = (
    "largest",
    "smallest",
    "odd_shape",
    "common_shape",
    "odd_color",
    "symmetric",
    "most_holes",
    "top",
    "bottom",
    "left",
    "right",
    "fullest_box",
)


def crop_to_object(measure: Measure) -> Transform:
    """Return an operation that crops to the box of the object with the largest measure, all its cells included."""

    def crop(grid: Grid) -> Any:
        objects = find_objects(grid, "object")
        return grid[objects[int(np.argmax(measure(objects)))].box] if objects else None

    return crop


def cut_out_figure(measure: Measure) -> Transform:
    """Return an operation that cuts out the figure with the largest measure, without cells of other figures."""

    def cut(grid: Grid) -> Any:
        figures = find_objects(grid, "figure")
        return figures[int(np.argmax(measure(figures)))].cells if figures else None

    return cut


def keep_best(measure: Measure) -> Transform:
    """Return an operation that keeps the pieces with the largest measure, if there are at least two pieces."""

    def keep(grid: Grid) -> Any:
        pieces = find_objects(grid, "piece")
        if len(pieces) < 2:
            return None
        values = measure(pieces)
        return paint_objects(
            grid, pieces, [one.color * (v == max(values)) for one, v in zip(pieces, values, strict=True)]
        )

    return keep


def keep_if(kind: Kind, is_kept: Callable[[GridObject], bool]) -> Transform:
    """Return an operation that keeps the objects of a kind that fulfill a condition."""

    def keep(grid: Grid) -> Any:
        objects = find_objects(grid, kind)
        return paint_objects(grid, objects, [one.color * is_kept(one) for one in objects]) if objects else None

    return keep


def list_figures(grid: Grid) -> Any:
    figures = sorted(find_objects(grid, "figure"), key=lambda one: -one.size)
    return np.array([[one.color] for one in figures]) if 0 < len(figures) <= LARGEST_SIDE else None


def list_objects(grid: Grid) -> Any:
    objects = sorted(find_objects(grid, "object"), key=lambda one: one.left)
    return np.array([[one.color for one in objects]]) if 0 < len(objects) <= LARGEST_SIDE else None


OPERATIONS = (
    *(
        Operation(f"crop_{name}_object", f"crop to the {words.format('object')}", crop_to_object(measure))
        for name, (words, measure) in CRITERIA.items()
        if name not in FIGURES_ONLY
    ),
    *(
        Operation(f"crop_{name}_figure", f"cut out the {words.format('figure')}", cut_out_figure(measure))
        for name, (words, measure) in CRITERIA.items()
    ),
    *(
        Operation(f"keep_{name}", f"keep the {CRITERIA[name][0].format('pieces')}", keep_best(CRITERIA[name][1]))
        for name in KEPT
    ),
    Operation("drop_single_cells", "drop single cells", keep_if("object", lambda one: one.size > 1)),
    Operation("keep_single_cells", "keep single cells", keep_if("object", lambda one: one.size == 1)),
    Operation("drop_small", "drop pieces of up to three cells", keep_if("piece", lambda one: one.size > 3)),
    Operation("list_figures", "list the figures' colors as a column, the largest first", list_figures),
    Operation("list_objects", "list the objects' colors as a row, from left to right", list_objects),
)
