"""Programs: what a readout can express, the value on hidden demonstrations, and the two attempts."""

import numpy as np
import pytest

from searchlight.models.arc.programs import DEPTH_1, OPERATIONS, Executor, Program, execute, rank
from searchlight.models.arc.puzzles import Puzzle

INDEX = {operation.name: number for number, operation in enumerate(OPERATIONS)}


def program(*names):
    return Program(tuple(INDEX[name] for name in names))


def make_puzzle(rule, inputs=4, tests=1, side=4, colors=10):
    random = np.random.default_rng(0)
    grids = [random.integers(0, colors, (side, side), dtype=np.uint8) for _ in range(inputs + tests)]
    pairs = tuple((grid, np.ascontiguousarray(rule(grid), dtype=np.uint8)) for grid in grids)
    return Puzzle("0123abcd", pairs[:inputs], pairs[inputs:])


def check_solved(result, puzzle):
    assert result.fits_exactly
    assert result.hidden_share == result.accuracy == 1
    assert all(np.array_equal(grid, target) for grid, (_, target) in zip(result.answers, puzzle.tests, strict=True))


@pytest.mark.parametrize(
    ("names", "rule"),
    [
        (["mirror_left_right"], lambda grid: grid[:, ::-1]),
        (["mirror_left_right", "transpose"], lambda grid: grid[:, ::-1].T),
        (["shift_right", "transpose", "shift_up"], lambda grid: np.roll(np.roll(grid, 1, 1).T, -1, 0)),
        ([], lambda grid: np.where(grid > 4, 2, 7)),  # the readout recolors
        (["compare_halves_across"], lambda grid: 3 * ((grid[:, :2] > 0) & (grid[:, 2:] > 0))),  # a logical and
        (["mark_enclosed_background"], lambda grid: np.where(grid > 0, grid, 5)),  # and looks at the inputs as well
    ],
)
def test_program_of_the_rule_is_exact(names, rule):
    puzzle = make_puzzle(rule, inputs=6, tests=2)
    if names == ["mark_enclosed_background"]:
        ring = np.array([[1, 2, 1], [2, 0, 2], [1, 2, 1]], dtype=np.uint8)
        pairs = tuple(
            (np.pad(ring * c, w), np.pad(ring * c + 4 * (ring == 0), w).astype(np.uint8))
            for c, w in [(1, 1), (2, 2), (3, 1), (4, 2)]
        )
        puzzle = Puzzle("0123abcd", pairs[:3], pairs[3:])
    check_solved(execute(program(*names), puzzle), puzzle)


def test_value_has_all_its_parts():
    puzzle = make_puzzle(lambda grid: grid[:, ::-1])
    result, inputs = (execute(one, puzzle) for one in (program("mirror_left_right"), Program()))
    assert result.value == pytest.approx(0.15 + 0.35 + 0.1 + 0.4 + 0.5)
    assert inputs.value == pytest.approx(0.15)
    assert inputs.reward == 0
    assert result.reward == pytest.approx(result.value - inputs.value)


def test_accuracy_is_that_of_hidden_demonstrations():
    # Each demonstration has a color of its own, so that no other tells what becomes of it.
    pairs = tuple((np.full((2, 2), color, np.uint8), np.full((2, 2), color + 4, np.uint8)) for color in (1, 2, 3))
    result = execute(Program(), Puzzle("0123abcd", pairs, pairs[:1]))
    assert result.fits_exactly
    assert (result.accuracy, result.hidden_share) == (0, 0)
    assert result.value == pytest.approx(0.15 + 0.1)


def test_tests_outputs_change_nothing():
    puzzle = make_puzzle(lambda grid: grid.T, tests=2)
    blank = Puzzle(
        puzzle.id, puzzle.demonstrations, tuple((grid, np.zeros((1, 1), np.uint8)) for grid, _ in puzzle.tests)
    )
    one, two = Executor(puzzle), Executor(blank)
    for number in DEPTH_1:
        first, second = one.execute(number), two.execute(number)
        assert (first.value, first.reward, first.ambiguity) == (second.value, second.reward, second.ambiguity)
        assert all(np.array_equal(a, b) for a, b in zip(first.answers, second.answers, strict=True) if a is not None)


@pytest.mark.parametrize(
    ("names", "is_valid"),
    [
        (["shrink"], False),  # does not apply
        (["shrink", "transpose"], False),
        (["swap_two_colors", "pad"], False),
        (["pad", "trim"], True),  # back at the inputs, but each step changes something
        (["trim"], True),  # applies, but has another size than the outputs
    ],
)
def test_program_that_misses_gets_no_reward(names, is_valid):
    result = execute(program(*names), make_puzzle(lambda grid: grid[:, ::-1]))
    assert result.is_valid == is_valid
    assert result.reward == 0


def test_operation_that_changes_nothing_is_invalid():
    same = tuple((np.full((3, 3), color, np.uint8),) * 2 for color in (1, 2))
    assert not execute(program("mirror_left_right"), Puzzle("0123abcd", same, same[:1])).is_valid


def test_ambiguity_is_the_entropy_of_the_table():
    def pair(source, target):
        return np.array([source], np.uint8), np.array([target], np.uint8)

    shown = (pair([1, 1, 2, 2], [5, 5, 3, 4]), pair([1, 1, 2, 2], [5, 5, 4, 3]))
    asked = tuple(pair(cells, cells) for cells in ([1, 1, 1, 1], [1, 1, 1, 2], [9, 9, 9, 9]))
    result = execute(Program(), Puzzle("0123abcd", shown, asked))
    assert result.ambiguity == pytest.approx((0, np.log(2) / 4, np.log(10)))
    assert np.array_equal(result.answers[0], [[5, 5, 5, 5]])


def test_rank_takes_the_two_best_distinct_answers():
    puzzle = make_puzzle(lambda grid: grid[:, ::-1], tests=2)
    names = (["transpose"], ["mirror_left_right", "transpose", "transpose"], ["turn_half"], ["mirror_left_right"])
    results = [execute(program(*each), puzzle) for each in (*names, ["trim"])]
    attempts = rank(results)
    values = sorted({result.value for result in results}, reverse=True)
    second = next(result for result in results if result.value == values[1])
    for test, (_, target) in enumerate(puzzle.tests):
        assert [grid.tolist() for grid in attempts[test]] == [target.tolist(), second.answers[test].tolist()]


def test_rank_without_an_answer_has_no_attempt():
    puzzle = make_puzzle(lambda grid: grid[:1, :1], tests=2)
    assert rank([execute(program("transpose"), puzzle)]) == [(), ()]
    assert rank([]) == []


def test_steps_are_described_and_traced():
    puzzle = make_puzzle(lambda grid: grid[:, ::-1].T)
    steps = program("mirror_left_right", "transpose")
    assert steps.describe() == "mirror left-right, mirror along the diagonal, recolor"
    first, second, third = Executor(puzzle).trace(steps)
    assert [len(grids) for grids in (first, second, third)] == [5, 5, 5]
    assert np.array_equal(second[0], first[0][:, ::-1])
    assert np.array_equal(third[4], first[4][:, ::-1].T)
    with pytest.raises(ValueError, match="must apply to the demonstrations of 0123abcd"):
        Executor(puzzle).trace(program("shrink"))
