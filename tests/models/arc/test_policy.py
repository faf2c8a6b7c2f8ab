"""The Gaussian over a prompt's change: its densities, its advantages, its loss."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal, TransformedDistribution, kl_divergence
from torch.distributions.transforms import AffineTransform, TanhTransform

from models.arc.policy import (
    LOG_SIGMA_RANGE,
    Gaussian,
    PromptPolicy,
    advantages,
    entropy,
    kl,
    log_prob,
    policy_loss,
    sample,
    squash,
)

bounded = settings(deadline=None, derandomize=True, max_examples=50)


def gaussian(batch: int = 3, width: int = 4, seed: int = 0) -> Gaussian:
    generator = torch.Generator().manual_seed(seed)
    mean, log_sigma = torch.randn(batch, width, generator=generator), torch.randn(width, generator=generator) / 3 - 1
    return Gaussian(mean.requires_grad_(), log_sigma.requires_grad_(), torch.rand(batch, generator=generator))


def states(batch: int = 5, width: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, width, generator=generator), torch.rand(batch, 15, generator=generator)


def policy(width: int = 6, **options: float) -> PromptPolicy:
    torch.manual_seed(0)
    return PromptPolicy(width, hidden=16, **options)  # type: ignore[arg-type]


def test_the_log_probability_is_that_of_the_squashed_action() -> None:  # C68
    one = Gaussian(torch.tensor([[0.1]]), torch.tensor([0.0]), torch.zeros(1))
    assert log_prob(torch.tensor([[[0.3]]]), one, 0.2).item() == pytest.approx(0.7591810, abs=1e-6)


@bounded
@given(st.integers(0, 1000), st.floats(0.05, 3.0))
def test_the_log_probability_is_that_of_a_transformed_normal(seed: int, scale: float) -> None:  # C68
    known = gaussian(seed=seed)
    u = sample(known, 5, generator=torch.Generator().manual_seed(seed)).detach().clamp(-3, 3)
    normal = Normal(known.mean[:, None].double(), known.log_sigma.exp().double())
    transforms = [TanhTransform(), AffineTransform(0.0, scale)]
    expected = TransformedDistribution(normal, transforms).log_prob(squash(u.double(), scale)).sum(-1)
    torch.testing.assert_close(log_prob(u, known, scale).double(), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("u", [-60.0, -12.0, 12.0, 60.0])
def test_the_log_probability_is_exact_where_tanh_has_rounded_to_one(u: float) -> None:
    one = Gaussian(torch.tensor([[0.0]]), torch.tensor([0.5]), torch.zeros(1))
    slope = math.log(0.2) + 2 * (math.log(2) - abs(u))  # log(0.2 * (1 - tanh(u)^2)) far out
    expected = Normal(0.0, math.exp(0.5)).log_prob(torch.tensor(u)).item() - slope
    assert log_prob(torch.tensor([[[u]]]), one, 0.2).item() == pytest.approx(expected, rel=1e-5)


def test_the_score_of_a_stored_sample_is_its_distance_from_the_mean() -> None:  # C69
    known = gaussian()
    u = sample(known, 1).detach()
    log_prob(u, known).sum().backward()
    expected = (u[:, 0] - known.mean) / known.log_sigma.exp().square()
    torch.testing.assert_close(known.mean.grad, expected.detach())
    assert known.mean.grad.abs().min() > 0  # type: ignore[union-attr]


def test_the_loss_detaches_a_sample_that_still_hangs_on_the_mean() -> None:  # C69
    known = gaussian()
    u, rewards = sample(known, 2), torch.rand(3, 2)
    given = torch.ones(3, 2, requires_grad=True)
    policy_loss(known, u, given, rewards).reinforce.backward()
    expected = -((u - known.mean[:, None]) / known.log_sigma.exp().square()).sum(1) / 6
    torch.testing.assert_close(known.mean.grad, expected.detach())
    assert given.grad is None


def test_samples_have_the_mean_and_sigma_of_the_gaussian() -> None:
    known = gaussian()
    drawn = sample(known, 20_000, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.mean(1), known.mean, atol=0.02, rtol=0)
    torch.testing.assert_close(drawn.std(1).log(), known.log_sigma.expand(3, 4), atol=0.03, rtol=0)


def test_samples_follow_from_the_generator_or_from_the_noise() -> None:
    known = gaussian()
    first, again = (sample(known, 4, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    noise = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(sample(known, 4, noise), first, rtol=0, atol=0)


def test_samples_carry_gradients_to_mean_and_sigma() -> None:
    known = gaussian()
    squash(sample(known, 8)).square().sum().backward()
    assert known.mean.grad.abs().min() > 0  # type: ignore[union-attr]
    assert known.log_sigma.grad.abs().min() > 0  # type: ignore[union-attr]


def test_a_prompt_moves_by_less_than_the_scale() -> None:
    delta = policy(scale=0.3).squash(torch.linspace(-50, 50, 101))
    assert delta.abs().max() <= 0.3
    torch.testing.assert_close(delta, 0.3 * torch.linspace(-50, 50, 101).tanh())


@bounded
@given(st.integers(0, 1000), st.floats(0.1, 1.0))
def test_entropy_and_kl_are_those_of_the_joint_gaussian(seed: int, sigma0: float) -> None:
    known = gaussian(seed=seed)
    normal = Normal(known.mean, known.log_sigma.exp().expand(3, 4))
    torch.testing.assert_close(entropy(known), normal.entropy().sum(-1), rtol=1e-4, atol=1e-4)
    around = Normal(torch.zeros(3, 4), torch.full((3, 4), sigma0))
    torch.testing.assert_close(kl(known, sigma0), kl_divergence(normal, around).sum(-1), rtol=1e-4, atol=1e-4)
    assert (kl(known, sigma0) > 0).all()


@bounded
@given(st.floats(-5.0, 0.5))
def test_kl_is_zero_for_the_same_gaussian_and_never_below(log_sigma: float) -> None:  # C80
    same = Gaussian(torch.zeros(1, 3), torch.full((3,), log_sigma), torch.zeros(1))
    assert 0 <= kl(same, math.exp(log_sigma)).item() < 1e-6
    assert kl(same, math.exp(log_sigma) * 1.01).item() > 0


def test_the_baseline_is_the_mean_of_the_others_and_the_value() -> None:
    found = advantages(torch.tensor([[1.0, 0.0, 0.5]]), torch.tensor([0.3]), 2.0, normalize=False)
    expected = 2 * torch.tensor([[1 - 0.8 / 3, 0 - 1.8 / 3, 0.5 - 1.3 / 3]])
    torch.testing.assert_close(found, expected)


def test_without_a_reward_only_the_value_is_left() -> None:  # C73
    value = torch.tensor([0.25, -0.5], requires_grad=True)
    alone = advantages(torch.zeros(2, 1), value, 5.0, normalize=False)
    torch.testing.assert_close(alone, -5 * value.detach()[:, None])
    shared = advantages(torch.zeros(2, 4), value, 5.0, normalize=False)
    torch.testing.assert_close(shared, -5 * value.detach()[:, None].expand(2, 4) / 4)
    assert not shared.requires_grad
    terms = policy_loss(gaussian(2), torch.randn(2, 4, 4), shared, torch.zeros(2, 4))
    assert all(term.isfinite() for term in terms)


def test_without_reward_or_value_the_entropy_alone_remains() -> None:  # C73
    known = gaussian(2)
    given = advantages(torch.zeros(2, 3), torch.zeros(2), 5.0, normalize=False)
    terms = policy_loss(known, torch.randn(2, 3, 4), given, torch.zeros(2, 3))
    (terms.reinforce - 0.1 * terms.entropy).backward()
    torch.testing.assert_close(known.mean.grad, torch.zeros(2, 4))
    torch.testing.assert_close(known.log_sigma.grad, torch.full((4,), -0.1))


@bounded
@given(st.integers(0, 1000), st.sampled_from([0.5, 2.0, 3.0, 20.0]))
def test_advantages_are_in_proportion_to_the_reward_scale(seed: int, factor: float) -> None:  # C72
    generator = torch.Generator().manual_seed(seed)
    rewards, value = torch.rand(4, 5, generator=generator), torch.rand(4, generator=generator)
    plain, scaled = (advantages(rewards, value, scale, normalize=False) for scale in (1.0, factor))
    torch.testing.assert_close(scaled, factor * plain, rtol=1e-6, atol=0)


@bounded
@given(st.integers(0, 1000), st.floats(1e-3, 1e3))
def test_normalized_advantages_do_not_know_the_reward_scale(seed: int, factor: float) -> None:  # C72
    generator = torch.Generator().manual_seed(seed)
    rewards, value = torch.rand(4, 5, generator=generator), torch.rand(4, generator=generator)
    plain, scaled, turned = (advantages(rewards, value, scale, normalize=True) for scale in (1.0, factor, -factor))
    torch.testing.assert_close(scaled, plain, rtol=0, atol=0)
    torch.testing.assert_close(turned, -plain, rtol=0, atol=0)


@bounded
@given(st.integers(0, 1000), st.floats(1e-4, 1e4), st.integers(2, 16))
def test_normalized_advantages_have_a_limit_however_wrong_the_value(seed: int, error: float, samples: int) -> None:
    rewards = torch.rand(4, samples, generator=torch.Generator().manual_seed(seed))
    found = advantages(rewards, torch.full((4,), error), 1.0, normalize=True)
    assert found.abs().max() <= (samples + 1) / math.sqrt(samples) + 1e-3


def test_a_puzzle_whose_samples_are_all_alike_counts_nothing_when_normalized() -> None:
    rewards = torch.tensor([[0.1, 0.1, 0.1], [0.1, 0.1, 0.3]])
    found = advantages(rewards, torch.tensor([0.9, 0.9]), 1.0, normalize=True)
    assert found[0].tolist() == [0, 0, 0]
    assert found[1].abs().min() > 0


def test_no_puzzle_depends_on_the_others_of_its_batch() -> None:
    rewards, value = torch.rand(6, 4), torch.rand(6)
    whole = advantages(rewards, value, 3.0, normalize=True)
    parts = [advantages(*part, 3.0, normalize=True) for part in zip(rewards.split(2), value.split(2), strict=True)]
    torch.testing.assert_close(whole, torch.cat(parts), rtol=0, atol=0)


def test_one_sample_cannot_be_normalized() -> None:
    with pytest.raises(ValueError, match="samples must be at least 2 where advantages are normalized, but got 1"):
        advantages(torch.ones(2, 1), torch.ones(2), 1.0, normalize=True)


def test_a_gradient_with_less_variance_is_still_that_of_the_reward() -> None:
    """Of E[-|u - 1|^2] at mean 0: RLOO, with a value that is right, and through the sample, 4000 batches each."""
    torch.manual_seed(0)
    batches, samples, width, sigma = 4000, 8, 16, 0.3
    truth = torch.full((width,), 2.0)
    u = sigma * torch.randn(batches, samples, width)
    rewards = -(u - 1).square().sum(-1)
    right = torch.full((batches,), -width * (1 + sigma**2))
    score = u / sigma**2
    left_out = (rewards - rewards.mean(1, keepdim=True)) * samples / (samples - 1)
    gradients = {
        "rloo": (left_out[..., None] * score).mean(1),
        "value": (advantages(rewards, right, 1.0, normalize=False)[..., None] * score).mean(1),
        "pathwise": (-2 * (u - 1)).mean(1),
    }
    variance = {name: gradient.var(0).sum().item() for name, gradient in gradients.items()}
    for name, gradient in gradients.items():
        error = 5 * (variance[name] / batches) ** 0.5
        assert (gradient.mean(0) - truth).norm() < error, name
    assert variance["value"] < 0.99 * variance["rloo"]
    assert variance["pathwise"] < 0.01 * variance["value"]


def test_every_parameter_has_a_gradient_from_the_first_update() -> None:  # C65
    net = policy()
    found = net(*states())
    u, rewards = sample(found, 4).detach(), torch.rand(5, 4)
    terms = policy_loss(found, u, advantages(rewards, found.value, 5.0, normalize=False), rewards)
    (terms.reinforce + terms.value - 0.01 * terms.entropy + 0.1 * terms.kl).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in net.parameters())  # type: ignore[union-attr]


def test_the_mean_starts_small_and_not_at_zero() -> None:
    mean = policy(width=64)(*states(width=64)).mean
    assert 0.001 < mean.abs().mean() < 0.2


def test_sigma_starts_as_asked_and_is_the_same_in_every_state() -> None:
    found = policy(initial_sigma=0.4)(*states())
    torch.testing.assert_close(found.log_sigma.exp(), torch.full((6,), 0.4))


def test_sigma_stays_in_its_range_and_keeps_its_gradient_there() -> None:
    net = policy()
    for pushed in (-12.0, 12.0):
        net.sigma.data.fill_(pushed)
        log_sigma = net(*states()).log_sigma
        low, high = LOG_SIGMA_RANGE
        assert ((log_sigma >= low) & (log_sigma <= high)).all()
        (gradient,) = torch.autograd.grad(log_sigma.sum(), net.sigma)
        assert (gradient > 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_policy_runs_in_float32(dtype: torch.dtype) -> None:
    net, (prompt, features) = policy(), states()
    plain = net(prompt, features)
    with torch.autocast("cpu", dtype=dtype):
        under = net(prompt, features)
        u = sample(under, 3, torch.ones(5, 3, 6))
        terms = policy_loss(under, u, torch.ones(5, 3), torch.rand(5, 3))
    for one, other in zip(plain, under, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert {term.dtype for term in terms} == {torch.float32}
    assert {part.dtype for part in net(prompt.to(dtype), features)} == {torch.float32}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0.0}, "scale must be positive and finite, but got 0.0"),
        ({"initial_sigma": 2.0}, "initial_sigma must be between 0.0067 and 1.6487, but got 2.0"),
        ({"initial_sigma": 0.001}, "initial_sigma must be between 0.0067 and 1.6487, but got 0.001"),
    ],
)
def test_numbers_out_of_range_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policy(**options)
