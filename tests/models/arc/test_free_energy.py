"""Expected free energy: its two forms are one, and no part is counted twice."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.arc import SYMBOLS
from models.arc.free_energy import ambiguity, expected_free_energy, information_gain, posterior, preferences, risk

bounded = settings(deadline=None, derandomize=True, max_examples=50)


def episode(seed: int, states: int = 4, sharpness: float = 2.0) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of some hidden states, targets, and weights of cells."""
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(states, 3, 4, 4, SYMBOLS, generator=generator)
    target = torch.randint(SYMBOLS, (3, 4, 4), generator=generator, dtype=torch.uint8)
    return logits.log_softmax(-1), target, torch.rand(3, 4, 4, generator=generator)


def mean_over_cells(cells: Tensor, mask: Tensor) -> Tensor:
    return (cells * mask).sum((-2, -1)) / mask.sum((-2, -1))


@bounded
@given(st.integers(0, 1000), st.integers(1, 6), st.floats(0.0, 5.0), st.floats(0.01, 0.5))
def test_risk_and_ambiguity_are_pragmatic_value_and_information_gain(
    seed: int, states: int, sharpness: float, epsilon: float
) -> None:
    log_probs, target, mask = episode(seed, states, sharpness)
    log_c = preferences(target, epsilon)
    found = expected_free_energy(log_probs, log_c, mask)
    pragmatic = mean_over_cells((log_probs.exp().mean(0) * log_c).sum(-1), mask)
    torch.testing.assert_close(found, -pragmatic - information_gain(log_probs, mask), rtol=1e-5, atol=1e-5)
    assert (found >= 0).all()


@bounded
@given(st.integers(0, 1000), st.integers(1, 6), st.floats(0.0, 50.0))
def test_the_information_gain_lies_between_nothing_and_the_states(seed: int, states: int, sharpness: float) -> None:
    log_probs, _, mask = episode(seed, states, sharpness)
    gain = information_gain(log_probs, mask)
    assert (gain >= 0).all()
    assert (gain <= math.log(states) + 1e-5).all()
    entropy = torch.special.entr(log_probs.exp().mean(0)).sum(-1)
    torch.testing.assert_close(
        gain, mean_over_cells(entropy, mask) - ambiguity(log_probs, mask).mean(0), rtol=1e-4, atol=1e-5
    )


def test_states_that_are_sure_of_different_answers_tell_all_there_is_to_tell() -> None:
    certain = 100 * torch.eye(SYMBOLS)[:5, None, None, None].expand(5, 3, 4, 4, SYMBOLS)
    mask = torch.ones(3, 4, 4)
    torch.testing.assert_close(information_gain(certain.log_softmax(-1), mask), torch.full((3,), math.log(5)))


def test_states_that_agree_tell_nothing() -> None:
    log_probs, _, mask = episode(0, states=1)
    gain = information_gain(log_probs.expand(4, -1, -1, -1, -1), mask)
    torch.testing.assert_close(gain, torch.zeros(3), rtol=0, atol=1e-6)


def test_ambiguity_is_the_entropy_of_a_cell() -> None:
    mask = torch.ones(3, 4, 4)
    uniform = torch.zeros(2, 3, 4, 4, SYMBOLS).log_softmax(-1)
    torch.testing.assert_close(ambiguity(uniform, mask), torch.full((2, 3), math.log(SYMBOLS)))
    log_probs, _, mask = episode(0)
    expected = torch.distributions.Categorical(logits=log_probs).entropy()
    torch.testing.assert_close(ambiguity(log_probs, mask), mean_over_cells(expected, mask))


def test_the_risk_of_a_prediction_that_is_as_preferred_is_zero() -> None:  # C80
    log_probs, target, mask = episode(0)
    log_c = preferences(target)
    torch.testing.assert_close(risk(log_c, log_c, mask), torch.zeros(3), rtol=0, atol=0)
    assert (risk(log_probs, log_c, mask) > 0).all()


def test_preferences_are_probabilities_that_prefer_the_target() -> None:
    _, target, _ = episode(0)
    shares = preferences(target, 0.12).exp()
    torch.testing.assert_close(shares.sum(-1), torch.ones(3, 4, 4))
    torch.testing.assert_close(shares.gather(-1, target.long()[..., None]), torch.full((3, 4, 4, 1), 0.89))
    assert shares.min().item() == pytest.approx(0.01)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, -0.1])
def test_preferences_must_leave_something_to_every_symbol(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon must be between 0 and 1, but got"):
        preferences(torch.zeros(1, 2, 2, dtype=torch.uint8), epsilon)


def test_masked_cells_have_no_influence() -> None:  # C88
    log_probs, target, mask = episode(0)
    mask = mask > 0.4
    other, others_target, _ = episode(1)
    changed = torch.where(mask[..., None], log_probs, other)
    found = expected_free_energy(log_probs, preferences(target), mask)
    again = expected_free_energy(changed, preferences(torch.where(mask, target, others_target)), mask)
    torch.testing.assert_close(found, again, rtol=0, atol=0)


def test_an_episode_without_any_weight_counts_nothing() -> None:
    log_probs, target, mask = episode(0)
    mask[1] = 0
    found = expected_free_energy(log_probs, preferences(target), mask)
    assert found[1].item() == 0
    assert found.isfinite().all()


def test_the_surer_of_the_target_the_less_free_energy() -> None:
    _, target, mask = episode(0)
    certain = torch.nn.functional.one_hot(target.long(), SYMBOLS).float()
    log_c = preferences(target)
    energies = [
        expected_free_energy((sharpness * certain).log_softmax(-1)[None], log_c, mask) for sharpness in (-3, 0, 1, 3)
    ]
    assert (torch.stack(energies).diff(dim=0) < 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_free_energy_has_finite_gradients_under_autocast(dtype: torch.dtype) -> None:  # C48
    _, target, mask = episode(0)
    logits = (200 * torch.randn(4, 3, 4, 4, SYMBOLS)).to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        log_probs = logits.float().log_softmax(-1)
        energy = expected_free_energy(log_probs, preferences(target), mask)
        gain = information_gain(log_probs, mask)
    assert energy.dtype == gain.dtype == torch.float32
    (energy - gain).sum().backward()
    assert logits.grad.isfinite().all()


def test_both_terms_have_gradients() -> None:
    logits = torch.randn(4, 3, 4, 4, SYMBOLS, requires_grad=True)
    mask = torch.ones(3, 4, 4)
    for term in (ambiguity(logits.log_softmax(-1), mask), information_gain(logits.log_softmax(-1), mask)):
        (gradient,) = torch.autograd.grad(term.sum(), logits)
        assert gradient.abs().max() > 0


def test_candidates_with_less_free_energy_are_likelier() -> None:
    energies = torch.tensor([[1.0, 2.0, 0.5], [3.0, 3.0, 3.0]])
    torch.testing.assert_close(posterior(energies, 2.0), torch.softmax(-2 * energies, -1))
    torch.testing.assert_close(posterior(energies, 0.0), torch.full((2, 3), 1 / 3))
    assert posterior(energies, 100.0)[0].argmax() == 2
