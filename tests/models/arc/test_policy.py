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


@bounded
@given(st.integers(0, 1000), st.floats(0.05, 3.0))
def test_log_probability_is_that_of_a_transformed_normal(seed: int, scale: float) -> None:
    known = gaussian(seed=seed)
    u = sample(known, 5, generator=torch.Generator().manual_seed(seed)).detach().clamp(-3, 3)
    normal = Normal(known.mean[:, None].double(), known.log_sigma.exp().double())
    transforms = [TanhTransform(), AffineTransform(0.0, scale)]
    expected = TransformedDistribution(normal, transforms).log_prob(squash(u.double(), scale)).sum(-1)
    torch.testing.assert_close(log_prob(u, known, scale).double(), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("u", [-60.0, -12.0, 12.0, 60.0])
def test_log_probability_is_exact_where_tanh_rounds_to_one(u: float) -> None:
    one = Gaussian(torch.tensor([[0.0]]), torch.tensor([0.5]), torch.zeros(1))
    slope = math.log(0.2) + 2 * (math.log(2) - abs(u))  # log(0.2 * (1 - tanh(u)^2)) far out
    expected = Normal(0.0, math.exp(0.5)).log_prob(torch.tensor(u)).item() - slope
    assert log_prob(torch.tensor([[[u]]]), one, 0.2).item() == pytest.approx(expected, rel=1e-5)


def test_the_loss_detaches_samples_and_advantages() -> None:
    known = gaussian()
    u, rewards = sample(known, 2), torch.rand(3, 2)
    given = torch.ones(3, 2, requires_grad=True)
    policy_loss(known, u, given, rewards).reinforce.backward()
    expected = -((u - known.mean[:, None]) / known.log_sigma.exp().square()).sum(1) / 6
    torch.testing.assert_close(known.mean.grad, expected.detach())
    assert given.grad is None


def test_samples_are_mean_plus_sigma_times_noise() -> None:
    known = gaussian()
    noise = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(1))
    drawn = sample(known, 4, noise)
    torch.testing.assert_close(drawn, known.mean[:, None] + known.log_sigma.exp() * noise)
    torch.testing.assert_close(sample(known, 4, generator=torch.Generator().manual_seed(1)), drawn, rtol=0, atol=0)
    squash(drawn).square().sum().backward()
    assert known.mean.grad.abs().min() > 0
    assert known.log_sigma.grad.abs().min() > 0


@bounded
@given(st.integers(0, 1000), st.floats(0.1, 1.0))
def test_entropy_and_kl_are_those_of_the_joint_gaussian(seed: int, sigma0: float) -> None:
    known = gaussian(seed=seed)
    normal = Normal(known.mean, known.log_sigma.exp().expand(3, 4))
    torch.testing.assert_close(entropy(known), normal.entropy().sum(-1), rtol=1e-4, atol=1e-4)
    around = Normal(torch.zeros(3, 4), torch.full((3, 4), sigma0))
    torch.testing.assert_close(kl(known, sigma0), kl_divergence(normal, around).sum(-1), rtol=1e-4, atol=1e-4)
    assert (kl(known, sigma0) > 0).all()
    same = Gaussian(torch.zeros(1, 3), torch.full((3,), math.log(sigma0)), torch.zeros(1))
    assert 0 <= kl(same, sigma0).item() < 1e-6


def test_the_baseline_is_the_mean_of_the_others_and_the_value() -> None:
    expected = 2 * torch.tensor([[1 - 0.8 / 3, 0 - 1.8 / 3, 0.5 - 1.3 / 3]])
    given = torch.tensor([[1.0, 0.0, 0.5]]), torch.tensor([0.3], requires_grad=True)
    found = advantages(*given, 2.0, normalize=False)
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad
    with pytest.raises(ValueError, match="samples must be at least 2 where advantages are normalized, but got 1"):
        advantages(given[0][:, :1], given[1], 1.0, normalize=True)


@pytest.mark.parametrize("samples", [1, 4])
def test_without_a_reward_only_the_value_is_left(samples: int) -> None:
    value = torch.tensor([0.25, -0.5])
    found = advantages(torch.zeros(2, samples), value, 5.0, normalize=False)
    torch.testing.assert_close(found, -5 * value[:, None].expand(2, samples) / samples)
    terms = policy_loss(gaussian(2), torch.randn(2, samples, 4), found, torch.zeros(2, samples))
    assert all(term.isfinite() for term in terms)


@bounded
@given(st.integers(0, 1000), st.floats(1e-3, 1e3), st.floats(1e-4, 1e4), st.integers(2, 16))
def test_normalized_advantages_are_limited_and_ignore_the_scale(seed, factor, error, samples) -> None:
    rewards, value = torch.rand(4, samples, generator=torch.Generator().manual_seed(seed)), torch.full((4,), error)
    plain, scaled, turned = (advantages(rewards, value, scale, normalize=True) for scale in (1.0, factor, -factor))
    torch.testing.assert_close(scaled, plain, rtol=0, atol=0)
    torch.testing.assert_close(turned, -plain, rtol=0, atol=0)
    assert plain.abs().max() <= (samples + 1) / math.sqrt(samples) + 1e-3


def test_normalized_puzzles_are_independent_and_zero_if_equal() -> None:
    rewards, value = torch.rand(6, 4), torch.rand(6)
    rewards[2] = 0.1
    whole = advantages(rewards, value, 3.0, normalize=True)
    parts = [advantages(*part, 3.0, normalize=True) for part in zip(rewards.split(2), value.split(2), strict=True)]
    torch.testing.assert_close(whole, torch.cat(parts), rtol=0, atol=0)
    assert whole[2].tolist() == [0] * 4
    assert whole[3].abs().min() > 0


def test_every_parameter_has_a_gradient_from_the_first_update() -> None:
    net = policy(initial_sigma=0.4)
    found = net(*states())
    assert 0.001 < found.mean.abs().mean() < 0.2
    torch.testing.assert_close(found.log_sigma.exp(), torch.full((6,), 0.4))
    u, rewards = sample(found, 4).detach(), torch.rand(5, 4)
    terms = policy_loss(found, u, advantages(rewards, found.value, 5.0, normalize=False), rewards)
    (terms.reinforce + terms.value - 0.01 * terms.entropy + 0.1 * terms.kl).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in net.parameters())


@pytest.mark.parametrize("pushed", [-12.0, 12.0])
def test_sigma_stays_in_its_range_and_keeps_its_gradient(pushed: float) -> None:
    net = policy()
    net.sigma.data.fill_(pushed)
    log_sigma = net(*states()).log_sigma
    assert LOG_SIGMA_RANGE[0] <= log_sigma.min() <= log_sigma.max() <= LOG_SIGMA_RANGE[1]
    assert (torch.autograd.grad(log_sigma.sum(), net.sigma)[0] > 0).all()
    torch.testing.assert_close(net.squash(torch.tensor([-50.0, 0.3])), net.scale * torch.tensor([-50.0, 0.3]).tanh())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_policy_runs_in_float32(dtype: torch.dtype) -> None:
    net, (prompt, features) = policy(), states()
    with torch.autocast("cpu", dtype=dtype):
        under = net(prompt, features)
        u = sample(under, 3, torch.ones(5, 3, 6))
        terms = policy_loss(under, u, torch.ones(5, 3), torch.rand(5, 3))
    torch.testing.assert_close(under, net(prompt, features), rtol=0, atol=0)
    assert {part.dtype for part in (*terms, *net(prompt.to(dtype), features))} == {torch.float32}


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
