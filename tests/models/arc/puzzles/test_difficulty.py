import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import lists

from searchlight.models.arc.puzzles import Grid, Puzzle, count_objects, load_puzzles
from searchlight.models.arc.puzzles.difficulty import estimate_difficulty, rank_difficulties
from tests.models.arc.grids import grids_of

GRIDS = grids_of(9, max_color=3)


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


@settings(max_examples=50)
@given(lists(GRIDS, max_size=4))
def test_objects_are_connected_cells_of_one_color(grids: list[Grid]) -> None:
    snake = np.ones((30, 30), dtype=np.uint8)
    snake[1::4, :-1] = snake[3::4, 1:] = 0
    assert [*map(count_objects, [*grids, snake, 1 - snake])] == [*map(objects, grids), 1, 15]


def test_the_difficulty_is_the_mean_of_what_it_names() -> None:
    source = np.array([[1, 0, 2], [1, 0, 2]], dtype=np.uint8)
    target = source.copy()
    target[0, 1] = 3
    area, seen = math.log(6) / math.log(900), math.log1p(2) / math.log1p(100)
    same = Puzzle("a", ((source, target),), ((source, target),))
    assert estimate_difficulty(same) == pytest.approx((area + 4 / 10 + seen + 1 / 6 + 0) / 5)
    reshaped = Puzzle("a", ((source, target[:1]), (source, target)), ((source, target),))
    assert estimate_difficulty(reshaped) == pytest.approx((area + 4 / 10 + seen + (1 + 1 / 6) / 2 + 1 / 2) / 5)


def test_the_answers_are_not_looked_at() -> None:
    for puzzle in load_puzzles("arc-agi-1", "evaluation", max_side=6):
        blank = tuple((np.zeros_like(source), np.zeros((1, 1), dtype=np.uint8)) for source, _ in puzzle.tests)
        assert estimate_difficulty(Puzzle(puzzle.id, puzzle.demonstrations, blank)) == estimate_difficulty(puzzle)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([(0.3, 9), (0.7, 3), (0.5, 3)], [0, 1, 0.5]),
        ([(0.9, 3), (None, 9), (0.1, 3), (None, 3)], [1, 1, 0, 0]),
        ([(None, side) for side in (5, 3, 9, 7, 4)], [0.5, 0, 1, 0.75, 0.25]),
        ([(0.2, 3), (0.2, 3), (0.8, 3)], [0.25, 0.25, 1]),
        ([(None, 3)] * 3, [0.5] * 3),
        ([(None, 3)], [0.5]),
        ([], []),
    ],
)
def test_puzzles_are_placed_by_their_level_or_difficulty(known: list, expected: list[float]) -> None:
    placed = rank_difficulties([with_level(*each) for each in known])
    assert (placed.tolist(), placed.dtype) == (expected, torch.float32)
