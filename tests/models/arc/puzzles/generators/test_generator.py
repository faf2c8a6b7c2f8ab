"""Every family is tested by a second, slow implementation of its rule, or by what must hold of its pairs."""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, sampled_from

from searchlight.models.arc.puzzles import SYMMETRIES, Grid, Pair, Puzzle, hash_puzzles, transform
from searchlight.models.arc.puzzles.contamination import find_leaks
from searchlight.models.arc.puzzles.generators import generator
from searchlight.models.arc.puzzles.generators.generator import EASY, FAMILIES, generate, generate_split

Cell = tuple[int, int]


def colors(pairs: tuple[Pair, ...]) -> set[int]:
    return {int(cell) for pair in pairs for grid in pair for cell in grid.ravel()}


def made(family: str) -> list[Puzzle]:
    """Puzzles of one family, of all levels and of several sizes."""
    places = product(range(4), (0, 0.4, 0.7, 1), (6, 13))
    return [generate(family, level, seed, max_side) for seed, level, max_side in places]


def around(cell: Cell, grid: Grid, corners: bool = True) -> set[Cell]:
    """The neighbors of a cell that lie in the grid."""
    steps = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i or j) and (corners or not (i and j))]
    cells = {(cell[0] + i, cell[1] + j) for i, j in steps}
    return {(i, j) for i, j in cells if 0 <= i < grid.shape[0] and 0 <= j < grid.shape[1]}


def crop(grid: Grid, wanted: int) -> Grid:
    rows, columns = ((grid == wanted) if wanted else (grid > 0)).nonzero()
    return grid[min(rows) : max(rows) + 1, min(columns) : max(columns) + 1] if rows.size else grid[:0]


def fall(grid: Grid, turns: int) -> Grid:
    columns = [[0] * int((line == 0).sum()) + line[line != 0].tolist() for line in np.rot90(grid, turns).T]
    return np.rot90(np.array(columns).T, -turns)


def paint(grid: Grid, color: int, cells: Callable[[Grid], set[Cell]]) -> Grid:
    result = grid.copy()
    for cell in cells(grid):
        result[cell] = color
    return result


def enclosed(grid: Grid) -> set[Cell]:
    free = {(int(i), int(j)) for i, j in np.argwhere(grid == 0)}
    edge = [cell for cell in free if len(around(cell, grid, corners=False)) < 4]
    while edge:
        cell = edge.pop()
        free.discard(cell)
        edge += around(cell, grid, corners=False) & free
    return free


def bordering(grid: Grid) -> set[Cell]:
    objects = {(int(i), int(j)) for i, j in np.argwhere(grid)}
    return set().union(*(around(cell, grid) for cell in objects)) - objects


def lonely(grid: Grid) -> set[Cell]:
    return {(i, j) for i, j in np.argwhere(grid) if not any(grid[cell] for cell in around((i, j), grid))}


def lines(grid: Grid, axis: int) -> Grid:
    result = grid.copy()
    for row, column in np.argwhere(grid):
        result[(slice(None), column) if axis == 0 else (row, slice(None))] = grid[row, column]
    return result


def most_common(grid: Grid, _: int) -> Grid:
    """The most common color, or nothing where two are as common."""
    (first, most), *others = Counter(grid[grid > 0].tolist()).most_common(2)
    return grid[:0] if any(count == most for _, count in others) else np.array([[first]])


def recolored(pairs: tuple[Pair, ...]) -> bool:
    names = {(int(a), int(b)) for pair in pairs for a, b in zip(*map(np.ravel, pair), strict=True)}
    return len({old for old, _ in names}) == len(names) and any(old != new for old, new in names)


STEPS = [(axis, step) for axis in (0, 1) for step in (-3, -2, -1, 1, 2, 3)]
Rule = Callable[[Grid, Any], Grid]
# What each family does to a grid, by a parameter of which the demonstrations leave one.
RULES: dict[str, tuple[Rule, Iterable[Any]]] = {
    "count": (lambda grid, color: np.full((1, (grid == color).sum()), color), range(1, 10)),
    "crop": (crop, range(10)),
    "denoise": (lambda grid, color: paint(grid, color, lonely), [0]),
    "enlarge": (lambda grid, factor: np.kron(grid, np.ones((factor, factor), np.uint8)), (2, 3)),
    "fill": (lambda grid, color: paint(grid, color, enclosed), range(1, 10)),
    "flip": (transform, (5, 7)),
    "gravity": (fall, range(4)),
    "line": (lines, (0, 1)),
    "mirror": (lambda grid, axis: np.maximum(grid, np.flip(grid, axis)), (0, 1)),
    "most_common": (most_common, [0]),
    "outline": (lambda grid, color: paint(grid, color, bordering), range(1, 10)),
    "rotate": (transform, (1, 2, 3)),
    "shift": (lambda grid, move: np.roll(grid, move[1], move[0]), STEPS),
    "tile": (np.tile, [(1, 2), (2, 1), (2, 2), (2, 3), (3, 2), (3, 3)]),
    "transpose": (transform, (4, 6)),
}


def holds(family: str, pairs: tuple[Pair, ...]) -> bool:
    """Whether the demonstrations leave one rule of the family, or of all symmetries, and it answers the test."""
    if family == "recolour":
        return recolored(pairs)
    rule, own = RULES[family]
    tried = range(SYMMETRIES) if rule is transform else own
    fits = [p for p in tried if all(np.array_equal(rule(source, p), target) for source, target in pairs[:-1])]
    return len(fits) > 0 and all(p in own and np.array_equal(rule(pairs[-1][0], p), pairs[-1][1]) for p in fits)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_demonstrations_determine_the_rule_of_all_pairs(family: str) -> None:
    assert [puzzle.id for puzzle in made(family) if not holds(family, puzzle.pairs)] == []


@settings(max_examples=60)
@given(sampled_from(list(FAMILIES)), floats(0, 1), integers(6, 30), integers(0, 2**32))
def test_a_puzzle_of_any_level_fits_and_shows_all_it_asks(family, level, max_side, seed) -> None:
    puzzle = generate(family, level, seed, max_side)
    assert puzzle.side <= max_side
    assert len(puzzle.demonstrations) in (3, 4)
    assert len(puzzle.tests) == 1
    assert all(source.any() and not np.array_equal(source, target) for source, target in puzzle.pairs)
    assert all(grid.dtype == np.uint8 and grid.flags.c_contiguous for pair in puzzle.pairs for grid in pair)
    assert len({(source.shape, source.tobytes()) for source, _ in puzzle.pairs}) == len(puzzle.pairs)
    assert colors(puzzle.tests) <= colors(puzzle.demonstrations)


def test_a_puzzle_depends_on_its_seed_alone() -> None:
    assert hash_puzzles([generate("fill", 0.5, 3)]) == hash_puzzles([generate("fill", 0.5, np.random.default_rng(3))])
    assert hash_puzzles([generate("fill", 0.5, 3)]) != hash_puzzles([generate("fill", 0.5, 4)])
    assert generate("fill", 0.5, 3, number=7).id == "fill-0.50-7"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_higher_level_has_larger_grids_and_more_colors(family: str) -> None:
    easy, hard = ([generate(family, level, seed, max_side=15).pairs for seed in range(10)] for level in (0, 1))

    def cells(pairs: tuple[Pair, ...]) -> int:
        return sum(source.size + target.size for source, target in pairs)

    assert sum(map(cells, easy)) < sum(map(cells, hard))
    assert sum(len(colors(pairs)) for pairs in easy) < sum(len(colors(pairs)) for pairs in hard)


@pytest.mark.parametrize(
    ("families", "max_side"),
    [pytest.param(list(FAMILIES), 12, id="all"), pytest.param(list(EASY), 6, id="easy", marks=pytest.mark.slow)],
)
def test_splits_have_all_families_and_levels_and_no_leak(
    families: list[str], max_side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels: dict[tuple[str, int], float] = {}  # by family and number, since a puzzle does not keep its level
    draw = generator._draw

    def record(family: str, number: int, level: float, *others: int) -> Puzzle:
        levels[family, number] = level
        return draw(family, number, level, *others)

    monkeypatch.setattr(generator, "_draw", record)
    training, evaluation = (generate_split(split, max_side, families) for split in ("training", "evaluation"))
    for puzzles, count in ((training, 400), (evaluation, 96)):
        assert Counter(p.id.split("-")[0] for p in puzzles) == dict.fromkeys(families, count // len(families))
        assert len({puzzle.id for puzzle in puzzles}) == count
    parts = (0, 400 // len(families)), (400 // len(families), 496 // len(families))
    for family, (first, end) in product(families, parts):
        known = [levels[family, number] for number in range(first, end)]
        assert known == pytest.approx(np.linspace(0, 1, len(known)))
    assert not find_leaks(training, evaluation)
