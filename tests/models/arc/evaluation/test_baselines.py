"""Answers that need no learning, and what they score."""

import math

import numpy as np
import pytest
import torch

from searchlight.models.arc.evaluation import find_two_guesses, look_up, prepare_evaluation, score_unlearned
from searchlight.models.arc.evaluation.baselines import compute_point_score
from searchlight.models.arc.puzzles import Puzzle


def batch_of(puzzles: list[Puzzle]):
    return prepare_evaluation(puzzles, 1, 1).tests.build_batch(
        torch.arange(sum(len(puzzle.tests) for puzzle in puzzles))
    )


def test_guesses_answer_moved_grids_and_differ(puzzles: list[Puzzle]) -> None:
    batch = batch_of([puzzles[0], puzzles[3]])  # mirrored; enlarged
    for (first, second), target in zip(find_two_guesses(batch), batch.target.numpy(), strict=True):
        np.testing.assert_array_equal(first, target)
        assert not np.array_equal(first, second)


def test_table_answers_recolored_grids(puzzles: list[Puzzle]) -> None:
    batch = batch_of([puzzles[1]])
    for answer, target in zip(look_up(batch), batch.target.numpy(), strict=True):
        shown = target >= 2
        assert (answer == target)[shown].mean() > 0.9


def test_point_score_is_one_of_right_answers_and_best_in_hindsight() -> None:
    assert compute_point_score(torch.ones(3)) == pytest.approx(0.99)
    found = compute_point_score(torch.tensor([0.5]))
    assert found == pytest.approx(0.5 * math.sqrt(1 / 11), rel=1e-3), "as unsure as it is wrong"


def test_unlearned_answers_are_scored_over_tests_and_rehearsals(puzzles: list[Puzzle]) -> None:
    found = score_unlearned(prepare_evaluation([puzzles[0], puzzles[1]], 1, 2))
    assert found["pass2_output_guesses"] >= 0.5  # mirrored; recolored, where a grid may lack the color
    assert 0 < found["score_lookup"] < 1
    assert found["score_guesses"] > 0.5
