"""ARC's scores of attempts."""

import numpy as np

from searchlight.models.arc.evaluation import compute_scores, find_hits
from searchlight.models.arc.puzzles import Puzzle

RIGHT, OTHER = np.array([[1, 2]], dtype=np.uint8), np.array([[1], [2]], dtype=np.uint8)
ONE, TWO = (Puzzle(f"{count}", ((OTHER, RIGHT),), ((OTHER, RIGHT),) * count) for count in (1, 2))


def test_output_is_met_by_either_attempt_of_its_size():
    attempts = [(RIGHT, OTHER), (OTHER, RIGHT), (OTHER, OTHER)]
    assert find_hits([ONE, TWO], attempts) == [[True], [True, False]]


def test_puzzle_is_solved_if_all_its_outputs_are_met():
    assert compute_scores([[True], [True, False]]) == {"pass2_task": 1 / 2, "pass2_output": 2 / 3}
    assert compute_scores([[True, True]]) == {"pass2_task": 1.0, "pass2_output": 1.0}
