"""Losses of the answer, and the expected free energy: its two forms are one."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from searchlight.models.arc.agent import compute_cell_loss, compute_consistency, compute_layout_loss
from searchlight.models.arc.agent.free_energy import (
    compute_ambiguity,
    compute_expected_free_energy,
    compute_information_gain,
    compute_posterior,
    compute_preferences,
    compute_risk,
)
from searchlight.models.arc.agent.losses import compute_js_divergence, compute_kl_divergence
from searchlight.models.arc.puzzles import BORDER, FIRST_COLOR, PAD, SYMBOLS, draw_canvases


def test_the_loss_by_hand() -> None:
    target = torch.tensor([[[5, BORDER], [BORDER, PAD]]], dtype=torch.uint8)
    logits = torch.zeros(1, 1, 2, 2, SYMBOLS)
    logits[0, 0, 0, 0, 5] = 100.0  # right, and sure: costs nothing
    loss, weight = compute_cell_loss(logits, target, border_weight=0.5, pad_weight=0.25)
    assert loss.item() == pytest.approx(math.log(SYMBOLS) * 1.25 / 2.25, rel=1e-5)
    assert (weight.item(), weight.dtype) == (1, torch.float32)


def episode() -> tuple[Tensor, Tensor]:
    """Random logits of two steps, and targets of three sizes on canvases of side 5."""
    generator = torch.Generator().manual_seed(0)
    grids = [np.ones(shape, dtype=np.uint8) for shape in ((2, 3), (4, 4), (5, 5))]
    return torch.randn(2, 3, 5, 5, SYMBOLS, generator=generator), draw_canvases(grids, 5)


def saturated(symbols: Tensor) -> Tensor:
    """Logits that are sure of these symbols, shape (batch, S, S) -> (1, batch, S, S, 12)."""
    return 200.0 * F.one_hot(symbols.long(), SYMBOLS).float()[None]


def test_a_floor_of_one_is_the_plain_cross_entropy() -> None:
    logits, target = episode()
    plain = compute_cell_loss(logits, target, border_weight=1.0, pad_weight=1.0)[0]
    expected = F.cross_entropy(logits.flatten(0, -2), target.long().repeat(2, 1, 1).flatten())
    torch.testing.assert_close(plain, expected)
    torch.testing.assert_close(
        compute_cell_loss(logits, target, 1.0)[0], compute_cell_loss(logits, target)[0], rtol=0, atol=0
    )


def test_the_weight_of_a_cell_follows_its_probability() -> None:
    target = torch.tensor([[[4, 5]]], dtype=torch.uint8).expand(1, 2, 2)
    shares = torch.tensor([[0.9, 0.2], [0.6, 0.5]])
    rest = ((1 - shares) / 11)[..., None].expand(2, 2, SYMBOLS)
    logits = rest.scatter(-1, target[0].long()[..., None], shares[..., None]).log()[None, None]
    weights = 0.3 + 0.7 * (1 - shares)
    loss, _ = compute_cell_loss(logits, target, hard_cell_floor=0.3)
    assert loss.item() == pytest.approx(((weights * -shares.log()).sum() / weights.sum()).item(), rel=1e-5)


def test_the_hard_cell_weights_are_constants_to_the_gradient() -> None:
    logits, target = episode()
    leaf = logits.clone().requires_grad_()
    compute_cell_loss(leaf, target, 0.3, 1.0, 1.0)[0].backward()
    probability = logits.softmax(-1)
    wrong = probability - F.one_hot(target.long(), SYMBOLS)
    missing = 1 - probability.gather(-1, target.long().expand(2, 3, 5, 5)[..., None])
    weights = 0.3 + 0.7 * missing
    expected = wrong * weights / weights.sum((2, 3), keepdim=True) / 6
    torch.testing.assert_close(leaf.grad, expected)


@pytest.mark.parametrize(
    "loss",
    [
        lambda *given: compute_cell_loss(*given)[0],
        lambda *given: compute_cell_loss(*given, 0.2)[0],
        compute_layout_loss,
    ],
    ids=["cells", "hard cells", "layout"],
)
def test_episodes_and_steps_count_alike(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    logits, target = episode()
    parts = [loss(logits[step, None, one, None], target[one, None]) for step in range(2) for one in range(3)]
    torch.testing.assert_close(loss(logits, target), torch.stack(parts).mean())


@pytest.mark.parametrize("floor", [0.3, 1.0])
def test_cells_outside_count_nothing_without_a_weight(floor: float) -> None:
    logits, target = episode()
    changed = logits + 50 * torch.randn(logits.shape) * (target == PAD)[..., None]
    expected = compute_cell_loss(logits, target, floor, pad_weight=0.0)[0]
    torch.testing.assert_close(compute_cell_loss(changed, target, floor, pad_weight=0.0)[0], expected, rtol=0, atol=0)
    assert compute_cell_loss(changed, target, floor)[0] != compute_cell_loss(logits, target, floor)[0]
    wide, room = F.pad(logits, (0, 0, 0, 4, 0, 4), value=3.0), F.pad(target, (0, 4, 0, 4), value=PAD)
    torch.testing.assert_close(
        compute_cell_loss(wide[:, :2], room[:2], floor, 1, 0), compute_cell_loss(logits[:, :2], target[:2], floor, 1, 0)
    )


def test_the_layout_loss_by_hand() -> None:
    target = torch.tensor([[[5, 7, BORDER], [BORDER, BORDER, BORDER], [PAD, PAD, PAD]]], dtype=torch.uint8)
    loss = compute_layout_loss(torch.zeros(1, 1, 3, 3, SYMBOLS), target)
    assert loss.item() == pytest.approx((math.log(12) + math.log(12) + math.log(12 / 10)) / 3, rel=1e-6)
    no_edge = compute_layout_loss(torch.zeros(1, 1, 1, 1, SYMBOLS), target[:, :1, :1])
    assert no_edge.item() == pytest.approx(math.log(12 / 10), rel=1e-6)


def test_the_layout_loss_does_not_ask_for_colors() -> None:
    logits, target = episode()
    other = torch.where(target >= FIRST_COLOR, target + 5, target)
    torch.testing.assert_close(compute_layout_loss(logits, target), compute_layout_loss(logits, other), rtol=0, atol=0)
    leaf = saturated(target).requires_grad_()
    assert compute_layout_loss(leaf, other).item() == 0
    compute_layout_loss(logits.requires_grad_(), target).backward()
    assert (logits.grad.abs().sum((0, 1, 2, 3)) > 0).all()


def log_probs(seed: int, sharpness: float = 1.0) -> Tensor:
    return (sharpness * torch.randn(64, SYMBOLS, generator=torch.Generator().manual_seed(seed))).log_softmax(-1)


@settings(max_examples=50)
@given(st.integers(0, 1000), st.floats(0.0, 100.0))
def test_divergences_are_divergences(seed: int, sharpness: float) -> None:
    p, q = log_probs(seed, sharpness), log_probs(seed + 1, 2.0)
    js, kl = compute_js_divergence(p, q), compute_kl_divergence(p, q)
    torch.testing.assert_close(js, compute_js_divergence(q, p))
    assert (js > 0).all()
    assert (js <= math.log(2) + 1e-6).all()
    assert (kl > 0).all()
    torch.testing.assert_close(kl, F.kl_div(q, p, reduction="none", log_target=True).sum(-1))
    torch.testing.assert_close(compute_js_divergence(p, p), torch.zeros(64), rtol=0, atol=1e-6)
    torch.testing.assert_close(compute_kl_divergence(p, p), torch.zeros(64), rtol=0, atol=0)


def test_the_consistency_is_the_divergence_of_following_steps() -> None:
    logits, target = episode()
    steps = torch.cat([logits, logits[:1], logits[:1]])
    log_p, log_q = logits.log_softmax(-1)
    torch.testing.assert_close(compute_consistency(steps), 2 / 3 * compute_js_divergence(log_p, log_q).mean())
    assert compute_consistency(logits[:1]).item() == 0
    opposed = torch.cat([saturated(target), saturated(torch.where(target == PAD, 3, target - 1))])
    assert compute_consistency(opposed).item() == pytest.approx(math.log(2), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_losses_and_gradients_of_half_logits_are_those_of_fp32(dtype: torch.dtype) -> None:
    logits, target = episode()
    half = (300 * logits).to(dtype).requires_grad_()
    full = half.detach().float().requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        losses = [compute_cell_loss(half, target, 0.3)[0], compute_layout_loss(half, target), compute_consistency(half)]
    assert {loss.dtype for loss in losses} == {torch.float32}
    expected = [compute_cell_loss(full, target, 0.3)[0], compute_layout_loss(full, target), compute_consistency(full)]
    torch.testing.assert_close(losses, expected)
    for found in (losses, expected):
        torch.stack(found).sum().backward()
    assert half.grad.isfinite().all()
    torch.testing.assert_close(half.grad, full.grad.to(dtype))


bounded = settings(max_examples=50)


def beliefs(seed: int, states: int = 4, sharpness: float = 2.0) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of some hidden states, targets, and weights of cells."""
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(states, 3, 4, 4, SYMBOLS, generator=generator)
    target = torch.randint(SYMBOLS, (3, 4, 4), generator=generator, dtype=torch.uint8)
    return logits.log_softmax(-1), target, torch.rand(3, 4, 4, generator=generator)


def mean_over_cells(cells: Tensor, mask: Tensor) -> Tensor:
    return (cells * mask).sum((-2, -1)) / mask.sum((-2, -1))


@bounded
@given(st.integers(0, 1000), st.integers(1, 6), st.floats(0.0, 5.0), st.floats(0.01, 0.5))
def test_free_energy_is_pragmatic_value_and_information_gain(seed, states, sharpness, epsilon) -> None:
    log_probs, target, mask = beliefs(seed, states, sharpness)
    log_c = compute_preferences(target, epsilon)
    found = compute_expected_free_energy(log_probs, log_c, mask)
    pragmatic = mean_over_cells((log_probs.exp().mean(0) * log_c).sum(-1), mask)
    torch.testing.assert_close(found, -pragmatic - compute_information_gain(log_probs, mask), rtol=1e-5, atol=1e-5)
    assert (found >= 0).all()


@bounded
@given(st.integers(0, 1000), st.integers(1, 6), st.floats(0.0, 50.0))
def test_information_gain_is_between_zero_and_log_of_states(seed: int, states: int, sharpness: float) -> None:
    log_probs, _, mask = beliefs(seed, states, sharpness)
    gain = compute_information_gain(log_probs, mask)
    assert (gain >= 0).all()
    assert (gain <= math.log(states) + 1e-5).all()
    entropy = torch.special.entr(log_probs.exp().mean(0)).sum(-1)
    expected = mean_over_cells(entropy, mask) - compute_ambiguity(log_probs, mask).mean(0)
    torch.testing.assert_close(gain, expected, rtol=1e-4, atol=1e-5)


def test_ambiguity_is_the_entropy_of_a_cell() -> None:
    mask = torch.ones(3, 4, 4)
    uniform = torch.zeros(2, 3, 4, 4, SYMBOLS).log_softmax(-1)
    torch.testing.assert_close(compute_ambiguity(uniform, mask), torch.full((2, 3), math.log(SYMBOLS)))
    log_probs, _, mask = beliefs(0)
    expected = torch.distributions.Categorical(logits=log_probs).entropy()
    torch.testing.assert_close(compute_ambiguity(log_probs, mask), mean_over_cells(expected, mask))


def test_preferences_are_probabilities_that_prefer_the_target() -> None:
    _, target, mask = beliefs(0)
    shares = compute_preferences(target, 0.12).exp()
    torch.testing.assert_close(compute_risk(shares.log(), shares.log(), mask), torch.zeros(3), rtol=0, atol=0)
    torch.testing.assert_close(shares.sum(-1), torch.ones(3, 4, 4))
    torch.testing.assert_close(shares.gather(-1, target.long()[..., None]), torch.full((3, 4, 4, 1), 0.89))
    assert shares.min().item() == pytest.approx(0.01)
    for epsilon in (0.0, 1.0):
        with pytest.raises(ValueError, match="epsilon must be between 0 and 1, but got"):
            compute_preferences(target, epsilon)


def test_masked_cells_and_episodes_have_no_influence() -> None:
    log_probs, target, mask = beliefs(0)
    mask = mask > 0.4
    mask[1] = False
    other, others_target, _ = beliefs(1)
    changed = torch.where(mask[..., None], log_probs, other)
    found = compute_expected_free_energy(log_probs, compute_preferences(target), mask)
    again = compute_expected_free_energy(changed, compute_preferences(torch.where(mask, target, others_target)), mask)
    torch.testing.assert_close(found, again, rtol=0, atol=0)
    assert found[1].item() == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_free_energy_has_finite_gradients_under_autocast(dtype: torch.dtype) -> None:  # C48
    _, target, mask = beliefs(0)
    logits = (200 * torch.randn(4, 3, 4, 4, SYMBOLS)).to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        log_probs = logits.float().log_softmax(-1)
        terms = (
            compute_expected_free_energy(log_probs, compute_preferences(target), mask),
            compute_information_gain(log_probs, mask),
        )
    for term in terms:
        assert term.dtype == torch.float32
        (gradient,) = torch.autograd.grad(term.sum(), logits, retain_graph=True)
        assert gradient.isfinite().all()
        assert gradient.any()


def test_candidates_with_less_free_energy_are_likelier() -> None:
    energies = torch.tensor([[1.0, 2.0, 0.5], [3.0, 3.0, 3.0]])
    torch.testing.assert_close(compute_posterior(energies, 2.0), torch.softmax(-2 * energies, -1))
    torch.testing.assert_close(compute_posterior(energies, 0.0), torch.full((2, 3), 1 / 3))
    assert compute_posterior(energies, 100.0)[0].argmax() == 2
