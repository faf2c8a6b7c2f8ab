import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from models.arc import BORDER, FIRST_COLOUR, PAD, SYMBOLS, to_canvas, to_grid
from models.arc.canvas import to_canvases

grids = arrays(np.uint8, st.tuples(st.integers(1, 12), st.integers(1, 12)), elements=st.integers(0, 9))


@given(grids, st.integers(0, 2))
def test_a_grid_comes_back_from_its_canvas(grid: np.ndarray, room: int) -> None:
    canvas = to_canvas(grid, max(grid.shape) + room)
    np.testing.assert_array_equal(to_grid(canvas), grid)


@given(st.integers(1, 8).flatmap(lambda side: arrays(np.uint8, (side, side), elements=st.integers(0, SYMBOLS - 1))))
def test_nonsense_still_makes_a_grid(canvas: np.ndarray) -> None:
    grid = to_grid(canvas)
    assert grid.dtype == np.uint8
    assert 1 <= min(grid.shape) <= max(grid.shape) <= len(canvas)
    assert grid.max() <= 9


@given(grids, st.integers(0, SYMBOLS - 1), st.integers(0, 143))
def test_one_wrong_cell_does_not_change_the_size_of_a_large_grid(grid: np.ndarray, symbol: int, place: int) -> None:
    large = np.tile(grid, (3, 3))[:9, :9]
    if large.shape != (9, 9):
        large = np.pad(large, ((0, 9 - large.shape[0]), (0, 9 - large.shape[1])))
    canvas = to_canvas(large, 12)
    canvas.flat[place] = symbol
    assert to_grid(canvas).shape == (9, 9)


def test_the_edge_runs_right_of_and_below_the_grid() -> None:
    canvas = to_canvas(np.array([[0, 9]], dtype=np.uint8), 4)
    assert canvas.tolist() == [
        [FIRST_COLOUR, FIRST_COLOUR + 9, BORDER, PAD],
        [BORDER, BORDER, BORDER, PAD],
        [PAD, PAD, PAD, PAD],
        [PAD, PAD, PAD, PAD],
    ]


def test_a_grid_as_large_as_the_canvas_has_no_edge() -> None:
    canvas = to_canvas(np.zeros((3, 3), dtype=np.uint8), 3)
    assert canvas.tolist() == [[FIRST_COLOUR] * 3] * 3


def test_a_grid_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="side must be at least the grid's longest side, but got 3 for 2x4"):
        to_canvas(np.zeros((2, 4), dtype=np.uint8), 3)


def test_several_grids_share_one_tensor() -> None:
    grids = [np.ones((1, 2), dtype=np.uint8), np.ones((3, 1), dtype=np.uint8)]
    canvases = to_canvases(grids, 4)
    assert canvases.shape == (2, 4, 4)
    np.testing.assert_array_equal(canvases[1].numpy(), to_canvas(grids[1], 4))
