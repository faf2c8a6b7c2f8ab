"""The reward says of a canvas what the score says of an attempt."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.arc import BORDER, FIRST_COLOUR, PAD, SYMBOLS, Grid, read_views, to_canvas
from models.arc.canvas import to_canvases
from models.arc.metrics import cell_accuracy
from models.arc.reward import Rewards, rewards, total

SIDE = 7
bounded = settings(deadline=None, derandomize=True, max_examples=50)


def grid(rows: list[list[int]]) -> Grid:
    return np.array(rows, dtype=np.uint8)


def answers(grids: list[Grid], certainty: float = 9.0) -> Tensor:
    """Logits that say these grids."""
    return certainty * torch.nn.functional.one_hot(to_canvases(grids, SIDE).long(), SYMBOLS).float()


def reward(answer: Grid, target: Grid, query: Grid) -> tuple[float, float, float]:
    exact, lift, size = rewards(answers([answer]), to_canvases([target], SIDE), to_canvases([query], SIDE))
    return exact.item(), lift.item(), size.item()


@bounded
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.5, 2.0, 8.0]))
def test_the_reward_agrees_with_the_reading_and_the_score_of_attempts(seed: int, certainty: float) -> None:
    random, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    shapes = random.integers(1, SIDE + 1, size=(3, 8, 2))
    said, targets, queries = ([random.integers(0, 3, size=shape, dtype=np.uint8) for shape in row] for row in shapes)
    targets[:2], queries[2:4] = said[:2], targets[2:4]
    logits = torch.randn(8, SIDE, SIDE, SYMBOLS, generator=generator) + answers(said, certainty)
    found = rewards(logits, to_canvases(targets, SIDE), to_canvases(queries, SIDE))
    tables = torch.arange(SYMBOLS, dtype=torch.uint8).expand(8, SYMBOLS)
    for number, view in enumerate(read_views(logits, torch.zeros(8, dtype=torch.int64), tables)):
        target = targets[number]
        accuracy, identity = cell_accuracy(view.grid, target), cell_accuracy(queries[number], target)
        assert found.exact[number].item() == np.array_equal(view.grid, target)
        assert found.size[number].item() == (view.grid.shape == target.shape)
        lift = max(-1.0, (accuracy - identity) / (1 - identity)) if identity < 1 else accuracy - 1
        assert found.cell_lift[number].item() == pytest.approx(lift, abs=1e-5)


def test_a_right_answer_gets_all_there_is() -> None:
    assert reward(grid([[1, 2]]), grid([[1, 2]]), grid([[1, 1]])) == (1.0, 1.0, 1.0)


def test_answering_with_the_query_is_no_lift() -> None:
    assert reward(grid([[1, 1]]), grid([[1, 2]]), grid([[1, 1]])) == (0.0, 0.0, 1.0)


def test_a_wrong_size_costs_its_cells_and_nothing_is_resized() -> None:
    exact, lift, size = reward(grid([[1, 2, 3, 4]]), grid([[1, 2]]), grid([[5, 5]]))
    assert (exact, size) == (0.0, 0.0)
    assert lift == pytest.approx(0.5)


def test_the_lift_is_finite_where_the_query_is_the_answer() -> None:
    same = grid([[1, 2], [3, 4]])
    assert reward(same, same, same) == (1.0, 0.0, 1.0)
    assert reward(grid([[1, 2], [3, 5]]), same, same) == (0.0, -0.25, 1.0)


def test_the_lift_does_not_fall_below_minus_one() -> None:
    query = grid([[1] * 5] * 4)
    target = query.copy()
    target[0, 0] = 2
    assert reward(grid([[9] * 5] * 4), target, query) == (0.0, -1.0, 1.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_reward_is_computed_in_float32_without_gradient(dtype: torch.dtype) -> None:
    logits = (3 * torch.randn(4, SIDE, SIDE, SYMBOLS)).to(dtype).requires_grad_()
    target = to_canvases([grid([[1, 2]])] * 4, SIDE)
    with torch.autocast("cpu", dtype=dtype):
        half = rewards(logits, target, target)
    for one, other in zip(half, rewards(logits.float(), target, target), strict=True):
        assert one.dtype == torch.float32
        assert not one.requires_grad
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_being_right_counts_most() -> None:
    parts = Rewards(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([1.0, 0.5, -1.0]), torch.tensor([1.0, 1.0, 0.0]))
    torch.testing.assert_close(total(parts), torch.tensor([1.3, 0.2, -0.2]))


def test_what_stands_outside_of_the_answer_has_no_influence() -> None:
    target = to_canvases([grid([[1, 2], [3, 4]])], SIDE)
    logits = answers([grid([[1, 2], [3, 4]])])
    logits[0, 4:, :, FIRST_COLOUR] += 3.0  # less than what speaks for nothing there
    assert [part.item() for part in rewards(logits, target, target)] == [1.0, 0.0, 1.0]
    assert {PAD, BORDER} <= set(to_canvas(grid([[1]]), 3).flatten().tolist())
