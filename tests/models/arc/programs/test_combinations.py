"""Combinations of operations: the rules that only all of them express, and what answers with them."""

import numpy as np
import pytest
import torch

from searchlight.models.arc.evaluation import find_hits, prepare_puzzle_set, trace_program
from searchlight.models.arc.programs import DEPTH_1, OPERATIONS, Executor, Program, RewardTable
from searchlight.models.arc.programs.combinations import find_combinations
from searchlight.models.arc.puzzles import Puzzle

INDEX = {operation.name: index for index, operation in enumerate(OPERATIONS)}
MIRRORED = [INDEX["mirror_left_right"], INDEX["mirror_top_bottom"]]


def make_puzzle(rule, shape=(5, 5), colors=2):
    random = np.random.default_rng(0)
    grids = [random.integers(0, colors, shape, dtype=np.uint8) for _ in range(7)]
    pairs = tuple((grid, np.ascontiguousarray(rule(grid), dtype=np.uint8)) for grid in grids)
    return Puzzle("0123abcd", pairs[:5], pairs[5:])


@pytest.fixture(scope="module")
def puzzle() -> Puzzle:
    """A puzzle whose rule has two conditions: a cell is colored by both mirror images."""
    return make_puzzle(lambda grid: 3 + grid[:, ::-1] + 2 * grid[::-1])


@pytest.fixture(scope="module")
def in_turn() -> Puzzle:
    """A puzzle whose rule has two steps: the grid is turned, and its upper half is the answer."""
    return make_puzzle(lambda grid: np.rot90(grid)[:2], (6, 4), 10)


@pytest.fixture(scope="module")
def three_steps() -> Puzzle:
    """A puzzle whose rule has three steps: the left half, of which cells fall down, is mirrored."""
    return make_puzzle(lambda grid: np.sort(grid[:, :3], axis=0)[:, ::-1], (8, 6))


def execute_all(puzzle):
    executor = Executor(puzzle)
    return executor, [executor.execute(program) for program in DEPTH_1]


def test_rule_of_two_conditions_is_met_by_a_pair_alone(puzzle):
    executor, results = execute_all(puzzle)
    assert max(result.hidden_share for result in results) < 1
    best, *_ = find_combinations(executor, results)
    assert {*best.program.executed} == {*MIRRORED}
    assert best.fits_exactly
    assert best.value == executor.rate(best.program) == pytest.approx(1.5)
    assert all(np.array_equal(answer, target) for answer, (_, target) in zip(best.answers, puzzle.tests, strict=True))


def test_rule_of_two_steps_is_met_by_a_pair_alone(in_turn):
    executor, results = execute_all(in_turn)
    assert max(result.hidden_share for result in results) < 1
    best, *_ = find_combinations(executor, results)
    assert len(best.program.operations) == 2
    assert best.program.beside is None
    assert best.value == executor.rate(best.program) == pytest.approx(1.5)
    assert all(np.array_equal(answer, target) for answer, (_, target) in zip(best.answers, in_turn.tests, strict=True))


def test_rule_of_three_steps_is_met_by_three_operations_alone(three_steps):
    executor, results = execute_all(three_steps)
    best, *others = find_combinations(executor, results)
    assert max(each.hidden_share for each in (*results, *others) if len(each.program.executed) < 3) < 1
    assert len(best.program.operations) == 3
    assert best.value == executor.rate(best.program) == pytest.approx(1.5)
    answers = zip(best.answers, three_steps.tests, strict=True)
    assert all(np.array_equal(answer, target) for answer, (_, target) in answers)


def test_three_operations_are_not_tried_where_two_are_enough(in_turn):
    found = find_combinations(*execute_all(in_turn))
    assert {len(each.program.executed) for each in found} == {2}


@pytest.mark.parametrize("kind", ["puzzle", "three_steps"])
def test_combination_is_better_than_its_parts(kind, request):
    executor, results = execute_all(request.getfixturevalue(kind))
    found = find_combinations(executor, results)
    assert [each.value for each in found] == sorted((each.value for each in found), reverse=True)
    assert all(each.value > results[each.program.executed[-1]].value for each in found)
    pairs = [each for each in found if len(each.program.executed) == 2]
    assert all(each.value > results[each.program.operations[0]].value for each in pairs)
    longest = [each for each in found if len(each.program.operations) == 3]
    assert bool(longest) == (kind == "three_steps")
    assert all(each.value > executor.rate(Program(each.program.operations[:2])) for each in longest)


def test_there_are_no_pairs_where_one_operation_is_enough():
    assert find_combinations(*execute_all(make_puzzle(lambda grid: grid[:, ::-1]))) == []


def test_pair_answers_only_if_both_operations_are_executed(puzzle):
    puzzles = prepare_puzzle_set([puzzle], None, with_combinations=True)
    both = torch.tensor([MIRRORED])
    assert find_hits([puzzle], puzzles.answer(both, 1)) == [[False, False]]
    assert find_hits([puzzle], puzzles.answer(both, 2)) == [[True, True]]
    assert {*puzzles.find_best(0, both, 2).executed} == {*MIRRORED}
    assert len(puzzles.find_best(0, both, 1).executed) == 1
    without = prepare_puzzle_set([puzzle], None)
    assert find_hits([puzzle], without.answer(both, 2)) == [[False, False]]


def test_second_step_answers_only_if_its_operation_is_executed(in_turn):
    puzzles = prepare_puzzle_set([in_turn], None, with_combinations=True)
    steps = puzzles.combinations[0][0].program.operations
    both = torch.tensor([steps])
    assert find_hits([in_turn], puzzles.answer(both, 1)) == [[False, False]]
    assert find_hits([in_turn], puzzles.answer(both, 2)) == [[True, True]]
    assert puzzles.find_best(0, both, 2) == Program(steps)


@pytest.mark.parametrize("kind", ["puzzle", "in_turn", "three_steps"])
def test_combinations_are_kept_beside_the_programs(kind, request, tmp_path):
    puzzle = request.getfixturevalue(kind)
    built, loaded = (RewardTable.load_or_build(tmp_path, [puzzle], with_combinations=True) for _ in range(2))
    assert len(list(tmp_path.iterdir())) == 1
    expected = find_combinations(*execute_all(puzzle))
    for table in (built, loaded):
        assert [each.program for each in table.get_combinations(0)] == [each.program for each in expected]
        for test, (_, target) in enumerate(puzzle.tests):
            assert np.array_equal(table.rank(0)[test][0], target)
    assert RewardTable.load_or_build(tmp_path, [puzzle]).get_combinations(0) == []
    assert len(list(tmp_path.iterdir())) == 2


def test_steps_of_a_pair_are_described_and_traced(puzzle):
    case = trace_program(Executor(puzzle), Program((MIRRORED[0],), MIRRORED[1]), 0)
    assert case is not None
    source, target = puzzle.tests[0]
    assert len(case.titles) == len(case.grids) == 4
    assert case.titles[2:] == (f"of the input: {OPERATIONS[MIRRORED[1]].description}", "recolor by both")
    for grid, expected in zip(case.grids, (source, source[:, ::-1], source[::-1], target), strict=True):
        assert np.array_equal(grid, expected)
