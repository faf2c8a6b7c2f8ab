import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra.numpy import array_shapes, arrays
from hypothesis.strategies import floats, integers, lists

from models.arc import Grid, Puzzle, load_puzzles
from models.arc.difficulty import _objects, difficulty, levels
from models.arc.generators.generator import FAMILIES, generate

GRIDS = arrays(np.uint8, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=integers(0, 3))


def with_level(level: float | None, side: int = 3) -> Puzzle:
    grid = np.ones((side, side), dtype=np.uint8)
    return Puzzle("a", ((grid, grid),), ((grid, grid),), level)


def objects(grid: Grid) -> int:
    """Counted by walking over each of them."""
    left = {(int(row), int(column)) for row, column in np.argwhere(grid)}
    count = 0
    while left:
        count += 1
        edge = [left.pop()]
        while edge:
            row, column = edge.pop()
            around = {(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)} & left
            same = {cell for cell in around if grid[cell] == grid[row, column]}
            left -= same
            edge += same
    return count


@given(lists(GRIDS, max_size=4))
def test_objects_are_connected_cells_of_one_colour(grids: list[Grid]) -> None:
    assert _objects(grids) == [objects(grid) for grid in grids]


def test_a_winding_object_is_one() -> None:
    snake = np.ones((30, 30), dtype=np.uint8)
    snake[1::4, :-1] = 0
    snake[3::4, 1:] = 0
    assert _objects([snake, 1 - snake]) == [1, 15]


def test_the_difficulty_is_the_mean_of_what_it_names() -> None:
    source = np.array([[1, 0, 2], [1, 0, 2]], dtype=np.uint8)
    target = source.copy()
    target[0, 1] = 3
    area, seen = math.log(6) / math.log(900), math.log1p(2) / math.log1p(100)
    same = Puzzle("a", ((source, target),), ((source, target),))
    assert difficulty(same) == pytest.approx((area + 4 / 10 + seen + 1 / 6 + 0) / 5)
    reshaped = Puzzle("a", ((source, target[:1]), (source, target)), ((source, target),))
    assert difficulty(reshaped) == pytest.approx((area + 4 / 10 + seen + (1 + 1 / 6) / 2 + 1 / 2) / 5)


def test_the_answers_are_not_looked_at() -> None:
    for puzzle in load_puzzles("arc-agi-1", "evaluation", max_side=6):
        blank = tuple((np.zeros_like(source), np.zeros((1, 1), dtype=np.uint8)) for source, _ in puzzle.tests)
        assert difficulty(Puzzle(puzzle.id, puzzle.demonstrations, blank)) == difficulty(puzzle)


def test_harder_puzzles_of_most_families_look_harder() -> None:
    easy, hard = (
        [np.mean([difficulty(generate(family, level, seed, 20)) for seed in range(8)]) for family in FAMILIES]
        for level in (0.0, 1.0)
    )
    assert sum(low < high for low, high in zip(easy, hard, strict=True)) >= 14


def test_levels_are_evenly_spread_in_the_order_of_the_difficulty() -> None:
    puzzles = load_puzzles("arc-agi-1", "training", max_side=10)
    placed = levels(puzzles)
    assert placed.dtype == torch.float32
    order = placed.argsort().tolist()
    hardness = [difficulty(puzzles[place]) for place in order]
    assert hardness == sorted(hardness)
    assert torch.allclose(placed.sort().values, torch.linspace(0, 1, len(puzzles)), atol=0.05)
    assert all(0 <= difficulty(puzzle) <= 1 for puzzle in puzzles)


def test_a_puzzle_that_knows_its_level_is_placed_by_it() -> None:
    assert levels([with_level(0.3, side=9), with_level(0.7), with_level(0.5)]).tolist() == [0, 1, 0.5]
    mixed = levels([with_level(0.9), with_level(None, side=9), with_level(0.1), with_level(None, side=3)])
    assert mixed.tolist() == [1, 1, 0, 0]


def test_equals_share_their_place() -> None:
    assert levels([with_level(0.2), with_level(0.2), with_level(0.8)]).tolist() == [0.25, 0.25, 1]
    assert levels([with_level(None)] * 3).tolist() == [0.5] * 3
    assert levels([with_level(None)]).tolist() == [0.5]
    assert levels([]).shape == (0,)


@given(lists(floats(0, 1), min_size=2, max_size=20))
def test_levels_lie_between_0_and_1_and_keep_the_order(known: list[float]) -> None:
    placed = levels([with_level(level) for level in known]).tolist()
    assert all(0 <= place <= 1 for place in placed)
    assert np.mean(placed) == pytest.approx(0.5)
    for one, level in zip(placed, known, strict=True):
        assert all((one < other) == (level < than) for other, than in zip(placed, known, strict=True))
