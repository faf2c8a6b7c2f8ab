"""The benchmark of ARC programs of two operations counts what the two best distinct answers meet."""

import numpy as np

from benchmarks.models.arc_depth import choose_cover, choose_prefixes, compare, extend, keep_best, measure, meet
from searchlight.models.arc.programs import DEPTH_1, OPERATIONS, Executor
from searchlight.models.arc.puzzles import Puzzle

INDEX = {operation.name: index for index, operation in enumerate(OPERATIONS)}


def make_puzzle():
    """Return a puzzle whose outputs are the upper halves of the inputs turned by a quarter."""
    random = np.random.default_rng(0)
    grids = [random.integers(0, 10, (6, 4), dtype=np.uint8) for _ in range(4)]
    pairs = tuple((grid, np.ascontiguousarray(np.rot90(grid)[:2])) for grid in grids)
    return Puzzle("0123abcd", pairs[:3], pairs[3:])


def answer(value, digest, hit, operations=1):
    return {"value": value, "program": [0] * operations, "digests": [digest], "hits": [hit]}


def test_second_operation_meets_what_one_operation_does_not():
    puzzle = make_puzzle()
    executor = Executor(puzzle)
    single = keep_best(puzzle, [executor.execute(program) for program in DEPTH_1])
    double = extend(executor, (INDEX["turn_left"],))
    assert not any(any(each["hits"]) for each in single)
    assert double[0]["hits"] == [True]
    assert double[0]["value"] == 1.5
    row = {"tests": 1, "single": single, "pairs": [], "double": {str(INDEX["turn_left"]): double}}
    assert not meet(row, ["single", "pairs"]).any()
    assert meet(row, ["single", "pairs"], [INDEX["turn_left"]]).all()


def test_third_distinct_answer_is_not_an_attempt():
    row = {"tests": 1, "double": {}, "single": [answer(0.9, "a", False), answer(0.8, "a", False)]}
    assert meet({**row, "pairs": [answer(0.7, "b", True, 2)]}, ["single", "pairs"]).all()
    row["single"].append(answer(0.7, "c", False))
    assert not meet({**row, "pairs": [answer(0.7, "b", True, 2)]}, ["single", "pairs"]).any()


def test_third_operation_follows_the_best_distinct_programs_of_two():
    answers = [answer(0.7, "a", False) | {"program": [1, 2]}, answer(0.9, "b", False) | {"program": [3, 4]}]
    answers += [answer(0.8, "b", False) | {"program": [4, 3]}, answer(0.6, "c", False) | {"program": [5, 6]}]
    assert choose_prefixes(answers, 2) == [[3, 4], [1, 2]]
    assert choose_prefixes([*answers, answer(1.5, "d", True) | {"program": [7, 8]}], 2) == []


def test_third_operation_follows_programs_that_do_not_meet_all():
    row = measure(make_puzzle(), [], 2)
    assert {len(each["program"]) for answers in row["double"].values() for each in answers} == {2}
    assert row["prefixes"] > 0
    assert {len(each["program"]) for each in row["triple"]} == {3}
    assert len(row["cpu"]) == 4


def test_cover_takes_operations_that_add_to_each_other():
    gains = np.array([[0.5, 0.4, 0.0], [0.5, 0.4, 0.0], [0.0, 0.0, 0.3]])
    assert choose_cover(gains, 2) == [0, 2]


def test_gained_and_lost_tests_are_counted():
    better = {"0": [answer(1.5, "b", True, 2), answer(1.4, "c", False, 2)]}
    worse = {"0": [answer(1.5, "b", False, 2), answer(1.4, "c", False, 2)]}
    choices = {"all": [0], "largest values": [0], "random": []}
    rows = [
        {"tests": 1, "single": [answer(0.9, "a", hit)], "pairs": [], "double": double, "values": [0.9]}
        | {"cpu": [1.0, 2.0, 3.0, 4.0], "choices": choices, "triple": [answer(1.6, "d", True, 3)], "prefixes": 2}
        for hit, double in ((False, better), (True, worse))
    ]
    found = {row["programs"]: row for row in compare(rows, [0], True)}
    names = ("met", "gained", "lost", "cpu")
    assert [found["one operation"][name] for name in names] == [1, 0, 0, 1]
    assert [found["and two: random"][name] for name in names] == [1, 0, 0, 3]
    assert [found["and two: all"][name] for name in names] == [1, 1, 1, 6]
    assert [found["and three"][name] for name in names] == [2, 1, 0, 10]
    assert found["and three"]["executed"] == 3 * len(OPERATIONS)
    assert found["and two: all"] == found["and two: list"] | {"programs": "and two: all"}
