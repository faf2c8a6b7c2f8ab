"""What is read from the accuracy matrix, and its picture."""

import json

import numpy as np
import pytest

from searchlight.models.liquid.continual import Matrix, draw_matrix
from searchlight.models.liquid.continual.plot import CELL_HEIGHT, FRAME, HIGH, LOW

ROWS = [
    [0.1, 0.2, 0.3],  # before any
    [0.9, 0.4, 0.1],
    [0.6, 0.8, 0.5],
    [0.7, 0.3, 1.0],
]
METRICS = ("average", "forgetting", "backward_transfer", "forward_transfer", "learning_accuracy")


def matrix(rows: list[list[float]]) -> Matrix:
    made = Matrix(len(rows[0]) if rows else 3)
    for learned, row in enumerate(rows):
        made.record(learned, row)
    return made


def metrics(made: Matrix) -> dict[str, float]:
    return {name: getattr(made, name) for name in METRICS}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (ROWS, (2.0 / 3, (0.2 + 0.5) / 2, (-0.2 - 0.5) / 2, (0.2 + 0.2) / 2, 2.7 / 3)),
        (ROWS[:3], (1.4 / 2, 0.3, -0.3, (0.2 + 0.2) / 2, 1.7 / 2)),
        (ROWS[:2], (0.9, 0.0, 0.0, 0.2, 0.9)),
        (ROWS[:1], (0.2, 0.0, 0.0, 0.0, 0.0)),
        # A rise after the own task is forgotten too; what was known before any task is not.
        ([[1.0] * 3, [0.5, 0.9, 0.1], [0.8, 0.7, 0.2], [0.6, 0.7, 0.9]], (2.2 / 3, 0.2, 0.05, -0.45, 2.1 / 3)),
        # What got better is forgotten by less than nothing.
        ([[0, 0], [0.5, 0], [0.8, 1]], (0.9, -0.3, 0.3, 0.0, 0.75)),
    ],
    ids=["three tasks", "two tasks", "one task", "no task", "a rise in between", "only better"],
)
def test_each_metric_by_hand(rows: list[list[float]], expected: tuple[float, ...]) -> None:
    made = matrix(rows)
    assert made.learned == len(rows) - 1
    assert metrics(made) == pytest.approx(dict(zip(METRICS, expected, strict=True)))


def test_last_row_may_be_recorded_again() -> None:
    made = matrix(ROWS[:2])
    made.record(1, [0.5, 0.5, 0.5])
    assert (made.learned, made.rows) == (1, [ROWS[0], [0.5, 0.5, 0.5]])
    assert metrics(Matrix(3)) == dict.fromkeys(METRICS, 0.0)


def test_a_state_goes_on_where_it_was() -> None:
    made, resumed = matrix(ROWS[:3]), Matrix(3)
    resumed.load_state_dict(json.loads(json.dumps(made.state_dict())))
    resumed.record(3, ROWS[3])
    assert made.learned == 2
    assert metrics(resumed) == metrics(matrix(ROWS))
    with pytest.raises(ValueError, match="must have 2 tasks, but got 3"):
        Matrix(2).load_state_dict(made.state_dict())


NAMES = ["0 1", "2 3", "4 5"]
SHOWN = [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.25, 0.5, 1.0]]


def pixels(picture, color):
    return int((picture == color).all(2).sum())


def test_it_is_rgb_on_white_and_changes_with_the_numbers():
    picture = draw_matrix(matrix(SHOWN), NAMES, "accuracy")
    assert (picture.dtype, picture.ndim, picture.shape[2]) == (np.uint8, 3, 3)
    assert picture.shape[0] > 4 * CELL_HEIGHT
    edge = np.concatenate([picture[0], picture[-1], picture[:, 0], picture[:, -1]])
    assert (edge == 255).all()
    changed = draw_matrix(matrix([*SHOWN[:3], [0.25, 0.5, 0.9]]), NAMES, "accuracy")
    rows = (picture != changed).any(axis=(1, 2)).nonzero()[0]
    assert 0 < np.ptp(rows) < CELL_HEIGHT  # in the last row alone


def test_low_scores_are_light_and_high_ones_dark():
    picture = draw_matrix(matrix(SHOWN), NAMES, "accuracy")
    assert pixels(picture, LOW) > 1.5 * pixels(picture, HIGH) > 0  # six zeros and three ones
    beyond = draw_matrix(matrix([[-7.0, 7.0, 0.5]]), NAMES, "accuracy")
    assert min(pixels(beyond, LOW), pixels(beyond, HIGH)) > 0


def test_missing_rows_are_blank_and_the_size_stays():
    whole, begun, nothing = (draw_matrix(matrix(rows), NAMES, "accuracy") for rows in (SHOWN, SHOWN[:2], []))
    assert whole.shape == begun.shape == nothing.shape
    frame = tuple(bytes.fromhex(FRAME[1:]))
    assert pixels(whole, frame) == 3 * pixels(begun, frame) > 0
    assert pixels(nothing, frame) == 0
    below = whole.shape[0] - 2 * CELL_HEIGHT
    assert (begun[below:, begun.shape[1] // 2 :] == 255).all()
