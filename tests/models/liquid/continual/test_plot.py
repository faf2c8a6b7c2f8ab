"""A picture of the accuracy matrix."""

import numpy as np
import pytest

from models.liquid.continual import Matrix, draw
from models.liquid.continual.plot import CELL_HEIGHT, FRAME, HIGH, LOW

NAMES = ["0 1", "2 3", "4 5"]
ROWS = [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.25, 0.5, 1.0]]


def matrix(rows):
    made = Matrix(len(NAMES))
    for learned, row in enumerate(rows):
        made.record(learned, row)
    return made


def pixels(picture, colour):
    return int((picture == colour).all(2).sum())


def test_it_is_rgb_on_white_and_changes_with_the_numbers():
    picture = draw(matrix(ROWS), NAMES, "accuracy")
    assert (picture.dtype, picture.ndim, picture.shape[2]) == (np.uint8, 3, 3)
    assert picture.shape[0] > 4 * CELL_HEIGHT
    edge = np.concatenate([picture[0], picture[-1], picture[:, 0], picture[:, -1]])
    assert (edge == 255).all()
    changed = draw(matrix([*ROWS[:3], [0.25, 0.5, 0.9]]), NAMES, "accuracy")
    rows = (picture != changed).any(axis=(1, 2)).nonzero()[0]
    assert 0 < np.ptp(rows) < CELL_HEIGHT  # in the last row alone


def test_low_scores_are_light_and_high_ones_dark():
    picture = draw(matrix(ROWS), NAMES, "accuracy")
    assert pixels(picture, LOW) > 1.5 * pixels(picture, HIGH) > 0  # six zeros and three ones


def test_scores_beyond_the_range_are_as_light_or_as_dark_as_its_ends():
    picture = draw(matrix([[-7.0, 7.0, 0.5]]), NAMES, "accuracy")
    assert pixels(picture, LOW) > 0
    assert pixels(picture, HIGH) > 0


def test_rows_that_are_not_known_yet_are_blank_and_the_size_stays():
    whole, begun, nothing = (draw(matrix(rows), NAMES, "accuracy") for rows in (ROWS, ROWS[:2], []))
    assert whole.shape == begun.shape == nothing.shape
    frame = tuple(bytes.fromhex(FRAME[1:]))
    assert pixels(whole, frame) == 3 * pixels(begun, frame) > 0
    assert pixels(nothing, frame) == 0
    below = whole.shape[0] - 2 * CELL_HEIGHT
    assert (begun[below:, begun.shape[1] // 2 :] == 255).all()


def test_long_names_and_titles_have_room():
    short = draw(matrix(ROWS), NAMES, "accuracy").shape[1]
    assert draw(matrix(ROWS), ["a language of its own", "2 3", "4 5"], "accuracy").shape[1] > short + 200
    assert draw(matrix(ROWS), NAMES, "accuracy " * 20).shape[1] > short + 200


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="those of 3 tasks, but got 2"):
        draw(matrix(ROWS), NAMES[:2], "accuracy")
