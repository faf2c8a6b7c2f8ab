"""A policy that changes how far each hypothesis about a puzzle's rule is trusted, and what its learning is made of.

The policy is a Gaussian over `u`, one entry for each of the few hypotheses that the demonstrations speak for most, and
the trust in them is moved by `delta = scale * tanh(u)`. Several samples of a puzzle are tried at once (a contextual
bandit: one step, no discount). Learning takes the stored, detached `u`: its log-probability is computed anew, since a
sample that still hangs on the mean would cancel the mean's gradient.

B puzzles, K samples of each, A entries of an action.
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
    """What the policy does in each state, in float32.

    Attributes:
        mean: Shape (B, A).
        log_sigma: Shape (A,); the same in every state.
    """

    mean: Tensor
    log_sigma: Tensor


class PromptPolicy(nn.Module):
    """Looks at a prompt and at a puzzle's features, and says how to change the trust in its hypotheses.

    Sigma is a parameter that does not depend on the state. The mean begins at 0, where nothing is changed.

    Args:
        prompt_dim: Length of a prompt.
        features: Number of features.
        actions: Entries of an action.
        hidden: Width of the hidden layer.
        scale: No entry of an action moves by more than this.
        initial_sigma: Of every entry of `u`.

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
        """See a batch of states; float32 whatever autocast says.

        Args:
            prompt: Shape (B, A).
            features: Shape (B, features).
        """
        with torch.autocast(prompt.device.type, enabled=False):
            state = torch.cat([prompt.float(), features.float()], dim=-1)
            low, high = LOG_SIGMA_RANGE
            # A smooth limit: a clamp would give a sigma that once ran into it no gradient ever after.
            log_sigma = low + (high - low) * self.sigma.sigmoid()
            return Gaussian(self.mean(F.gelu(self.hidden(state))), log_sigma)

    def squash(self, u: Tensor) -> Tensor:
        """Compute the change that `u` stands for, any shape."""
        return squash(u, self.scale)


def sample(
    gaussian: Gaussian, count: int, noise: Tensor | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """Draw `u` by reparameterisation: gradients reach mean and sigma, until it is detached.

    Args:
        gaussian: Of B states.
        count: Samples of each, K.
        noise: What to draw with, standard normal of shape (B, K, A); none: drawn here.
        generator: What to draw the noise from.

    Returns:
        Before squashing, shape (B, K, A).
    """
    batch, width = gaussian.mean.shape
    if noise is None:
        device = gaussian.mean.device if generator is None else generator.device
        noise = torch.randn(batch, count, width, generator=generator, device=device)
    noise = noise.to(gaussian.mean)
    return gaussian.mean[:, None] + gaussian.log_sigma.exp() * noise


def squash(u: Tensor, scale: float = SCALE) -> Tensor:
    """Compute the change that `u` stands for: between -scale and scale, any shape."""
    return scale * u.tanh()


def log_prob(u: Tensor, gaussian: Gaussian, scale: float = SCALE) -> Tensor:
    """Compute the log-density of the squashed action `squash(u, scale)`.

    The density of `u` over the slope of the squashing: log N(u; mean, sigma) - sum log(scale * (1 - tanh(u)^2)). It
    is computed from `u`, since tanh rounds to 1 early and has no inverse there.

    Args:
        u: Before squashing, shape (B, K, A).
        gaussian: Of the B states.
        scale: That of the policy.

    Returns:
        Float32 of shape (B, K).
    """
    u = u.float()
    standard = (u - gaussian.mean[:, None]) / gaussian.log_sigma.exp()
    density = -0.5 * standard.square() - gaussian.log_sigma - 0.5 * math.log(2 * math.pi)
    slope = math.log(scale) + 2 * (math.log(2) - u - F.softplus(-2 * u))
    return (density - slope).sum(-1)


def entropy(gaussian: Gaussian) -> Tensor:
    """Compute the entropy before squashing, in nats, shape (B,).

    A sum over the entries, as the log-probability is: one weight means the same for any number of them.
    """
    return (gaussian.log_sigma + 0.5 * math.log(2 * math.pi * math.e)).expand_as(gaussian.mean).sum(-1)


def kl(gaussian: Gaussian, sigma0: float = SIGMA) -> Tensor:
    """Compute the KL divergence from N(0, sigma0^2) before squashing, in nats, shape (B,): a sum over the entries.

    No squashing changes it: both densities have the same slope.
    """
    log_ratio = 2 * (gaussian.log_sigma - math.log(sigma0))
    # Rounding must not make less than nothing of it.
    wider = (log_ratio.expm1() - log_ratio).clamp(min=0.0)
    return 0.5 * (wider + (gaussian.mean / sigma0).square()).sum(-1)


@torch.no_grad()
def advantages(rewards: Tensor, reward_scale: float, normalize: bool = False) -> Tensor:
    """Compute how much better each sample did than the others of its puzzle: leave-one-out baselines.

    The baseline of a sample is the mean of the K - 1 other rewards of its puzzle (Kool et al. 2019; Ahmadian et al.
    2024, arXiv 2402.14740). It does not depend on the sample, so the gradient has no bias. A puzzle whose rewards are
    all equal tells its samples apart in nothing, and counts exactly 0. Nothing depends on the other puzzles of a batch.

    Without `normalize` advantages are in proportion to `reward_scale`. With it, each puzzle's are divided by the
    standard deviation of its rewards, so that **only the sign of `reward_scale` matters**.

    Args:
        rewards: Unscaled, shape (B, K).
        reward_scale: Factor of the rewards; a negative one seeks what is bad.
        normalize: Divide by the spread.

    Returns:
        Float32 without gradient, shape (B, K).

    Raises:
        ValueError: One sample has no others.
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
    """Return whether the rewards of each puzzle, shape (B, K), differ by `least` or more: bool of shape (B,)."""
    return (rewards.amax(1) - rewards.amin(1)) >= least


def reinforce(gaussian: Gaussian, u: Tensor, advantages: Tensor, scale: float = SCALE) -> Tensor:
    """Weigh minus the log-probability with the advantage, by puzzle: its gradient is that of minus the reward.

    The gradient comes through the log-probability alone: samples and advantages are detached.

    Args:
        gaussian: Computed anew for the stored states.
        u: The stored samples, before squashing, shape (B, K, A).
        advantages: Shape (B, K).
        scale: That of the policy.

    Returns:
        Means over the samples, float32 of shape (B,).
    """
    return -(advantages.detach() * log_prob(u.detach(), gaussian, scale)).mean(1)


def clip_rows(gradient: Tensor, limit: float) -> Tensor:
    """Shorten the rows that are longer than `limit`, shape (B, A): one puzzle's noise must not outweigh a batch."""
    largest = gradient.abs().amax(1, keepdim=True).clamp(min=1.0)  # the square of a large number is infinite
    norms = largest * (gradient / largest).norm(dim=1, keepdim=True)
    clipped: Tensor = gradient * (limit / norms.clamp(min=limit))
    return clipped
