import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.arc import BORDER, FIRST_COLOUR, PAD, SYMBOLS, cell_loss
from models.arc.canvas import to_canvases
from models.arc.losses import consistency, js_divergence, kl_divergence, layout_loss


def test_uniform_logits_cost_the_logarithm_of_the_symbols() -> None:
    target = torch.randint(SYMBOLS, (3, 4, 4), dtype=torch.uint8)
    loss, weight = cell_loss(torch.zeros(2, 3, 4, 4, SYMBOLS), target)
    assert loss.item() == pytest.approx(math.log(SYMBOLS), rel=1e-6)
    assert weight.item() == 3
    assert weight.dtype == torch.float32


def test_the_loss_by_hand() -> None:
    target = torch.tensor([[[5, BORDER], [BORDER, PAD]]], dtype=torch.uint8)
    logits = torch.zeros(1, 1, 2, 2, SYMBOLS)
    logits[0, 0, 0, 0, 5] = 100.0  # right, and sure: costs nothing
    loss, _ = cell_loss(logits, target, border_weight=0.5, pad_weight=0.25)
    assert loss.item() == pytest.approx(math.log(SYMBOLS) * 1.25 / 2.25, rel=1e-5)


def test_steps_and_episodes_count_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, 4, SYMBOLS, generator=generator)
    target = torch.randint(SYMBOLS, (3, 4, 4), generator=generator, dtype=torch.uint8)
    target[0] = PAD
    target[0, 0, 0] = 5
    parts = [
        cell_loss(logits[step : step + 1, episode : episode + 1], target[episode : episode + 1])[0]
        for step in range(2)
        for episode in range(3)
    ]
    torch.testing.assert_close(cell_loss(logits, target)[0], torch.stack(parts).mean())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_loss_is_computed_in_float32(dtype: torch.dtype) -> None:  # G71, C48
    logits = 40 * torch.randn(2, 3, 4, 4, SYMBOLS, dtype=dtype)
    target = torch.randint(SYMBOLS, (3, 4, 4), dtype=torch.uint8)
    with torch.autocast("cpu", dtype=dtype):
        loss, _ = cell_loss(logits, target)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, cell_loss(logits.float(), target)[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_gradient_of_the_loss_is_that_of_float32(dtype: torch.dtype) -> None:  # G71, C48
    logits = 40 * torch.randn(2, 3, 4, 4, SYMBOLS).to(dtype)
    target = torch.randint(SYMBOLS, (3, 4, 4), dtype=torch.uint8)
    half, full = logits.clone().requires_grad_(), logits.float().requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        loss, weight = cell_loss(half, target)
    loss.backward()
    cell_loss(full, target)[0].backward()
    assert weight.dtype == torch.float32
    torch.testing.assert_close(half.grad, full.grad.to(dtype))


def episode() -> tuple[Tensor, Tensor]:
    """Random logits of two steps, and targets of three sizes on canvases of side 5."""
    generator = torch.Generator().manual_seed(0)
    grids = [np.ones(shape, dtype=np.uint8) for shape in ((2, 3), (4, 4), (5, 5))]
    return torch.randn(2, 3, 5, 5, SYMBOLS, generator=generator), to_canvases(grids, 5)


def saturated(symbols: Tensor) -> Tensor:
    """Logits that are sure of these symbols, shape (batch, S, S) -> (1, batch, S, S, 12)."""
    return 200.0 * F.one_hot(symbols.long(), SYMBOLS).float()[None]


def test_the_cell_loss_with_a_floor_of_one_is_the_plain_cross_entropy() -> None:  # C82
    logits, target = episode()
    plain = cell_loss(logits, target, border_weight=1.0, pad_weight=1.0)[0]
    expected = F.cross_entropy(logits.flatten(0, -2), target.long().repeat(2, 1, 1).flatten())
    torch.testing.assert_close(plain, expected)
    torch.testing.assert_close(cell_loss(logits, target, 1.0)[0], cell_loss(logits, target)[0], rtol=0, atol=0)


def test_right_cells_have_the_floor_as_their_weight() -> None:  # C82
    target = torch.tensor([[[4, 5], [6, 7]]], dtype=torch.uint8)
    said = target.clone()
    said[0, 1, 1] = 8
    loss, _ = cell_loss(saturated(said), target, hard_cell_floor=0.5)
    assert loss.item() == pytest.approx(200.0 * 1 / (0.5 + 0.5 + 0.5 + 1), rel=1e-6)


def test_the_weight_of_a_cell_follows_its_probability() -> None:  # C82
    target = torch.tensor([[[4, 5]]], dtype=torch.uint8).expand(1, 2, 2)
    shares = torch.tensor([[0.9, 0.2], [0.6, 0.5]])
    rest = ((1 - shares) / 11)[..., None].expand(2, 2, SYMBOLS)
    logits = rest.scatter(-1, target[0].long()[..., None], shares[..., None]).log()[None, None]
    weights = 0.3 + 0.7 * (1 - shares)
    loss, _ = cell_loss(logits, target, hard_cell_floor=0.3)
    assert loss.item() == pytest.approx(((weights * -shares.log()).sum() / weights.sum()).item(), rel=1e-5)


def test_the_hard_cell_weights_are_continuous() -> None:  # C82
    logits, target = episode()
    before = cell_loss(logits, target, 0.3)[0]
    for step in (1e-2, 1e-3, 1e-4):
        after = cell_loss(logits + step * torch.ones(SYMBOLS).cumsum(0), target, 0.3)[0]
        assert (after - before).abs() < 20 * step
    right, barely_wrong = saturated(target), saturated(target)
    barely_wrong[0, 0, 0, 0, 9] = 190.0
    torch.testing.assert_close(
        cell_loss(barely_wrong, target, 0.3)[0], cell_loss(right, target, 0.3)[0], rtol=0, atol=1e-4
    )


def test_the_hard_cell_weights_are_constants_to_the_gradient() -> None:
    logits, target = episode()
    leaf = logits.clone().requires_grad_()
    cell_loss(leaf, target, 0.3, 1.0, 1.0)[0].backward()
    probability = logits.softmax(-1)
    wrong = probability - F.one_hot(target.long(), SYMBOLS)
    missing = 1 - probability.gather(-1, target.long().expand(2, 3, 5, 5)[..., None])
    weights = 0.3 + 0.7 * missing
    expected = wrong * weights / weights.sum((2, 3), keepdim=True) / 6
    torch.testing.assert_close(leaf.grad, expected)


@pytest.mark.parametrize("floor", [0.2, 1.0])
def test_episodes_and_steps_count_alike_whatever_the_floor(floor: float) -> None:
    logits, target = episode()
    parts = [
        cell_loss(logits[step : step + 1, one : one + 1], target[one : one + 1], floor)[0]
        for step in range(2)
        for one in range(3)
    ]
    torch.testing.assert_close(cell_loss(logits, target, floor)[0], torch.stack(parts).mean())


@pytest.mark.parametrize("floor", [0.0, -0.1, 1.1, math.nan])
def test_a_floor_out_of_range_is_refused(floor: float) -> None:
    with pytest.raises(ValueError, match="hard_cell_floor must be above 0 and at most 1, but got"):
        cell_loss(*episode(), hard_cell_floor=floor)


@pytest.mark.parametrize("floor", [0.3, 1.0])
def test_cells_outside_count_nothing_without_a_weight(floor: float) -> None:  # C88
    logits, target = episode()
    changed = logits + 50 * torch.randn(logits.shape) * (target == PAD)[..., None]
    losses = [cell_loss(given, target, floor, pad_weight=0.0)[0] for given in (logits, changed)]
    torch.testing.assert_close(*losses, rtol=0, atol=0)
    assert cell_loss(changed, target, floor)[0] != cell_loss(logits, target, floor)[0]


@pytest.mark.parametrize("floor", [0.3, 1.0])
def test_a_larger_canvas_changes_nothing_where_cells_outside_have_no_weight(floor: float) -> None:  # C88
    logits, target = episode()
    wide, room = F.pad(logits[:, :2], (0, 0, 0, 4, 0, 4), value=3.0), F.pad(target[:2], (0, 4, 0, 4), value=PAD)
    larger, as_it_was = cell_loss(wide, room, floor, pad_weight=0.0), cell_loss(logits[:, :2], target[:2], floor, 1, 0)
    torch.testing.assert_close(larger[0], as_it_was[0])


def test_the_layout_loss_by_hand() -> None:
    target = torch.tensor([[[5, 7, BORDER], [BORDER, BORDER, BORDER], [PAD, PAD, PAD]]], dtype=torch.uint8)
    loss = layout_loss(torch.zeros(1, 1, 3, 3, SYMBOLS), target)
    assert loss.item() == pytest.approx((math.log(12) + math.log(12) + math.log(12 / 10)) / 3, rel=1e-6)
    no_edge = layout_loss(torch.zeros(1, 1, 1, 1, SYMBOLS), target[:, :1, :1])
    assert no_edge.item() == pytest.approx(math.log(12 / 10), rel=1e-6)


def test_the_layout_loss_does_not_ask_for_colours() -> None:
    logits, target = episode()
    other = torch.where(target >= FIRST_COLOUR, target + 5, target)
    torch.testing.assert_close(layout_loss(logits, target), layout_loss(logits, other), rtol=0, atol=0)
    leaf = saturated(target).requires_grad_()
    assert layout_loss(leaf, other).item() == 0
    layout_loss(logits.requires_grad_(), target).backward()
    assert (logits.grad.abs().sum((0, 1, 2, 3)) > 0).all()


def test_episodes_and_steps_count_alike_in_the_layout_loss() -> None:
    logits, target = episode()
    parts = [layout_loss(logits[step, None, one, None], target[one, None]) for step in range(2) for one in range(3)]
    torch.testing.assert_close(layout_loss(logits, target), torch.stack(parts).mean())


def log_probs(seed: int, sharpness: float = 1.0) -> Tensor:
    return (sharpness * torch.randn(64, SYMBOLS, generator=torch.Generator().manual_seed(seed))).log_softmax(-1)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(0, 1000), st.floats(0.0, 100.0))
def test_divergences_are_divergences(seed: int, sharpness: float) -> None:  # C80
    p, q = log_probs(seed, sharpness), log_probs(seed + 1, 2.0)
    js, kl = js_divergence(p, q), kl_divergence(p, q)
    torch.testing.assert_close(js, js_divergence(q, p))
    assert (js > 0).all()
    assert (js <= math.log(2) + 1e-6).all()
    assert (kl > 0).all()
    torch.testing.assert_close(kl, F.kl_div(q, p, reduction="none", log_target=True).sum(-1))
    torch.testing.assert_close(js_divergence(p, p), torch.zeros(64), rtol=0, atol=1e-6)
    torch.testing.assert_close(kl_divergence(p, p), torch.zeros(64), rtol=0, atol=0)


def test_the_consistency_is_the_divergence_of_steps_that_follow_each_other() -> None:  # C80
    logits, _ = episode()
    steps = torch.cat([logits, logits[:1], logits[:1]])
    log_p, log_q = logits.log_softmax(-1)
    expected = 2 / 3 * js_divergence(log_p, log_q).mean()
    torch.testing.assert_close(consistency(steps), expected)
    assert consistency(logits[:1]).item() == 0
    torch.testing.assert_close(
        consistency(logits[:1].expand(4, 3, 5, 5, SYMBOLS)), torch.tensor(0.0), rtol=0, atol=1e-6
    )


def test_steps_that_contradict_each_other_are_as_far_apart_as_can_be() -> None:  # C80
    _, target = episode()
    opposed = torch.cat([saturated(target), saturated(torch.where(target == PAD, 3, target - 1))])
    assert consistency(opposed).item() == pytest.approx(math.log(2), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_all_losses_are_finite_in_half_precision(dtype: torch.dtype) -> None:  # C48
    logits, target = episode()
    half = (300 * logits).to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        losses = [cell_loss(half, target, 0.3)[0], layout_loss(half, target), consistency(half)]
    assert {loss.dtype for loss in losses} == {torch.float32}
    torch.stack(losses).sum().backward()
    assert half.grad.isfinite().all()
    full = half.detach().float()
    expected = [cell_loss(full, target, 0.3)[0], layout_loss(full, target), consistency(full)]
    torch.testing.assert_close(losses, expected)
