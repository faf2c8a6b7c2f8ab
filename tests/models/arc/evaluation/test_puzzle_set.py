"""Puzzles with the results of all programs: what answers a test, and what does not depend on its answer."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from searchlight.models.arc.evaluation import find_hits, prepare_puzzle_set
from searchlight.models.arc.programs import OPERATIONS
from searchlight.models.arc.puzzles import Puzzle


@pytest.fixture(scope="module")
def crop() -> Puzzle:
    """A puzzle whose rule no recoloring expresses: the input is mirrored."""
    random = np.random.default_rng(0)
    inputs = [random.integers(0, 10, size=(3, 4), dtype=np.uint8) for _ in range(4)]
    pairs = tuple((grid, np.ascontiguousarray(grid[:, ::-1])) for grid in inputs)
    return Puzzle("mirror", pairs[:3], pairs[3:])


def test_test_is_answered_by_the_executed_programs_alone(crop):
    puzzles = prepare_puzzle_set([crop], None)
    best = int(puzzles.rewards[0].argmax())
    others = [index for index in range(len(OPERATIONS)) if puzzles.rewards[0, index] == 0]
    order = torch.tensor([[*others[:3], best]])
    assert find_hits([crop], puzzles.answer(order, 3)) == [[False]]
    assert find_hits([crop], puzzles.answer(order, 4)) == [[True]]
    (two,) = puzzles.answer(order, 0)
    assert len(two) == 2, "the inputs alone give two attempts, too"


def test_nothing_depends_on_the_answers(crop):  # C89
    blank = replace(crop, tests=((crop.tests[0][0], np.zeros((1, 1), dtype=np.uint8)),))
    seen, unseen = (prepare_puzzle_set([puzzle], None) for puzzle in (crop, blank))
    for part in ("statistics", "is_valid", "rewards"):
        assert torch.equal(getattr(seen, part), getattr(unseen, part))
    order = torch.arange(len(OPERATIONS))[None]
    for one, other in zip(seen.answer(order, 500), unseen.answer(order, 500), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_kept_results_equal_those_just_computed(crop, tmp_path):
    first, second = (prepare_puzzle_set([crop], tmp_path) for _ in range(2))
    assert torch.equal(first.rewards, second.rewards)
    order = first.rewards.argsort(dim=1, descending=True)
    for one, other in zip(first.answer(order, 20), second.answer(order, 20), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert len(list(tmp_path.iterdir())) == 1
