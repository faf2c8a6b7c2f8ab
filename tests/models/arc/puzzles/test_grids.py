"""Grids: their symmetries, and how puzzles are stored."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import lists

from searchlight.models.arc.puzzles import Grid, Puzzle, hash_puzzles, pack_grids, transform, unpack_grids
from tests.models.arc.grids import grids_of


def test_the_eight_symmetries_differ() -> None:
    grid = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert len({(turned.shape, turned.tobytes()) for turned in (transform(grid, s) for s in range(8))}) == 8


def test_the_digest_depends_on_every_cell_and_shape() -> None:
    grid, other = (np.array([cells], dtype=np.uint8) for cells in ([1, 2, 3, 4], [1, 2, 3, 5]))
    pairs = ((grid, grid),)
    variants = [
        Puzzle("a", pairs, pairs),
        Puzzle("b", pairs, pairs),
        Puzzle("a", pairs, ((grid, other),)),
        Puzzle("a", pairs, ((grid, grid.reshape(2, 2)),)),
        Puzzle("a", pairs * 2, ()),
    ]
    assert len({hash_puzzles([variant]) for variant in variants}) == len(variants)
    assert hash_puzzles([variants[0]]) == hash_puzzles([Puzzle("a", ((grid.copy(), grid),), pairs)])
    assert len(hash_puzzles([])) == 64


@settings(max_examples=30)
@given(lists(grids_of(30), max_size=3))
def test_grids_of_any_size_come_back_from_one_array(grids: list[Grid]) -> None:
    made = pack_grids(grids)
    assert made.shape == (len(grids), 30, 30)
    assert [grid.tolist() for grid in unpack_grids(made)] == [grid.tolist() for grid in grids]


@pytest.mark.parametrize(
    "cells",
    [{}, {(1, 1): 3}, {(0, 0): 1, (0, 2): 1}, {(0, 0): 10}, {(0, 0): -2}, {(0, 0): 1, (0, 1): 1, (1, 0): 1}],
)
def test_an_array_that_holds_no_grid_is_refused(cells: dict[tuple[int, int], int]) -> None:
    array = np.full((1, 30, 30), -1)
    for place, color in cells.items():
        array[0][place] = color
    with pytest.raises(ValueError, match="grid 0 must be a rectangle of colors"):
        unpack_grids(array)
