"""The Gaussian over a change of trust: its densities, its advantages, its gradient."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal, TransformedDistribution, kl_divergence
from torch.distributions.transforms import AffineTransform, TanhTransform

from searchlight.models.arc.policy import Gaussian, PromptPolicy
from searchlight.models.arc.policy.prompt_policy import (
    LOG_SIGMA_RANGE,
    clip_rows,
    compute_advantages,
    compute_entropy,
    compute_kl,
    compute_log_prob,
    compute_reinforce_loss,
    has_spread,
    sample,
    squash,
)

bounded = settings(max_examples=50)


def gaussian(batch: int = 3, width: int = 4, seed: int = 0) -> Gaussian:
    generator = torch.Generator().manual_seed(seed)
    mean, log_sigma = torch.randn(batch, width, generator=generator), torch.randn(width, generator=generator) / 3 - 1
    return Gaussian(mean.requires_grad_(), log_sigma.requires_grad_())


def states(batch: int = 5, width: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, width, generator=generator), torch.rand(batch, 15, generator=generator)


def policy(width: int = 6, **options: float) -> PromptPolicy:
    torch.manual_seed(0)
    return PromptPolicy(width, features=15, actions=width, hidden=16, **options)  # type: ignore[arg-type]


@bounded
@given(st.integers(0, 1000), st.floats(0.05, 3.0))
def test_log_probability_is_that_of_a_transformed_normal(seed: int, scale: float) -> None:
    known = gaussian(seed=seed)
    u = sample(known, 5, generator=torch.Generator().manual_seed(seed)).detach().clamp(-3, 3)
    normal = Normal(known.mean[:, None].double(), known.log_sigma.exp().double())
    transforms = [TanhTransform(), AffineTransform(0.0, scale)]
    expected = TransformedDistribution(normal, transforms).log_prob(squash(u.double(), scale)).sum(-1)
    torch.testing.assert_close(compute_log_prob(u, known, scale).double(), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("u", [-60.0, -12.0, 12.0, 60.0])
def test_log_probability_is_exact_where_tanh_rounds_to_one(u: float) -> None:
    one = Gaussian(torch.tensor([[0.0]]), torch.tensor([0.5]))
    slope = math.log(0.2) + 2 * (math.log(2) - abs(u))  # log(0.2 * (1 - tanh(u)^2)) far out
    expected = Normal(0.0, math.exp(0.5)).log_prob(torch.tensor(u)).item() - slope
    assert compute_log_prob(torch.tensor([[[u]]]), one, 0.2).item() == pytest.approx(expected, rel=1e-5)


def test_the_loss_detaches_samples_and_advantages() -> None:
    known = gaussian()
    u = sample(known, 2)
    given = torch.ones(3, 2, requires_grad=True)
    compute_reinforce_loss(known, u, given).mean().backward()
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
    torch.testing.assert_close(compute_entropy(known), normal.entropy().sum(-1), rtol=1e-4, atol=1e-4)
    around = Normal(torch.zeros(3, 4), torch.full((3, 4), sigma0))
    torch.testing.assert_close(compute_kl(known, sigma0), kl_divergence(normal, around).sum(-1), rtol=1e-4, atol=1e-4)
    assert (compute_kl(known, sigma0) > 0).all()
    same = Gaussian(torch.zeros(1, 3), torch.full((3,), math.log(sigma0)))
    assert 0 <= compute_kl(same, sigma0).item() < 1e-6


def test_baseline_is_the_mean_of_the_other_samples() -> None:
    found = compute_advantages(torch.tensor([[1.0, 0.0, 0.5]], requires_grad=True), 2.0)
    torch.testing.assert_close(found, 2 * torch.tensor([[0.75, -0.75, 0.0]]))
    assert not found.requires_grad
    with pytest.raises(ValueError, match="samples must be at least 2, but got 1: the others are"):
        compute_advantages(torch.ones(2, 1), 1.0)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("reward", [0.0, 0.1, -1e6])
def test_equal_rewards_have_exactly_no_gradient(reward: float, normalize: bool) -> None:
    known = gaussian(2)
    found = compute_advantages(torch.full((2, 4), reward), 5.0, normalize=normalize)
    assert found.tolist() == [[0.0] * 4] * 2
    compute_reinforce_loss(known, torch.randn(2, 4, 4), found).sum().backward()
    assert not known.mean.grad.any()
    assert not known.log_sigma.grad.any()


@bounded
@given(st.integers(0, 1000), st.floats(1e-3, 1e3), st.integers(2, 16))
def test_normalized_advantages_are_limited_and_ignore_the_scale(seed, factor, samples) -> None:  # C70
    rewards = torch.rand(4, samples, generator=torch.Generator().manual_seed(seed))
    plain, scaled, turned = (compute_advantages(rewards, scale, normalize=True) for scale in (1.0, factor, -factor))
    torch.testing.assert_close(scaled, plain, rtol=0, atol=0)
    torch.testing.assert_close(turned, -plain, rtol=0, atol=0)
    assert plain.abs().max() <= samples / math.sqrt(samples - 1) + 1e-3


@bounded
@given(st.integers(0, 1000), st.integers(2, 8))
def test_advantages_of_a_puzzle_sum_to_zero_on_their_own(seed: int, samples: int) -> None:
    rewards = torch.rand(6, samples, generator=torch.Generator().manual_seed(seed))
    for normalize in (False, True):
        whole = compute_advantages(rewards, 3.0, normalize=normalize)
        parts = [compute_advantages(part, 3.0, normalize=normalize) for part in rewards.split(2)]
        torch.testing.assert_close(whole, torch.cat(parts), rtol=0, atol=0)
        torch.testing.assert_close(whole.sum(1), torch.zeros(6), rtol=0, atol=1e-4)


def test_spread_tells_which_puzzles_have_different_rewards() -> None:
    rewards = torch.tensor([[0.5, 0.5], [0.5, 0.509], [0.5, 0.52]])
    assert has_spread(rewards).tolist() == [False, False, True]


@bounded
@given(st.integers(0, 1000), st.floats(0.1, 1e30))
def test_clipping_shortens_long_rows_alone(seed: int, size: float) -> None:
    rows = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
    rows[0] *= 0.05 / rows[0].norm()
    rows[1:] *= size
    clipped = clip_rows(rows, 1.0)
    torch.testing.assert_close(clipped[0], rows[0])
    assert (clipped.norm(dim=1) <= 1.0001).all()
    torch.testing.assert_close(torch.cosine_similarity(clipped[1:], rows[1:] / size, dim=1), torch.ones(3))


def test_every_parameter_has_a_gradient_from_the_first_update() -> None:
    net = policy(initial_sigma=0.4)
    found = net(*states())
    assert compute_kl(found, 0.4).max() < 0.01, "it begins where it is held to"
    torch.testing.assert_close(found.log_sigma.exp(), torch.full((6,), 0.4))
    u = sample(found, 4).detach()
    (
        compute_reinforce_loss(found, u, compute_advantages(torch.rand(5, 4), 5.0)) - 0.01 * compute_entropy(found)
    ).mean().backward()
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
        term = compute_reinforce_loss(under, u, torch.ones(5, 3))
    torch.testing.assert_close(under, net(prompt, features), rtol=0, atol=0)
    assert {part.dtype for part in (term, *net(prompt.to(dtype), features))} == {torch.float32}


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
