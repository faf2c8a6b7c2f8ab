"""The families of the puzzles of this project's own making: a rule each, and inputs that show it.

A family draws the parameters of its rule once per puzzle, then inputs for it. The level moves everything that
makes a puzzle hard: the size of the grids, the number of colors and objects, and what the rule must tell apart.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from searchlight.models.arc.puzzles.puzzle import Grid
from searchlight.models.arc.puzzles.symmetries import SYMMETRIES, transform

SMALLEST_SIDE = 6  # of the longest side; smaller grids have no room for the rules
TRIES = 1000  # a few are needed; a family that needs more is wrong

Rule = Callable[[Grid], Grid]
Sketch = Callable[[], Grid]


@dataclass(frozen=True)
class Draft:
    """What a family draws with.

    Attributes:
        level: 0 for the easiest puzzles, 1 for the hardest.
        max_side: Longest side of a grid.
        random: The only source of randomness.
    """

    level: float
    max_side: int
    random: np.random.Generator

    @property
    def side(self) -> int:
        """Return the longest side at this level."""
        return self.interpolate(SMALLEST_SIDE, self.max_side)

    def interpolate(self, low: int, high: int) -> int:
        """Return the number that lies between two others as the level lies between 0 and 1."""
        return round(low + self.level * (high - low))

    def draw_between(self, low: int, high: int) -> int:
        """Draw a random number, both ends included."""
        return int(self.random.integers(low, high + 1))

    def draw_palette(self, count: int) -> list[int]:
        """Draw different colors, none of them the background."""
        return [int(color) for color in self.random.permutation(np.arange(1, 10))[:count]]

    def make_empty(self, smallest: int | None = None, largest: int | None = None) -> Grid:
        """Make a grid of background with sides in the given range, by default the largest of this level."""
        largest = self.side if largest is None else largest
        smallest = max(4, largest - 2) if smallest is None else smallest
        return np.zeros((self.draw_between(smallest, largest), self.draw_between(smallest, largest)), dtype=np.uint8)

    def scatter(self, grid: Grid, palette: list[int], share: float) -> Grid:
        """Color a share of a grid's cells at random."""
        marked = self.random.random(grid.shape) < share
        colors = np.array(palette, dtype=np.uint8)[self.random.integers(len(palette), size=grid.shape)]
        return np.where(marked, colors, grid)

    def place_boxes(self, grid: Grid, count: int, smallest: int, largest: int) -> list[Grid]:
        """Choose rectangles of a grid that do not touch each other: views of at most `count`, at least one."""
        taken = np.zeros(grid.shape, dtype=bool)
        found: list[Grid] = []
        for _ in range(4 * count):
            height, width = (self.draw_between(smallest, min(largest, side)) for side in grid.shape)
            top, left = self.draw_between(0, grid.shape[0] - height), self.draw_between(0, grid.shape[1] - width)
            if len(found) < count and not taken[top : top + height, left : left + width].any():
                taken[max(0, top - 1) : top + height + 1, max(0, left - 1) : left + width + 1] = True
                found.append(grid[top : top + height, left : left + width])
        return found

    def place_specks(self, grid: Grid, palette: list[int], count: int) -> None:
        """Color some cells, at most `count`, that touch nothing."""
        for _ in range(count):
            free = np.flatnonzero(~_find_near(grid != 0) & (grid == 0))
            if free.size:
                grid.flat[self.random.choice(free)] = self.random.choice(palette)

    def retry_until(self, good: Callable[[Grid], bool], draw_input: Sketch) -> Sketch:
        """Make a sketch that draws again until the grid is good."""

        def draw_good() -> Grid:
            for _ in range(TRIES):
                if good(grid := draw_input()):
                    return grid
            raise RuntimeError(f"{TRIES} grids at level {self.level} were no good")

        return draw_good


def _build_recolor(draft: Draft) -> tuple[Sketch, Rule]:
    colors = draft.draw_palette(9)
    palette, changed = colors[: draft.interpolate(2, 5)], draft.interpolate(1, 3)
    names = np.arange(10, dtype=np.uint8)
    names[palette[:changed]] = colors[-changed:]
    return lambda: draft.scatter(draft.make_empty(), palette, 0.5), lambda grid: names[grid]


def _build_flip(draft: Draft) -> tuple[Sketch, Rule]:
    axis = draft.draw_between(0, 1)
    return _draw_turnable(draft), lambda grid: np.flip(grid, axis)


def _build_rotate(draft: Draft) -> tuple[Sketch, Rule]:
    turns = draft.draw_between(1, 3)
    return _draw_turnable(draft), lambda grid: np.rot90(grid, turns)


def _build_transpose(draft: Draft) -> tuple[Sketch, Rule]:
    turns = 2 * draft.draw_between(0, 1)
    return _draw_turnable(draft), lambda grid: np.rot90(grid, turns).T


def _build_tile(draft: Draft) -> tuple[Sketch, Rule]:
    shapes = [(1, 2), (2, 1), (2, 2), (2, 3), (3, 2), (3, 3)]
    repeats = shapes[min(draft.draw_between(0, 1) + draft.interpolate(0, 4), 5 if draft.side >= 9 else 2)]
    palette, largest = draft.draw_palette(draft.interpolate(3, 6)), draft.side // max(repeats)
    draw_input = draft.retry_until(_is_lopsided, lambda: draft.scatter(draft.make_empty(2, largest), palette, 0.7))
    return draw_input, lambda grid: np.tile(grid, repeats)


def _build_enlarge(draft: Draft) -> tuple[Sketch, Rule]:
    factor = draft.interpolate(2, 3) if draft.side >= 9 else 2
    palette = draft.draw_palette(draft.interpolate(3, 6))

    def draw_input() -> Grid:
        return draft.scatter(draft.make_empty(2, draft.side // factor), palette, 0.6)

    return draw_input, lambda grid: grid.repeat(factor, 0).repeat(factor, 1)


def _build_crop(draft: Draft) -> tuple[Sketch, Rule]:
    wanted, *others = draft.draw_palette(draft.interpolate(2, 5))
    several = draft.level >= 0.5

    def draw_input() -> Grid:
        grid = draft.make_empty()
        for number, box in enumerate(draft.place_boxes(grid, 1 + several, 2, max(2, draft.side // 2))):
            colors = ([wanted] if number == 0 else others) if several else [wanted, *others]
            box[:] = draft.scatter(box, colors, 0.8)
        return grid

    def apply_rule(grid: Grid) -> Grid:
        rows, columns = np.nonzero(grid == wanted if several else grid)
        return grid[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]

    def clear(grid: Grid) -> bool:
        return bool((grid == wanted).any()) and (not several or bool(np.isin(grid, others).any()))

    return draft.retry_until(clear, draw_input), apply_rule


def _build_gravity(draft: Draft) -> tuple[Sketch, Rule]:
    turns = draft.draw_between(0, 3) if draft.level >= 0.5 else 0
    palette = draft.draw_palette(draft.interpolate(1, 6))

    def apply_rule(grid: Grid) -> Grid:
        turned = np.rot90(grid, turns)
        fallen = np.take_along_axis(turned, np.argsort(turned != 0, axis=0, kind="stable"), axis=0)
        return np.rot90(fallen, -turns)

    return lambda: draft.scatter(draft.make_empty(), palette, 0.3), apply_rule


def _build_fill(draft: Draft) -> tuple[Sketch, Rule]:
    color, *palette = draft.draw_palette(draft.interpolate(3, 6))

    def draw_input() -> Grid:
        grid = draft.make_empty()
        for box in draft.place_boxes(grid, draft.interpolate(2, 4), 3, max(3, draft.side // 2)):
            box[:] = draft.random.choice(palette)
            box[1:-1, 1:-1] = 0
            if draft.random.random() < draft.level / 3:
                box[draft.draw_between(1, box.shape[0] - 2), 0] = 0  # an open box holds nothing
        draft.place_specks(grid, palette, draft.interpolate(1, 4))
        return grid

    return draw_input, lambda grid: np.where(_find_enclosed(grid == 0), np.uint8(color), grid)


def _build_outline(draft: Draft) -> tuple[Sketch, Rule]:
    color, *palette = draft.draw_palette(draft.interpolate(3, 6))

    def draw_input() -> Grid:
        grid = draft.make_empty()
        for box in draft.place_boxes(grid, draft.interpolate(2, 4), 1, draft.interpolate(2, 4)):
            box[:] = draft.random.choice(palette)
        return grid

    return draw_input, lambda grid: np.where((grid == 0) & _find_near(grid != 0), np.uint8(color), grid)


def _build_most_common(draft: Draft) -> tuple[Sketch, Rule]:
    palette = draft.draw_palette(draft.interpolate(2, 5))

    def clear(grid: Grid) -> bool:
        counts = np.sort(_count_colors(grid))
        return bool(counts[-1] > counts[-2])

    draw_input = draft.retry_until(clear, lambda: draft.scatter(draft.make_empty(), palette, 0.7))
    return draw_input, lambda grid: np.full((1, 1), 1 + _count_colors(grid).argmax(), dtype=np.uint8)


def _build_count(draft: Draft) -> tuple[Sketch, Rule]:
    wanted, *others = draft.draw_palette(draft.interpolate(1, 4))

    def draw_input() -> Grid:
        grid = draft.make_empty()
        places = draft.random.permutation(grid.size)
        count = draft.draw_between(1, draft.interpolate(3, draft.side))
        grid.flat[places[:count]] = wanted
        if others:
            grid.flat[places[count : 2 * count]] = draft.random.choice(others, min(count, grid.size - count))
        return grid

    return draw_input, lambda grid: np.full((1, int((grid == wanted).sum())), wanted, dtype=np.uint8)


def _build_shift(draft: Draft) -> tuple[Sketch, Rule]:
    steps = draft.draw_between(1, draft.interpolate(1, 3)) * (1 if draft.random.random() < 0.5 else -1)
    axis, palette, size = draft.draw_between(0, 1), draft.draw_palette(draft.interpolate(1, 6)), draft.make_empty()

    def turns_once(grid: Grid) -> bool:
        return not any(np.array_equal(np.roll(grid, step, axis), grid) for step in range(1, grid.shape[axis]))

    # Grids of one size: a shift by 3 of 4 columns is one by 1 the other way, and of 5 columns it is not.
    return draft.retry_until(turns_once, lambda: draft.scatter(size, palette, 0.3)), lambda grid: np.roll(
        grid, steps, axis
    )


def _build_mirror(draft: Draft) -> tuple[Sketch, Rule]:
    upright, palette = draft.random.random() < 0.5, draft.draw_palette(draft.interpolate(1, 6))

    def draw_input() -> Grid:
        half = np.zeros((draft.draw_between(4, draft.side), draft.draw_between(2, draft.side // 2)), dtype=np.uint8)
        half = draft.retry_until(_is_lopsided, lambda: draft.scatter(half, palette, 0.5))()
        whole = np.concatenate([half, np.zeros_like(half)], axis=1)
        return whole.T if upright else whole

    def apply_rule(grid: Grid) -> Grid:
        lying = grid.T if upright else grid
        half = lying[:, : lying.shape[1] // 2]
        whole = np.concatenate([half, half[:, ::-1]], axis=1)
        return whole.T if upright else whole

    return draw_input, apply_rule


def _build_line(draft: Draft) -> tuple[Sketch, Rule]:
    axis, palette = draft.draw_between(0, 1), draft.draw_palette(draft.interpolate(2, 5))

    def draw_input() -> Grid:
        grid = draft.make_empty()
        count = min(draft.interpolate(2, 4), *grid.shape)
        rows, columns = (draft.random.permutation(side)[:count] for side in grid.shape)
        grid[rows, columns] = draft.random.choice(palette, count)
        return grid

    return draw_input, lambda grid: np.broadcast_to(grid.max(axis=axis, keepdims=True), grid.shape)


def _build_denoise(draft: Draft) -> tuple[Sketch, Rule]:
    palette = draft.draw_palette(draft.interpolate(2, 5))

    def draw_input() -> Grid:
        grid = draft.make_empty()
        for box in draft.place_boxes(grid, draft.interpolate(1, 3), 2, max(2, draft.side // 2)):
            box[:] = draft.random.choice(palette)
        draft.place_specks(grid, palette, draft.interpolate(1, 6))
        return grid

    return draw_input, lambda grid: np.where(_find_near(grid != 0), grid, np.uint8(0))


def _draw_turnable(draft: Draft) -> Sketch:
    """Make grids that show how they were turned."""
    palette = draft.draw_palette(draft.interpolate(2, 6))
    return draft.retry_until(_is_lopsided, lambda: draft.scatter(draft.make_empty(), palette, 0.6))


def _is_lopsided(grid: Grid) -> bool:
    """Return whether no turn and no reflection leaves the grid as it is."""
    return not any(np.array_equal(transform(grid, symmetry), grid) for symmetry in range(1, SYMMETRIES))


def _count_colors(grid: Grid) -> NDArray[np.int64]:
    """Count the cells of colors 1, 2, ..., 9."""
    return np.bincount(grid.ravel(), minlength=10)[1:]


def _find_near(cells: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Find the cells of which one of the eight around is among the given ones."""
    height, width = cells.shape
    padded = np.pad(cells, 1)
    around = [padded[i : i + height, j : j + width] for i in range(3) for j in range(3) if (i, j) != (1, 1)]
    near: NDArray[np.bool_] = np.logical_or.reduce(around)
    return near


def _find_enclosed(free: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Find the free cells from which no way over free neighbors leads out of the grid."""
    outside = ~np.pad(np.ones_like(free), 1)
    while True:
        grown = outside.copy()
        grown[1:] |= outside[:-1]
        grown[:-1] |= outside[1:]
        grown[:, 1:] |= outside[:, :-1]
        grown[:, :-1] |= outside[:, 1:]
        grown[1:-1, 1:-1] &= free
        if np.array_equal(grown, outside):
            return free & ~outside[1:-1, 1:-1]
        outside = grown


# A name is part of the puzzles' ids and of the seeds that draw them, so that a renamed family has other puzzles.
FAMILIES: Mapping[str, Callable[[Draft], tuple[Sketch, Rule]]] = {
    "count": _build_count,
    "crop": _build_crop,
    "denoise": _build_denoise,
    "enlarge": _build_enlarge,
    "fill": _build_fill,
    "flip": _build_flip,
    "gravity": _build_gravity,
    "line": _build_line,
    "mirror": _build_mirror,
    "most_common": _build_most_common,
    "outline": _build_outline,
    "recolour": _build_recolor,
    "rotate": _build_rotate,
    "shift": _build_shift,
    "tile": _build_tile,
    "transpose": _build_transpose,
}
# Rules whose outputs have their input's shape, and that look at a cell's surroundings, row or column.
EASY = ("denoise", "fill", "gravity", "line", "mirror", "outline", "recolour", "shift")
