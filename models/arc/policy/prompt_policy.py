"""A Gaussian policy that changes the trust in hypotheses about a puzzle's rule, and the terms of its loss.

The policy is a Gaussian over `u`, with one entry for each of the A hypotheses that explain the demonstrations best. An
action adds `delta = scale * tanh(u)` to the logits of these hypotheses, their trust. Each puzzle gets K samples. This
is a contextual bandit: an episode has one step, and no reward is discounted. The loss takes the stored, detached `u`
and computes its log-probability again: with a sample that depends on the mean, the gradient of the mean would cancel.

Shapes: B puzzles, K samples per puzzle, A entries of an action.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SCALE = 4.0
SIGMA = 0.5
LOG_SIGMA_RANGE = (-5.0, 0.5)
SPREAD = 0.01  # of rewards, below which a puzzle tells its samples apart in nothing


class Gaussian(NamedTuple):
    """The policy's distribution over `u` in each of B states, in float32.

    Attributes:
        mean: The means, shape (B, A).
        log_sigma: The logarithms of the standard deviations, shape (A,), equal in all states.
    """

    mean: Tensor
    log_sigma: Tensor


class PromptPolicy(nn.Module):
    """A network from a prompt and a puzzle's features to a Gaussian over changes of trust.

    The standard deviation is a parameter that does not depend on the state. The mean is 0 at first: no change.

    Args:
        prompt_dim: The length of a prompt.
        features: The number of features.
        actions: The number of entries of an action, A.
        hidden: The width of the hidden layer.
        scale: The largest absolute change of an entry.
        initial_sigma: The initial standard deviation of each entry of `u`.

    Raises:
        ValueError: A number is out of range.
    """

    def __init__(
        self,
        prompt_dim: int,
        features: int,
        actions: int,
        hidden: int = 64,
        scale: float = SCALE,
        initial_sigma: float = SIGMA,
    ) -> None:
        super().__init__()
        low, high = LOG_SIGMA_RANGE
        if not 0 < scale < math.inf:
            raise ValueError(f"scale must be positive and finite, but got {scale}. Use {SCALE} to start with.")
        if not math.exp(low) < initial_sigma < math.exp(high):
            raise ValueError(
                f"initial_sigma must be between {math.exp(low):.4f} and {math.exp(high):.4f}, "
                f"but got {initial_sigma}. Use {SIGMA} to start with."
            )
        self.scale, self.initial_sigma = scale, initial_sigma
        self.hidden = nn.Linear(prompt_dim + features, hidden)
        self.mean = nn.Linear(hidden, actions)
        share = (math.log(initial_sigma) - low) / (high - low)
        self.sigma = nn.Parameter(torch.full((actions,), math.log(share / (1 - share))))
        # Small and not zero: everything behind a layer of zeros would get no gradient in the first update.
        nn.init.normal_(self.mean.weight, std=1e-3)
        nn.init.zeros_(self.mean.bias)

    def forward(self, prompt: Tensor, features: Tensor) -> Gaussian:
        """Return the distribution in B states. It is computed in float32, also under autocast.

        Args:
            prompt: The prompts, shape (B, prompt_dim).
            features: The features of the puzzles, shape (B, features).
        """
        with torch.autocast(prompt.device.type, enabled=False):
            state = torch.cat([prompt.float(), features.float()], dim=-1)
            low, high = LOG_SIGMA_RANGE
            # A smooth limit: a clamp would give a sigma that once ran into it no gradient ever after.
            log_sigma = low + (high - low) * self.sigma.sigmoid()
            return Gaussian(self.mean(F.gelu(self.hidden(state))), log_sigma)

    def squash(self, u: Tensor) -> Tensor:
        """Return the change of trust for `u`, in the same shape."""
        return squash(u, self.scale)


def sample(
    gaussian: Gaussian, count: int, noise: Tensor | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """Draw `u` by reparameterization, so that gradients reach mean and standard deviation.

    Args:
        gaussian: The distribution in B states.
        count: The number of samples per state, K.
        noise: Standard normal noise of shape (B, K, A). None: draw it.
        generator: The generator of the noise.

    Returns:
        The samples before squashing, shape (B, K, A).
    """
    batch, width = gaussian.mean.shape
    if noise is None:
        device = gaussian.mean.device if generator is None else generator.device
        noise = torch.randn(batch, count, width, generator=generator, device=device)
    noise = noise.to(gaussian.mean)
    return gaussian.mean[:, None] + gaussian.log_sigma.exp() * noise


def squash(u: Tensor, scale: float = SCALE) -> Tensor:
    """Return `scale * tanh(u)`, the change of trust, in the shape of `u`."""
    return scale * u.tanh()


def compute_log_prob(u: Tensor, gaussian: Gaussian, scale: float = SCALE) -> Tensor:
    """Compute the log-density of the squashed action `squash(u, scale)`.

    This is log N(u; mean, sigma) - sum log(scale * (1 - tanh(u)^2)). It is computed from `u` and not from the action,
    because tanh rounds to 1 for large `u` and then has no inverse.

    Args:
        u: The samples before squashing, shape (B, K, A).
        gaussian: The distribution in the B states.
        scale: The scale of the policy.

    Returns:
        The log-densities, float32 of shape (B, K).
    """
    u = u.float()
    standard = (u - gaussian.mean[:, None]) / gaussian.log_sigma.exp()
    density = -0.5 * standard.square() - gaussian.log_sigma - 0.5 * math.log(2 * math.pi)
    slope = math.log(scale) + 2 * (math.log(2) - u - F.softplus(-2 * u))
    return (density - slope).sum(-1)


def compute_entropy(gaussian: Gaussian) -> Tensor:
    """Return the entropy before squashing, in nats, shape (B,).

    Like the log-probability, it is a sum over the entries, so that a weight fits any number of entries.
    """
    return (gaussian.log_sigma + 0.5 * math.log(2 * math.pi * math.e)).expand_as(gaussian.mean).sum(-1)


def compute_kl(gaussian: Gaussian, sigma0: float = SIGMA) -> Tensor:
    """Return the KL divergence from N(0, sigma0^2), in nats, shape (B,), as a sum over the entries.

    Squashing does not change the divergence, because it changes both densities by the same factor.
    """
    log_ratio = 2 * (gaussian.log_sigma - math.log(sigma0))
    # Rounding must not make less than nothing of it.
    wider = (log_ratio.expm1() - log_ratio).clamp(min=0.0)
    return 0.5 * (wider + (gaussian.mean / sigma0).square()).sum(-1)


@torch.no_grad()
def compute_advantages(rewards: Tensor, reward_scale: float, normalize: bool = False) -> Tensor:
    """Compute the advantage of each sample over the others of its puzzle, with leave-one-out baselines.

    The baseline of a sample is the mean of the K - 1 other rewards of its puzzle (Kool et al. 2019; Ahmadian et al.
    2024, arXiv 2402.14740). It does not depend on the sample, so the gradient has no bias. If all rewards of a puzzle
    are equal, its advantages are exactly 0. Advantages do not depend on the other puzzles of a batch.

    Without `normalize`, advantages are proportional to `reward_scale`. With it, those of a puzzle are divided by the
    standard deviation of its rewards, so that **only the sign of `reward_scale` matters**.

    Args:
        rewards: The unscaled rewards, shape (B, K).
        reward_scale: The factor of the rewards. A negative factor rewards bad answers.
        normalize: Whether to divide by the standard deviation.

    Returns:
        The advantages, float32 of shape (B, K), without gradient.

    Raises:
        ValueError: K is 1, so that a sample has no others.
    """
    samples = rewards.shape[1]
    if samples < 2:
        raise ValueError(f"samples must be at least 2, but got {samples}: the others are a sample's baseline.")
    rewards = rewards.float()
    above = (rewards - rewards.mean(1, keepdim=True)) * (samples / (samples - 1))
    above = above.masked_fill(~has_spread(rewards)[:, None], 0.0)
    if not normalize:
        return reward_scale * above
    sign = float((reward_scale > 0) - (reward_scale < 0))
    return sign * above / rewards.std(dim=1, correction=0, keepdim=True).clamp(min=SPREAD / samples)


def has_spread(rewards: Tensor, least: float = SPREAD) -> Tensor:
    """Return for each puzzle whether its rewards, shape (B, K), differ by at least `least`, as bool of shape (B,)."""
    return (rewards.amax(1) - rewards.amin(1)) >= least


def compute_reinforce_loss(gaussian: Gaussian, u: Tensor, advantages: Tensor, scale: float = SCALE) -> Tensor:
    """Compute the REINFORCE loss of each puzzle: minus the log-probability, weighted with the advantage.

    Gradients pass through the log-probability only. Samples and advantages are detached.

    Args:
        gaussian: The distribution, computed again for the stored states.
        u: The stored samples before squashing, shape (B, K, A).
        advantages: The advantages of the samples, shape (B, K).
        scale: The scale of the policy.

    Returns:
        The means over the samples, float32 of shape (B,).
    """
    return -(advantages.detach() * compute_log_prob(u.detach(), gaussian, scale)).mean(1)


def clip_rows(gradient: Tensor, limit: float) -> Tensor:
    """Clip the norm of each row of `gradient`, shape (B, A), to `limit`, so that no puzzle dominates a batch."""
    largest = gradient.abs().amax(1, keepdim=True).clamp(min=1.0)  # the square of a large number is infinite
    norms = largest * (gradient / largest).norm(dim=1, keepdim=True)
    clipped: Tensor = gradient * (limit / norms.clamp(min=limit))
    return clipped
