"""A picture of puzzles and attempts: a row for each, in ARC's colours, with what is right in green."""

import numpy as np
import pytest

from models.arc.rendering import CELL, HEADER, PALETTE, PANEL, RIGHT, WRONG, Case, draw


def rgb(colour):
    return tuple(bytes.fromhex(colour[1:]))


def colours(picture):
    """How many pixels have each colour."""
    found, counts = np.unique(picture.reshape(-1, 3), axis=0, return_counts=True)
    return {tuple(map(int, colour)): int(count) for colour, count in zip(found, counts, strict=True)}


def case(target, first, second, given=((0,),)):
    return Case("0123abcd", *(np.array(grid, dtype=np.uint8) for grid in (given, target, first, second)))


def frames(picture):
    """Whether anything is marked as right and as wrong."""
    there = colours(picture)
    return rgb(RIGHT) in there, rgb(WRONG) in there


def test_it_has_all_ten_colours_of_arc_in_equal_parts():
    grid = np.arange(10).reshape(2, 5)
    unnamed = case(grid, grid, grid, grid)._replace(puzzle="")
    there = colours(draw([unnamed])[HEADER:])  # without text, whose edges are grey
    assert {there[rgb(colour)] for colour in PALETTE} == {4 * (CELL - 1) ** 2}


@pytest.mark.parametrize(
    ("first", "second", "marked"),
    [
        ([[1, 2]], [[1, 2]], (True, False)),
        ([[1, 2]], [[2, 1]], (True, True)),
        ([[1, 1]], [[1], [2]], (False, True)),
        ([[1, 2, 0]], [[1]], (False, True)),
    ],
)
def test_an_attempt_is_right_if_it_is_the_target_in_all_cells_and_in_size(first, second, marked):
    assert frames(draw([case([[1, 2]], first, second)])) == marked


def test_the_first_attempt_is_left_of_the_second():
    picture = draw([case([[1]], [[1]], [[2]])])
    right, wrong = ((picture == rgb(colour)).all(2).nonzero()[1] for colour in (RIGHT, WRONG))
    assert right.max() < wrong.min()


def test_the_largest_grids_fit_and_a_cell_can_be_told_from_its_neighbour():
    grid = np.indices((30, 30)).sum(0) % 2 + 1
    picture = draw([case(grid, grid, 3 - grid, grid)])
    there = colours(picture)
    assert there[rgb(PALETTE[1])] == there[rgb(PALETTE[2])] == 4 * 450 * (PANEL // 30 - 1) ** 2
    assert picture.shape[0] < 300


def test_each_puzzle_has_a_row_and_all_of_it_is_on_white():
    one = case([[1, 2], [3, 4]], [[1, 2], [3, 4]], [[0]])
    single, six = draw([one]), draw([one] * 6)
    assert (six.dtype, six.shape[1:]) == (np.uint8, single.shape[1:])
    cells = {rgb(colour) for colour in PALETTE[1:5]}
    assert {c: n for c, n in colours(six).items() if c in cells} == {
        c: 6 * n for c, n in colours(single).items() if c in cells
    }
    edge = np.concatenate([six[0], six[-1], six[:, 0], six[:, -1]])
    assert (edge == 255).all()


def test_a_long_name_does_not_run_into_the_grids():
    short = case([[1]], [[1]], [[1]])
    longer = draw([short._replace(puzzle="mirror-and-recolour-000123")]).shape[1] - draw([short]).shape[1]
    assert longer > 100


def test_without_a_case_there_is_nothing_to_draw():
    with pytest.raises(ValueError, match="at least one case, but got none"):
        draw([])
