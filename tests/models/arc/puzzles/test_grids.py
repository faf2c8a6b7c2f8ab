"""Grids: canvases, symmetries and renamings, and how puzzles are stored."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from hypothesis.strategies import lists

from searchlight.models.arc.puzzles import (
    BORDER,
    FIRST_COLOR,
    PAD,
    SYMBOLS,
    Grid,
    Puzzle,
    hash_puzzles,
    invert_symmetry,
    pack_grids,
    read_grid,
    transform,
    unpack_grids,
)
from searchlight.models.arc.puzzles.canvas import draw_canvas
from searchlight.models.arc.puzzles.symmetries import draw_renamings, rename
from tests.models.arc.grids import grids, grids_of


@given(grids, st.integers(0, 2))
def test_a_grid_comes_back_from_its_canvas(grid: np.ndarray, room: int) -> None:
    canvas = draw_canvas(grid, max(grid.shape) + room)
    np.testing.assert_array_equal(read_grid(canvas), grid)


@given(st.integers(1, 8).flatmap(lambda side: arrays(np.uint8, (side, side), elements=st.integers(0, SYMBOLS - 1))))
def test_any_canvas_makes_a_grid(canvas: np.ndarray) -> None:
    grid = read_grid(canvas)
    assert grid.dtype == np.uint8
    assert 1 <= min(grid.shape) <= max(grid.shape) <= len(canvas)
    assert grid.max() <= 9


@given(arrays(np.uint8, (9, 9), elements=st.integers(0, 9)), st.integers(0, SYMBOLS - 1), st.integers(0, 143))
def test_one_wrong_cell_keeps_the_size_of_a_large_grid(grid: np.ndarray, symbol: int, place: int) -> None:
    canvas = draw_canvas(grid, 12)
    canvas.flat[place] = symbol
    assert read_grid(canvas).shape == (9, 9)


def test_the_edge_runs_right_of_and_below_the_grid() -> None:
    row = [FIRST_COLOR, FIRST_COLOR + 9, BORDER, PAD]
    assert draw_canvas(np.array([[0, 9]], dtype=np.uint8), 4).tolist() == [
        row,
        [BORDER] * 3 + [PAD],
        [PAD] * 4,
        [PAD] * 4,
    ]
    assert draw_canvas(np.zeros((3, 3), dtype=np.uint8), 3).tolist() == [[FIRST_COLOR] * 3] * 3  # without room for one


@given(grids, st.integers(0, 7))
def test_the_inverse_undoes_a_symmetry(grid: np.ndarray, symmetry: int) -> None:
    np.testing.assert_array_equal(transform(transform(grid, symmetry), invert_symmetry(symmetry)), grid)
    np.testing.assert_array_equal(transform(transform(grid, invert_symmetry(symmetry)), symmetry), grid)


def test_the_eight_symmetries_differ() -> None:
    grid = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert len({(turned.shape, turned.tobytes()) for turned in (transform(grid, s) for s in range(8))}) == 8


@given(st.integers(0, 2**31))
def test_renamings_permute_colors_alone(seed: int) -> None:
    tables = draw_renamings(5, torch.Generator().manual_seed(seed))
    assert tables.shape == (5, SYMBOLS)
    assert tables.dtype == torch.uint8
    assert torch.equal(tables.sort(dim=1).values, torch.arange(SYMBOLS, dtype=torch.uint8).expand(5, -1))
    assert (tables[:, : FIRST_COLOR + 1] == torch.arange(FIRST_COLOR + 1)).all()


def test_each_episode_is_renamed_by_its_own_table() -> None:
    tables = draw_renamings(3, torch.Generator().manual_seed(0))
    canvases = torch.randint(SYMBOLS, (3, 2, 4, 4), dtype=torch.uint8)
    for canvas, table, renamed in zip(canvases, tables, rename(canvases, tables), strict=True):
        assert torch.equal(renamed, table[canvas.long()])


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
