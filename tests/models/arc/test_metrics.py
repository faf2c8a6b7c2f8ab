import numpy as np
import pytest

from models.arc import Puzzle, metrics, tally
from models.arc.metrics import SUMS, cell_accuracy


def grid(*rows: list[int]) -> np.ndarray:
    return np.array(rows, dtype=np.uint8)


ANY = grid([0])
# Keeps the shape; two tests. Its identity is right in 2 of 4 and 3 of 4 cells.
SAME = Puzzle(
    "same",
    ((grid([1, 1], [0, 0]), grid([1, 1], [2, 2])),),
    (
        (grid([1, 1], [0, 0]), grid([1, 1], [2, 2])),
        (grid([1, 1], [1, 0]), grid([1, 1], [1, 2])),
    ),
)
# Cuts a row of four into one of two: the identity is right in 2 of 4 cells.
CUT = Puzzle("cut", ((grid([1, 2, 3, 4]), grid([1, 2])),), ((grid([5, 6, 7, 8]), grid([5, 6])),))


def test_a_wrong_size_counts_as_wrong_cells() -> None:
    truth = grid([1, 2], [3, 4])
    assert cell_accuracy(truth, truth) == 1.0
    assert cell_accuracy(grid([1, 2], [3, 0]), truth) == 0.75
    assert cell_accuracy(grid([1, 2]), truth) == 0.5
    assert cell_accuracy(grid([1, 2, 0], [3, 4, 0]), truth) == pytest.approx(4 / 6)
    assert cell_accuracy(grid([1], [3], [0]), truth) == 0.5  # Two match, and the larger area is 4.
    assert cell_accuracy(grid([1, 1, 1, 1]), grid([1], [1])) == 0.25


def test_the_metrics_by_hand() -> None:
    attempts = [
        (grid([1, 1], [2, 0]), grid([1, 1], [2, 2])),  # 3 of 4 cells, and the second attempt hits
        (grid([1, 1], [1, 0]), grid([0, 0], [0, 0])),  # the identity
        (grid([5, 6]), ANY),  # hits at once
    ]
    found = metrics(tally([SAME, CUT], attempts))
    identity, accuracy = (0.5 + 0.75 + 0.5) / 3, (0.75 + 0.75 + 1.0) / 3
    assert found == pytest.approx(
        {
            "pass2_task": 1 / 2,
            "pass2_output": 2 / 3,
            "size_acc": 1.0,
            "cell_acc": accuracy,
            "identity_acc": identity,
            "cell_lift": (accuracy - identity) / (1 - identity),
            "cell_acc_same_shape": 0.75,
            "cell_lift_same_shape": (0.75 - 0.625) / (1 - 0.625),
            "changed_cell_acc": 1 / 3,
        }
    )


def test_answering_with_the_input_lifts_nothing() -> None:
    tests = [*SAME.tests, *CUT.tests]
    found = metrics(tally([SAME, CUT], [(source, ANY) for source, _ in tests]))
    assert found["cell_lift"] == found["cell_lift_same_shape"] == 0.0
    assert found["changed_cell_acc"] == 0.0
    assert found["size_acc"] == pytest.approx(2 / 3)


def test_right_answers_score_1_everywhere() -> None:
    tests = [*SAME.tests, *CUT.tests]
    found = metrics(tally([SAME, CUT], [(target, ANY) for _, target in tests]))
    assert {name for name, value in found.items() if value != 1.0} == {"identity_acc"}


def test_a_puzzle_is_solved_only_if_all_its_tests_are() -> None:
    right = [(target, ANY) for _, target in SAME.tests]
    assert metrics(tally([SAME], right))["pass2_task"] == 1.0
    assert metrics(tally([SAME], [right[0], (ANY, ANY)]))["pass2_task"] == 0.0
    assert metrics(tally([SAME], [right[0], (ANY, ANY)]))["pass2_output"] == 0.5


def test_sums_of_parts_make_the_metrics_of_the_whole() -> None:
    attempts = [(grid([1, 1], [2, 0]), ANY), (ANY, ANY), (grid([5, 0]), grid([5, 6]))]
    parts = tally([SAME], attempts[:2]), tally([CUT], attempts[2:])
    added = {name: parts[0][name] + parts[1][name] for name in SUMS}
    assert metrics(added) == pytest.approx(metrics(tally([SAME, CUT], attempts)))


def test_nothing_scores_0() -> None:
    sums = tally([], [])
    assert tuple(sums) == SUMS
    assert set(metrics(sums).values()) == {0.0}


def test_a_missing_attempt_is_refused() -> None:
    with pytest.raises(ValueError, match="attempts must have one entry per test, but got 1 for 2 tests"):
        tally([SAME], [(ANY, ANY)])
