from dataclasses import replace

import numpy as np
import pytest
import torch

from models.arc import FIRST_COLOUR, SYMBOLS, View, all_attempts, read_views, to_canvas, two_attempts
from models.arc.augment import Augmentation, transform


def view(rows: list[list[int]], certainty: float = 0.9, second: int = 0) -> View:
    """A view that gives its colours `certainty`, and the colour `second` most of the rest."""
    grid = np.array(rows, dtype=np.uint8)
    shares = np.full((*grid.shape, 10), (1 - certainty) / 100)
    shares[..., second] = (1 - certainty) * 0.9
    np.put_along_axis(shares, grid[..., None].astype(int), certainty, axis=-1)
    return View(grid, np.log(shares).astype(np.float32))


@pytest.mark.parametrize("symmetry", range(8))
def test_reading_a_view_undoes_its_augmentation(symmetry: int) -> None:
    grid = np.array([[1, 2, 3], [4, 5, 6]], dtype=np.uint8)
    augmentation = Augmentation(symmetry, (0, 3, 1, 2, 9, 8, 7, 6, 5, 4))
    canvas = torch.from_numpy(to_canvas(augmentation.grid(grid), 5))[None]
    logits = 8 * torch.nn.functional.one_hot(canvas.long(), SYMBOLS).float()
    table = torch.arange(SYMBOLS, dtype=torch.uint8)
    table[FIRST_COLOUR:] = torch.tensor(augmentation.colours, dtype=torch.uint8) + FIRST_COLOUR
    (read,) = read_views(logits, torch.tensor([symmetry]), table[None])
    np.testing.assert_array_equal(read.grid, grid)
    assert read.log_probs.shape == (2, 3, 10)
    np.testing.assert_allclose(np.exp(read.log_probs).sum(-1), 1, rtol=1e-5)
    assert transform(transform(read.grid, symmetry), 0).size == 6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_log_probabilities_are_computed_in_float32(dtype: torch.dtype) -> None:  # G71, C48
    torch.manual_seed(0)
    logits = (20 * torch.randn(1, 5, 5, SYMBOLS)).to(dtype)
    table = torch.arange(SYMBOLS, dtype=torch.uint8)[None]
    with torch.autocast("cpu", dtype=dtype):
        (half,) = read_views(logits, torch.tensor([0]), table)
    (full,) = read_views(logits.float(), torch.tensor([0]), table)
    assert half.log_probs.dtype == np.float32
    np.testing.assert_array_equal(half.log_probs, full.log_probs)


def test_more_votes_rank_higher_than_confidence() -> None:
    views = [view([[1, 1]], 0.99), view([[2, 2, 2]], 0.6), view([[2, 2, 2]], 0.6)]
    first, second = two_attempts(views)
    assert (first.tolist(), second.tolist()) == ([[2, 2, 2]], [[1, 1]])


def test_where_views_disagree_in_single_cells_their_mean_comes_first() -> None:
    views = [view([[1, 1, 4]], 0.9), view([[1, 5, 1]], 0.8), view([[6, 1, 1]], 0.7)]
    first, second = two_attempts(views)
    assert first.tolist() == [[1, 1, 1]]
    assert second.tolist() == [[1, 1, 4]]


@pytest.mark.parametrize("rounded", [1 / 3 - 1e-8, 1 / 3, 1 / 3 + 1e-8])
def test_a_view_that_is_answered_three_times_alike_has_one_vote_whatever_rounding_makes_of_it(rounded: float) -> None:
    views = [view([[1, 1, 4]], 0.9), view([[1, 5, 1]], 0.8), view([[6, 1, 1]], 0.7)]
    thrice = [replace(one, weight=rounded) for one in views for _ in range(3)]
    assert [grid.tolist() for grid in two_attempts(thrice)] == [grid.tolist() for grid in two_attempts(views)]


def test_equal_votes_are_ranked_by_confidence() -> None:
    views = [view([[1], [1]], 0.6), view([[2, 2]], 0.7), view([[3, 3, 3]], 0.9)]
    first, second = two_attempts(views)
    assert first.tolist() == [[1], [1]]  # The first of the sizes, which occur once each.
    assert second.tolist() == [[3, 3, 3]]


def test_unanimous_views_get_a_second_attempt_that_differs_in_the_least_certain_cell() -> None:
    unsure = view([[1, 2, 3]], 0.9, second=7)
    unsure.log_probs[0, 1] = np.log(np.full(10, 0.01))
    unsure.log_probs[0, 1, 2], unsure.log_probs[0, 1, 8] = np.log(0.5), np.log(0.4)
    first, second = two_attempts([unsure, unsure])
    assert first.tolist() == [[1, 2, 3]]
    assert second.tolist() == [[1, 8, 3]]


def test_attempts_are_distinct_whatever_the_views() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        views = []
        for _ in range(int(random.integers(1, 5))):
            log_probs = np.log(random.dirichlet(np.ones(10) * 0.2, size=tuple(random.integers(1, 3, size=2))))
            views.append(View(log_probs.argmax(-1).astype(np.uint8), log_probs.astype(np.float32)))
        first, second = two_attempts(views)
        assert not np.array_equal(first, second)


def test_equal_probabilities_still_give_distinct_attempts() -> None:
    flat = View(np.zeros((2, 2), dtype=np.uint8), np.full((2, 2, 10), np.log(0.1), dtype=np.float32))
    first, second = two_attempts([flat])
    assert first.tolist() == [[0, 0], [0, 0]]
    assert second.tolist() == [[1, 0], [0, 0]]


@pytest.mark.parametrize("logits", [torch.full((2, 5, 5, SYMBOLS), torch.nan), torch.randn(2, 5, 5, SYMBOLS) * 1e4])
def test_nonsense_can_be_read(logits: torch.Tensor) -> None:
    tables = torch.arange(SYMBOLS, dtype=torch.uint8).expand(2, -1)
    for attempt in two_attempts(read_views(logits, torch.tensor([0, 3]), tables)):
        assert attempt.size >= 1
        assert attempt.max() <= 9


def test_views_are_grouped_by_test() -> None:
    attempts = all_attempts([view([[1]]), view([[1]]), view([[2]]), view([[2]])], per_test=2)
    assert [first.tolist() for first, _ in attempts] == [[[1]], [[2]]]
