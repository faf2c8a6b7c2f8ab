"""A picture of puzzles and attempts: a row for each, in ARC's colors, with what is right in green."""

import numpy as np
import pytest

from searchlight.models.arc.evaluation import Case, ProgramCase, draw, draw_programs, trace_program
from searchlight.models.arc.evaluation.rendering import CELL, HEADER, PALETTE, RIGHT, WRONG
from searchlight.models.arc.programs import OPERATIONS, Executor, Program


def rgb(color):
    return tuple(bytes.fromhex(color[1:]))


def colors(picture):
    """How many pixels have each color."""
    found, counts = np.unique(picture.reshape(-1, 3), axis=0, return_counts=True)
    return {tuple(map(int, color)): int(count) for color, count in zip(found, counts, strict=True)}


def case(target, first, second, given=((0,),)):
    return Case("0123abcd", *(np.array(grid, dtype=np.uint8) for grid in (given, given, given, target, first, second)))


def test_it_has_all_ten_colors_of_arc_in_equal_parts():
    grid = np.arange(10).reshape(2, 5)
    unnamed = case(grid, grid, grid, grid)._replace(puzzle="")
    there = colors(draw([unnamed])[HEADER:])  # without text, whose edges are gray
    assert {there[rgb(color)] for color in PALETTE} == {6 * (CELL - 1) ** 2}


@pytest.mark.parametrize(
    ("first", "second", "marked"),
    [
        ([[1, 2]], [[1, 2]], {RIGHT}),
        ([[1, 2]], [[2, 1]], {RIGHT, WRONG}),
        ([[1, 1]], [[1], [2]], {WRONG}),
        ([[1, 2, 0]], [[1]], {WRONG}),
    ],
)
def test_an_attempt_is_right_if_it_is_the_target(first, second, marked):
    picture = draw([case([[1, 2]], first, second)])
    assert {color for color in (RIGHT, WRONG) if rgb(color) in colors(picture)} == marked
    if len(marked) == 2:  # the first attempt is left of the second
        right, wrong = ((picture == rgb(color)).all(2).nonzero()[1] for color in (RIGHT, WRONG))
        assert right.max() < wrong.min()


def test_each_puzzle_has_a_row_on_white():
    one = case([[1, 2], [3, 4]], [[1, 2], [3, 4]], [[0]])
    single, six = draw([one]), draw([one] * 6)
    assert (six.dtype, six.shape[1:]) == (np.uint8, single.shape[1:])
    once, there = colors(single), colors(six)
    assert all(there[rgb(color)] == 6 * once[rgb(color)] for color in PALETTE[1:5])
    assert (np.concatenate([six[0], six[-1], six[:, 0], six[:, -1]]) == 255).all()
    named = draw([one._replace(puzzle="mirror-and-recolour-000123")])
    assert named.shape[1] > single.shape[1] + 100  # a long name does not run into the grids


def find_index(name):
    return next(index for index, operation in enumerate(OPERATIONS) if operation.name == name)


def test_program_is_traced_from_input_to_answer(puzzles):
    puzzle = puzzles[0]  # its rule is a mirror
    turns = Program((find_index("turn_half"), find_index("mirror_top_bottom")))
    found = trace_program(Executor(puzzle), turns, 1)
    (source, target) = puzzle.tests[1]
    assert found.titles == ("input", "turn by half", "mirror top-bottom", "recolor")
    expected = [source, source[::-1, ::-1], source[:, ::-1], target]
    assert [grid.tolist() for grid in found.grids] == [grid.tolist() for grid in expected]
    assert np.array_equal(found.target, target)


def test_program_without_an_answer_is_not_traced(puzzles):
    assert trace_program(Executor(puzzles[2]), Program((find_index("pad"),)), 0) is None


@pytest.mark.parametrize(("answer", "mark"), [([[1, 2]], RIGHT), ([[2, 1]], WRONG)])
def test_programs_are_drawn_with_each_step_and_one_frame(answer, mark):
    grids = [np.array(grid, dtype=np.uint8) for grid in ([[3]], [[4, 4]], answer, [[1, 2]])]
    picture = draw_programs([ProgramCase("0123abcd", ("input", "a step " * 12, "recolor"), tuple(grids[:3]), grids[3])])
    there = colors(picture)
    inside = (CELL - 1) ** 2
    assert [there[rgb(PALETTE[color])] for color in (1, 2, 3, 4)] == [2 * inside, 2 * inside, inside, 2 * inside]
    assert rgb(mark) in there
    assert rgb(WRONG if mark == RIGHT else RIGHT) not in there
    three = draw_programs([ProgramCase("0123abcd", ("input", "recolor"), (grids[0], grids[2]), grids[3])] * 3)
    assert three.shape[1] < picture.shape[1]
    assert colors(three)[rgb(PALETTE[3])] == 3 * inside
