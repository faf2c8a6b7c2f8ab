import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import array_shapes, arrays
from hypothesis.strategies import integers, lists

from models.arc import Grid, Puzzle, digest, from_arrays, to_arrays


def test_the_digest_depends_on_every_cell_and_shape() -> None:
    grid = np.array([[1, 2, 3, 4]], dtype=np.uint8)
    other = grid.copy()
    other[0, 3] = 5
    variants = [
        Puzzle("a", ((grid, grid),), ((grid, grid),)),
        Puzzle("b", ((grid, grid),), ((grid, grid),)),
        Puzzle("a", ((grid, grid),), ((grid, other),)),
        Puzzle("a", ((grid, grid),), ((grid, grid.reshape(2, 2)),)),
        Puzzle("a", ((grid, grid), (grid, grid)), ()),
    ]
    assert len({digest([variant]) for variant in variants}) == len(variants)
    assert digest([variants[0]]) == digest([Puzzle("a", ((grid.copy(), grid),), ((grid, grid),))])
    assert len(digest([])) == 64


@given(lists(arrays(np.uint8, array_shapes(min_dims=2, max_dims=2, max_side=30), elements=integers(0, 9)), max_size=3))
def test_grids_of_any_size_come_back_from_one_array(grids: list[Grid]) -> None:
    made = to_arrays(grids)
    assert made.shape == (len(grids), 30, 30)
    assert [grid.tolist() for grid in from_arrays(made)] == [grid.tolist() for grid in grids]


@pytest.mark.parametrize(
    "cells",
    [{}, {(1, 1): 3}, {(0, 0): 1, (0, 2): 1}, {(0, 0): 10}, {(0, 0): -2}, {(0, 0): 1, (0, 1): 1, (1, 0): 1}],
)
def test_an_array_that_holds_no_grid_is_refused(cells: dict[tuple[int, int], int]) -> None:
    array = np.full((1, 30, 30), -1)
    for place, colour in cells.items():
        array[0][place] = colour
    with pytest.raises(ValueError, match="grid 0 must be a rectangle of colours"):
        from_arrays(array)
