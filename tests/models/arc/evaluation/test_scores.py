"""The score of an attempt, and the reward that says the same of a canvas."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from searchlight.models.arc.evaluation import compute_metrics, tally
from searchlight.models.arc.evaluation.attempts import read_views
from searchlight.models.arc.evaluation.metrics import SUMS
from searchlight.models.arc.policy import compute_rewards, sum_rewards
from searchlight.models.arc.policy.reward import Rewards
from searchlight.models.arc.puzzles import FIRST_COLOR, SYMBOLS, Grid, Puzzle, draw_canvases
from searchlight.models.arc.puzzles.canvas import compute_cell_accuracy


def grid(*rows: list[int]) -> np.ndarray:
    return np.array(rows, dtype=np.uint8)


ANY = grid([0])
# Keeps the shape; two tests. Its identity is right in 2 of 4 and 3 of 4 cells.
PAIR = (grid([1, 1], [0, 0]), grid([1, 1], [2, 2]))
SAME = Puzzle("same", (PAIR,), (PAIR, (grid([1, 1], [1, 0]), grid([1, 1], [1, 2]))))
# Cuts a row of four into one of two: the identity is right in 2 of 4 cells.
CUT = Puzzle("cut", ((grid([1, 2, 3, 4]), grid([1, 2])),), ((grid([5, 6, 7, 8]), grid([5, 6])),))


def test_a_wrong_size_counts_as_wrong_cells() -> None:
    truth = grid([1, 2], [3, 4])
    assert compute_cell_accuracy(truth, truth) == 1.0
    assert compute_cell_accuracy(grid([1, 2], [3, 0]), truth) == 0.75
    assert compute_cell_accuracy(grid([1, 2]), truth) == 0.5
    assert compute_cell_accuracy(grid([1, 2, 0], [3, 4, 0]), truth) == pytest.approx(4 / 6)
    assert compute_cell_accuracy(grid([1], [3], [0]), truth) == 0.5  # Two match, and the larger area is 4.
    assert compute_cell_accuracy(grid([1, 1, 1, 1]), grid([1], [1])) == 0.25


def test_the_metrics_by_hand() -> None:
    attempts = [
        (grid([1, 1], [2, 0]), grid([1, 1], [2, 2])),  # 3 of 4 cells, and the second attempt hits
        (grid([1, 1], [1, 0]), grid([0, 0], [0, 0])),  # the identity
        (grid([5, 6]), ANY),  # hits at once
    ]
    found = compute_metrics(tally([SAME, CUT], attempts))
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


def test_the_input_lifts_nothing_and_right_answers_score_one() -> None:
    tests = [*SAME.tests, *CUT.tests]
    found = compute_metrics(tally([SAME, CUT], [(source, ANY) for source, _ in tests]))
    assert found["cell_lift"] == found["cell_lift_same_shape"] == found["changed_cell_acc"] == 0.0
    assert found["size_acc"] == pytest.approx(2 / 3)
    found = compute_metrics(tally([SAME, CUT], [(target, ANY) for _, target in tests]))
    assert {name for name, value in found.items() if value != 1.0} == {"identity_acc"}


def test_a_puzzle_is_solved_only_if_all_its_tests_are() -> None:
    found = compute_metrics(tally([SAME], [(SAME.tests[0][1], ANY), (ANY, ANY)]))
    assert (found["pass2_task"], found["pass2_output"]) == (0.0, 0.5)
    assert tuple(tally([], [])) == SUMS
    assert set(compute_metrics(tally([], [])).values()) == {0.0}


def test_sums_of_parts_make_the_metrics_of_the_whole() -> None:
    attempts = [(grid([1, 1], [2, 0]), ANY), (ANY, ANY), (grid([5, 0]), grid([5, 6]))]
    parts = tally([SAME], attempts[:2]), tally([CUT], attempts[2:])
    added = {name: parts[0][name] + parts[1][name] for name in SUMS}
    assert compute_metrics(added) == pytest.approx(compute_metrics(tally([SAME, CUT], attempts)))


SIDE = 7
bounded = settings(max_examples=50)


def answers(grids: list[Grid], certainty: float = 9.0) -> Tensor:
    """Logits that say these grids."""
    return certainty * torch.nn.functional.one_hot(draw_canvases(grids, SIDE).long(), SYMBOLS).float()


@bounded
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.5, 2.0, 8.0]))
def test_the_reward_agrees_with_the_score_of_attempts(seed: int, certainty: float) -> None:
    random, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    shapes = random.integers(1, SIDE + 1, size=(3, 8, 2))
    said, targets, queries = ([random.integers(0, 3, size=shape, dtype=np.uint8) for shape in row] for row in shapes)
    targets[:2], queries[2:4] = said[:2], targets[2:4]
    logits = torch.randn(8, SIDE, SIDE, SYMBOLS, generator=generator) + answers(said, certainty)
    found = compute_rewards(logits, draw_canvases(targets, SIDE), draw_canvases(queries, SIDE))
    tables = torch.arange(SYMBOLS, dtype=torch.uint8).expand(8, SYMBOLS)
    for number, view in enumerate(read_views(logits, torch.zeros(8, dtype=torch.int64), tables)):
        target = targets[number]
        accuracy, identity = compute_cell_accuracy(view.grid, target), compute_cell_accuracy(queries[number], target)
        assert found.exact[number].item() == np.array_equal(view.grid, target)
        assert found.size[number].item() == (view.grid.shape == target.shape)
        lift = max(-1.0, (accuracy - identity) / (1 - identity)) if identity < 1 else accuracy - 1
        assert found.cell_lift[number].item() == pytest.approx(lift, abs=1e-5)


def test_the_lift_is_limited_and_the_total_weighs_all_parts() -> None:
    query = np.ones((4, 5), dtype=np.uint8)
    target = query.copy()
    target[0, 0] = 2
    found = compute_rewards(answers([9 * query]), draw_canvases([target], SIDE), draw_canvases([query], SIDE))
    assert [part.item() for part in found[:3]] == [0.0, -1.0, 1.0]
    parts = [[1.0, 0.0, 0.0], [1.0, 0.5, -1.0], [1.0, 1.0, 0.0], [0.0, -0.5, -3.0]]
    torch.testing.assert_close(sum_rewards(Rewards(*map(torch.tensor, parts))), torch.tensor([1.3, -0.3, -3.2]))


def test_likelihood_tells_answers_apart_that_read_alike() -> None:
    shown = grid([1, 2], [3, 4])
    target = draw_canvases([shown] * 3, SIDE)
    logits = torch.cat([answers([shown], certainty) for certainty in (3.0, 6.0, -200.0)])
    found = compute_rewards(logits, target, target)
    assert found.exact.tolist() == [1.0, 1.0, 0.0]
    least = math.exp(3.0) / (math.exp(3.0) + SYMBOLS - 1)
    assert found.likelihood[0].item() == pytest.approx(math.log(least), rel=1e-4)
    assert found.likelihood[0] < found.likelihood[1] < 0
    assert found.likelihood[2] == -3.0, "a limit on what one answer can cost"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_reward_is_computed_in_float32_without_gradient(dtype: torch.dtype) -> None:
    logits = (3 * torch.randn(4, SIDE, SIDE, SYMBOLS)).to(dtype).requires_grad_()
    target = draw_canvases([grid([1, 2])] * 4, SIDE)
    with torch.autocast("cpu", dtype=dtype):
        half = compute_rewards(logits, target, target)
    assert {(one.dtype, one.requires_grad) for one in half} == {(torch.float32, False)}
    torch.testing.assert_close(half, compute_rewards(logits.float(), target, target), rtol=0, atol=0)


def test_logits_outside_of_the_answer_have_no_influence() -> None:
    shown = grid([1, 2], [3, 4])
    target, logits = draw_canvases([shown], SIDE), answers([shown])
    logits[0, 4:, :, FIRST_COLOR] += 3.0  # less than what speaks for nothing there
    assert [part.item() for part in compute_rewards(logits, target, target)[:3]] == [1.0, 0.0, 1.0]
