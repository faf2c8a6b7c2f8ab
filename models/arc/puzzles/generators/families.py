"""The families of the puzzles of this project's own making: a rule each, and inputs that show it.

A family draws the parameters of its rule once per puzzle, then inputs for it. The level moves everything that
makes a puzzle hard: the size of the grids, the number of colours and objects, and what the rule must tell apart.
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
        return self.between(SMALLEST_SIDE, self.max_side)

    def between(self, low: int, high: int) -> int:
        """Return the number that lies between two others as the level lies between 0 and 1."""
        return round(low + self.level * (high - low))

    def one_of(self, low: int, high: int) -> int:
        """Draw a random number, both ends included."""
        return int(self.random.integers(low, high + 1))

    def palette(self, count: int) -> list[int]:
        """Draw different colours, none of them the background."""
        return [int(colour) for colour in self.random.permutation(np.arange(1, 10))[:count]]

    def empty(self, smallest: int | None = None, largest: int | None = None) -> Grid:
        """Make a grid of background with sides in the given range, by default the largest of this level."""
        largest = self.side if largest is None else largest
        smallest = max(4, largest - 2) if smallest is None else smallest
        return np.zeros((self.one_of(smallest, largest), self.one_of(smallest, largest)), dtype=np.uint8)

    def scatter(self, grid: Grid, palette: list[int], share: float) -> Grid:
        """Colour a share of a grid's cells at random."""
        marked = self.random.random(grid.shape) < share
        colours = np.array(palette, dtype=np.uint8)[self.random.integers(len(palette), size=grid.shape)]
        return np.where(marked, colours, grid)

    def boxes(self, grid: Grid, count: int, smallest: int, largest: int) -> list[Grid]:
        """Choose rectangles of a grid that do not touch each other: views of at most `count`, at least one."""
        taken = np.zeros(grid.shape, dtype=bool)
        found: list[Grid] = []
        for _ in range(4 * count):
            height, width = (self.one_of(smallest, min(largest, side)) for side in grid.shape)
            top, left = self.one_of(0, grid.shape[0] - height), self.one_of(0, grid.shape[1] - width)
            if len(found) < count and not taken[top : top + height, left : left + width].any():
                taken[max(0, top - 1) : top + height + 1, max(0, left - 1) : left + width + 1] = True
                found.append(grid[top : top + height, left : left + width])
        return found

    def specks(self, grid: Grid, palette: list[int], count: int) -> None:
        """Colour some cells, at most `count`, that touch nothing."""
        for _ in range(count):
            free = np.flatnonzero(~_near(grid != 0) & (grid == 0))
            if free.size:
                grid.flat[self.random.choice(free)] = self.random.choice(palette)

    def until(self, good: Callable[[Grid], bool], sketch: Sketch) -> Sketch:
        """Make a sketch that draws again until the grid is good."""

        def drawn() -> Grid:
            for _ in range(TRIES):
                if good(grid := sketch()):
                    return grid
            raise RuntimeError(f"{TRIES} grids at level {self.level} were no good")

        return drawn


def _recolour(draft: Draft) -> tuple[Sketch, Rule]:
    colours = draft.palette(9)
    palette, changed = colours[: draft.between(2, 5)], draft.between(1, 3)
    names = np.arange(10, dtype=np.uint8)
    names[palette[:changed]] = colours[-changed:]
    return lambda: draft.scatter(draft.empty(), palette, 0.5), lambda grid: names[grid]


def _flip(draft: Draft) -> tuple[Sketch, Rule]:
    axis = draft.one_of(0, 1)
    return _turned(draft), lambda grid: np.flip(grid, axis)


def _rotate(draft: Draft) -> tuple[Sketch, Rule]:
    turns = draft.one_of(1, 3)
    return _turned(draft), lambda grid: np.rot90(grid, turns)


def _transpose(draft: Draft) -> tuple[Sketch, Rule]:
    turns = 2 * draft.one_of(0, 1)
    return _turned(draft), lambda grid: np.rot90(grid, turns).T


def _tile(draft: Draft) -> tuple[Sketch, Rule]:
    shapes = [(1, 2), (2, 1), (2, 2), (2, 3), (3, 2), (3, 3)]
    repeats = shapes[min(draft.one_of(0, 1) + draft.between(0, 4), 5 if draft.side >= 9 else 2)]
    palette, largest = draft.palette(draft.between(3, 6)), draft.side // max(repeats)
    sketch = draft.until(_lopsided, lambda: draft.scatter(draft.empty(2, largest), palette, 0.7))
    return sketch, lambda grid: np.tile(grid, repeats)


def _enlarge(draft: Draft) -> tuple[Sketch, Rule]:
    factor = draft.between(2, 3) if draft.side >= 9 else 2
    palette = draft.palette(draft.between(3, 6))

    def sketch() -> Grid:
        return draft.scatter(draft.empty(2, draft.side // factor), palette, 0.6)

    return sketch, lambda grid: grid.repeat(factor, 0).repeat(factor, 1)


def _crop(draft: Draft) -> tuple[Sketch, Rule]:
    wanted, *others = draft.palette(draft.between(2, 5))
    several = draft.level >= 0.5

    def sketch() -> Grid:
        grid = draft.empty()
        for number, box in enumerate(draft.boxes(grid, 1 + several, 2, max(2, draft.side // 2))):
            colours = ([wanted] if number == 0 else others) if several else [wanted, *others]
            box[:] = draft.scatter(box, colours, 0.8)
        return grid

    def rule(grid: Grid) -> Grid:
        rows, columns = np.nonzero(grid == wanted if several else grid)
        return grid[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]

    def clear(grid: Grid) -> bool:
        return bool((grid == wanted).any()) and (not several or bool(np.isin(grid, others).any()))

    return draft.until(clear, sketch), rule


def _gravity(draft: Draft) -> tuple[Sketch, Rule]:
    turns = draft.one_of(0, 3) if draft.level >= 0.5 else 0
    palette = draft.palette(draft.between(1, 6))

    def rule(grid: Grid) -> Grid:
        turned = np.rot90(grid, turns)
        fallen = np.take_along_axis(turned, np.argsort(turned != 0, axis=0, kind="stable"), axis=0)
        return np.rot90(fallen, -turns)

    return lambda: draft.scatter(draft.empty(), palette, 0.3), rule


def _fill(draft: Draft) -> tuple[Sketch, Rule]:
    colour, *palette = draft.palette(draft.between(3, 6))

    def sketch() -> Grid:
        grid = draft.empty()
        for box in draft.boxes(grid, draft.between(2, 4), 3, max(3, draft.side // 2)):
            box[:] = draft.random.choice(palette)
            box[1:-1, 1:-1] = 0
            if draft.random.random() < draft.level / 3:
                box[draft.one_of(1, box.shape[0] - 2), 0] = 0  # an open box holds nothing
        draft.specks(grid, palette, draft.between(1, 4))
        return grid

    return sketch, lambda grid: np.where(_enclosed(grid == 0), np.uint8(colour), grid)


def _outline(draft: Draft) -> tuple[Sketch, Rule]:
    colour, *palette = draft.palette(draft.between(3, 6))

    def sketch() -> Grid:
        grid = draft.empty()
        for box in draft.boxes(grid, draft.between(2, 4), 1, draft.between(2, 4)):
            box[:] = draft.random.choice(palette)
        return grid

    return sketch, lambda grid: np.where((grid == 0) & _near(grid != 0), np.uint8(colour), grid)


def _most_common(draft: Draft) -> tuple[Sketch, Rule]:
    palette = draft.palette(draft.between(2, 5))

    def clear(grid: Grid) -> bool:
        counts = np.sort(_counts(grid))
        return bool(counts[-1] > counts[-2])

    sketch = draft.until(clear, lambda: draft.scatter(draft.empty(), palette, 0.7))
    return sketch, lambda grid: np.full((1, 1), 1 + _counts(grid).argmax(), dtype=np.uint8)


def _count(draft: Draft) -> tuple[Sketch, Rule]:
    wanted, *others = draft.palette(draft.between(1, 4))

    def sketch() -> Grid:
        grid = draft.empty()
        places = draft.random.permutation(grid.size)
        count = draft.one_of(1, draft.between(3, draft.side))
        grid.flat[places[:count]] = wanted
        if others:
            grid.flat[places[count : 2 * count]] = draft.random.choice(others, min(count, grid.size - count))
        return grid

    return sketch, lambda grid: np.full((1, int((grid == wanted).sum())), wanted, dtype=np.uint8)


def _shift(draft: Draft) -> tuple[Sketch, Rule]:
    steps = draft.one_of(1, draft.between(1, 3)) * (1 if draft.random.random() < 0.5 else -1)
    axis, palette, size = draft.one_of(0, 1), draft.palette(draft.between(1, 6)), draft.empty()

    def turns_once(grid: Grid) -> bool:
        return not any(np.array_equal(np.roll(grid, step, axis), grid) for step in range(1, grid.shape[axis]))

    # Grids of one size: a shift by 3 of 4 columns is one by 1 the other way, and of 5 columns it is not.
    return draft.until(turns_once, lambda: draft.scatter(size, palette, 0.3)), lambda grid: np.roll(grid, steps, axis)


def _mirror(draft: Draft) -> tuple[Sketch, Rule]:
    upright, palette = draft.random.random() < 0.5, draft.palette(draft.between(1, 6))

    def sketch() -> Grid:
        half = np.zeros((draft.one_of(4, draft.side), draft.one_of(2, draft.side // 2)), dtype=np.uint8)
        half = draft.until(_lopsided, lambda: draft.scatter(half, palette, 0.5))()
        whole = np.concatenate([half, np.zeros_like(half)], axis=1)
        return whole.T if upright else whole

    def rule(grid: Grid) -> Grid:
        lying = grid.T if upright else grid
        half = lying[:, : lying.shape[1] // 2]
        whole = np.concatenate([half, half[:, ::-1]], axis=1)
        return whole.T if upright else whole

    return sketch, rule


def _line(draft: Draft) -> tuple[Sketch, Rule]:
    axis, palette = draft.one_of(0, 1), draft.palette(draft.between(2, 5))

    def sketch() -> Grid:
        grid = draft.empty()
        count = min(draft.between(2, 4), *grid.shape)
        rows, columns = (draft.random.permutation(side)[:count] for side in grid.shape)
        grid[rows, columns] = draft.random.choice(palette, count)
        return grid

    return sketch, lambda grid: np.broadcast_to(grid.max(axis=axis, keepdims=True), grid.shape)


def _denoise(draft: Draft) -> tuple[Sketch, Rule]:
    palette = draft.palette(draft.between(2, 5))

    def sketch() -> Grid:
        grid = draft.empty()
        for box in draft.boxes(grid, draft.between(1, 3), 2, max(2, draft.side // 2)):
            box[:] = draft.random.choice(palette)
        draft.specks(grid, palette, draft.between(1, 6))
        return grid

    return sketch, lambda grid: np.where(_near(grid != 0), grid, np.uint8(0))


def _turned(draft: Draft) -> Sketch:
    """Make grids that show how they were turned."""
    palette = draft.palette(draft.between(2, 6))
    return draft.until(_lopsided, lambda: draft.scatter(draft.empty(), palette, 0.6))


def _lopsided(grid: Grid) -> bool:
    """Return whether no turn and no reflection leaves the grid as it is."""
    return not any(np.array_equal(transform(grid, symmetry), grid) for symmetry in range(1, SYMMETRIES))


def _counts(grid: Grid) -> NDArray[np.int64]:
    """Count the cells of colours 1, 2, ..., 9."""
    return np.bincount(grid.ravel(), minlength=10)[1:]


def _near(cells: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Find the cells of which one of the eight around is among the given ones."""
    height, width = cells.shape
    padded = np.pad(cells, 1)
    around = [padded[i : i + height, j : j + width] for i in range(3) for j in range(3) if (i, j) != (1, 1)]
    near: NDArray[np.bool_] = np.logical_or.reduce(around)
    return near


def _enclosed(free: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Find the free cells from which no way over free neighbours leads out of the grid."""
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


FAMILIES: Mapping[str, Callable[[Draft], tuple[Sketch, Rule]]] = {
    "count": _count,
    "crop": _crop,
    "denoise": _denoise,
    "enlarge": _enlarge,
    "fill": _fill,
    "flip": _flip,
    "gravity": _gravity,
    "line": _line,
    "mirror": _mirror,
    "most_common": _most_common,
    "outline": _outline,
    "recolour": _recolour,
    "rotate": _rotate,
    "shift": _shift,
    "tile": _tile,
    "transpose": _transpose,
}
# Rules whose outputs have their input's shape, and that look at a cell's surroundings, row or column.
EASY = ("denoise", "fill", "gravity", "line", "mirror", "outline", "recolour", "shift")
