"""Objects: the connected groups of colored cells of a grid, and what distinguishes one of them from the others.

There are three kinds. An *object* has one color, and its cells share edges or corners. The cells of a *piece* have one
color and share edges. A *figure* has any colors but background, and its cells share edges or corners.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from scipy import ndimage

from searchlight.models.arc.programs.operations.measures import (
    CORNERS,
    EDGES,
    Mask,
    clip_colors,
    count_colors,
    count_equal,
    label,
)
from searchlight.models.arc.puzzles import Grid

Kind = Literal["object", "piece", "figure"]

LARGEST_NUMBER = 120  # of objects: a grid with more has no objects, but noise
CACHED_GRIDS = 4096


@dataclass(frozen=True, eq=False)
class GridObject:
    """One connected group of cells.

    Attributes:
        box: The rows and columns of the smallest box around it.
        mask: Its cells in the box, shape (height, width).
        cells: The colors in the box, background for cells that are not its own, shape (height, width).
    """

    box: tuple[slice, slice]
    mask: Mask
    cells: Grid

    @property
    def top(self) -> int:
        """Return the first row."""
        return int(self.box[0].start)

    @property
    def bottom(self) -> int:
        """Return the row after the last."""
        return int(self.box[0].stop)

    @property
    def left(self) -> int:
        """Return the first column."""
        return int(self.box[1].start)

    @property
    def right(self) -> int:
        """Return the column after the last."""
        return int(self.box[1].stop)

    @cached_property
    def size(self) -> int:
        """Return the number of cells."""
        return int(self.mask.sum())

    @cached_property
    def color(self) -> int:
        """Return the most frequent color."""
        return int(count_colors(self.cells, background=False).argmax())

    @cached_property
    def colors(self) -> int:
        """Return the number of colors."""
        return int(np.count_nonzero(count_colors(self.cells, background=False)))

    @cached_property
    def shape(self) -> tuple[tuple[int, ...], bytes]:
        """Return the shape without place and colors, as a value to compare."""
        return self.mask.shape, self.mask.tobytes()

    @cached_property
    def holes(self) -> int:
        """Return the number of holes: groups of cells in the box that the object encloses."""
        return label(np.pad(~self.mask, 1, constant_values=True))[1] - 1

    @cached_property
    def is_symmetric(self) -> bool:
        """Return whether a mirror image, left-right, top-bottom or along the diagonal, equals the object."""
        images = (self.cells[:, ::-1], self.cells[::-1], self.cells.T)
        return any(np.array_equal(image, self.cells) for image in images)

    @property
    def fills_box(self) -> bool:
        """Return whether it is a full rectangle."""
        return self.size == self.mask.size

    def touches_edge(self, shape: tuple[int, ...]) -> bool:
        """Return whether it reaches the edge of a grid of the given shape."""
        return not (self.top and self.left and self.bottom < shape[0] and self.right < shape[1])


Objects = Sequence[GridObject]
Measure = Callable[[Objects], Sequence[float]]


def find_objects(grid: Grid, kind: Kind) -> Objects:
    """Find the objects of one kind, from top to bottom, those of one row from left to right."""
    return _find_objects(np.ascontiguousarray(grid).tobytes(), grid.shape, kind)


# Many operations look for the objects of the same grid.
@lru_cache(maxsize=CACHED_GRIDS)
def _find_objects(cells: bytes, shape: tuple[int, int], kind: Kind) -> Objects:
    grid = np.frombuffer(cells, dtype=np.uint8).reshape(shape)
    found: list[GridObject] = []
    for mask in _list_masks(grid, kind):
        labels, _ = label(mask, EDGES if kind == "piece" else CORNERS)
        for number, box in enumerate(ndimage.find_objects(labels), 1):
            own = labels[box] == number
            found.append(GridObject(box, own, np.where(own, grid[box], 0).astype(np.uint8)))
        if len(found) > LARGEST_NUMBER:
            return ()
    return tuple(sorted(found, key=lambda one: (one.top, one.left)))


def _list_masks(grid: Grid, kind: Kind) -> Iterator[Mask]:
    if kind == "figure":
        yield grid > 0
    else:
        yield from (grid == color for color in np.flatnonzero(count_colors(grid, background=False)))


def paint_objects(grid: Grid, objects: Objects, colors: Sequence[float]) -> Grid:
    """Return an empty grid with each object in its new color; numbers over 9 become 9."""
    painted = np.zeros_like(grid)
    for one, color in zip(objects, colors, strict=True):
        painted[one.box][one.mask] = clip_colors(int(color))
    return painted


def _count_other_cells(one: GridObject) -> int:
    return one.size - int(count_colors(one.cells, background=False).max())


# What an object is chosen by: words, with {} for its kind, and a measure that is largest for the chosen one.
CRITERIA: dict[str, tuple[str, Measure]] = {
    "largest": ("largest {}", lambda objects: [one.size for one in objects]),
    "smallest": ("smallest {}", lambda objects: [-one.size for one in objects]),
    "most_colors": ("{} of the most colors", lambda objects: [one.colors * 1000 + one.size for one in objects]),
    "most_spots": ("{} with the most cells of other colors", lambda objects: [*map(_count_other_cells, objects)]),
    "odd_shape": ("{} of the rarest shape", lambda objects: [-n for n in count_equal([one.shape for one in objects])]),
    "common_shape": ("{} of the commonest shape", lambda objects: count_equal([one.shape for one in objects])),
    "odd_color": ("{} of the rarest color", lambda objects: [-n for n in count_equal([one.color for one in objects])]),
    "common_color": ("{} of the commonest color", lambda objects: count_equal([one.color for one in objects])),
    "symmetric": ("symmetric {}", lambda objects: [one.is_symmetric for one in objects]),
    "asymmetric": ("asymmetric {}", lambda objects: [not one.is_symmetric for one in objects]),
    "most_holes": ("{} with the most holes", lambda objects: [one.holes for one in objects]),
    "top": ("topmost {}", lambda objects: [-one.top for one in objects]),
    "bottom": ("lowest {}", lambda objects: [one.bottom for one in objects]),
    "left": ("leftmost {}", lambda objects: [-one.left for one in objects]),
    "right": ("rightmost {}", lambda objects: [one.right for one in objects]),
    "largest_box": ("{} with the largest box", lambda objects: [one.mask.size for one in objects]),
    "odd_size": ("{} of the rarest size", lambda objects: [-n for n in count_equal([one.size for one in objects])]),
    "fullest_box": (
        "{} that fills its box best",
        lambda objects: [one.size / one.mask.size + one.size * 1e-4 for one in objects],
    ),
}
