"""A policy that changes a puzzle's prompt, and what its one-step reinforcement learning is made of.

The policy is a Gaussian over `u`, and the prompt is moved by `delta = scale * tanh(u)`. Several samples of a puzzle
are tried at once (a contextual bandit: one step, no discount). Learning takes the stored, detached `u`: its
log-probability is computed anew, since a sample that still hangs on the mean would cancel the mean's gradient.

B puzzles, K samples of each.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SCALE = 0.2
SIGMA = 0.3
LOG_SIGMA_RANGE = (-5.0, 0.5)
SPREAD = 1e-6  # rewards that differ by less are equal: shares of cells differ by more, rounding by less


class Gaussian(NamedTuple):
    """What the policy does in each state, in float32.

    Attributes:
        mean: Shape (B, prompt_dim).
        log_sigma: Shape (prompt_dim,); the same in every state.
        value: The reward to expect, before any scale; shape (B,).
    """

    mean: Tensor
    log_sigma: Tensor
    value: Tensor


class PolicyTerms(NamedTuple):
    """Means over a batch, unweighted: a loss is `reinforce + a * value - b * entropy + c * kl`.

    Attributes:
        reinforce: Minus the advantage times the log-probability; its gradient is that of minus the reward.
        value: Half the squared error of the value.
        entropy: In nats, of the joint Gaussian; a differential entropy, which may be negative.
        kl: In nats, of the joint Gaussian; at least 0.
    """

    reinforce: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor


class PromptPolicy(nn.Module):
    """Looks at a prompt and at a puzzle's features, and says how to change the prompt.

    Mean and value have networks of their own, so neither loss disturbs the other. Sigma is a parameter that does
    not depend on the state.

    Args:
        prompt_dim: Length of a prompt.
        features: Number of features.
        hidden: Width of the hidden layers.
        scale: No entry of a prompt moves by more than this.
        initial_sigma: Of every entry of `u`.

    Raises:
        ValueError: A number is out of range.
    """

    def __init__(
        self,
        prompt_dim: int,
        features: int = 15,
        hidden: int = 256,
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
        self.scale = scale
        self.mean = _network(prompt_dim + features, hidden, prompt_dim)
        self.value = _network(prompt_dim + features, hidden, 1)
        share = (math.log(initial_sigma) - low) / (high - low)
        self.sigma = nn.Parameter(torch.full((prompt_dim,), math.log(share / (1 - share))))
        # Small and not zero: everything behind a layer of zeros would get no gradient in the first update.
        nn.init.normal_(self.mean[-1].weight, std=0.02)  # type: ignore[arg-type]

    def forward(self, prompt: Tensor, features: Tensor) -> Gaussian:
        """See a batch of states; float32 whatever autocast says.

        Args:
            prompt: Shape (B, prompt_dim).
            features: Shape (B, features).
        """
        with torch.autocast(prompt.device.type, enabled=False):
            state = torch.cat([prompt.float(), features.float()], dim=-1)
            low, high = LOG_SIGMA_RANGE
            # A smooth limit: a clamp would give a sigma that once ran into it no gradient ever after.
            log_sigma = low + (high - low) * self.sigma.sigmoid()
            return Gaussian(self.mean(state), log_sigma, self.value(state).squeeze(-1))

    def squash(self, u: Tensor) -> Tensor:
        """The change of the prompt that `u` stands for, any shape."""
        return squash(u, self.scale)


def sample(
    gaussian: Gaussian, count: int, noise: Tensor | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """Draw `u` by reparameterisation: gradients reach mean and sigma, until it is detached.

    Args:
        gaussian: Of B states.
        count: Samples of each, K.
        noise: What to draw with, standard normal of shape (B, K, prompt_dim); none: drawn here.
        generator: What to draw the noise from.

    Returns:
        Before squashing, shape (B, K, prompt_dim).
    """
    batch, width = gaussian.mean.shape
    if noise is None:
        device = gaussian.mean.device if generator is None else generator.device
        noise = torch.randn(batch, count, width, generator=generator, device=device)
    noise = noise.to(gaussian.mean)
    return gaussian.mean[:, None] + gaussian.log_sigma.exp() * noise


def squash(u: Tensor, scale: float = SCALE) -> Tensor:
    """The change of the prompt that `u` stands for: between -scale and scale, any shape."""
    return scale * u.tanh()


def log_prob(u: Tensor, gaussian: Gaussian, scale: float = SCALE) -> Tensor:
    """Log-density of the squashed action `squash(u, scale)`.

    The density of `u` over the slope of the squashing: log N(u; mean, sigma) - sum log(scale * (1 - tanh(u)^2)). It
    is computed from `u`, since tanh rounds to 1 early and has no inverse there.

    Args:
        u: Before squashing, shape (B, K, prompt_dim).
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
    """Entropy before squashing, in nats, shape (B,).

    A sum over the entries, as the log-probability is: one weight means the same in a prompt of any length.
    """
    joint = (gaussian.log_sigma + 0.5 * math.log(2 * math.pi * math.e)).sum()
    return joint.expand(len(gaussian.mean))


def kl(gaussian: Gaussian, sigma0: float = SIGMA) -> Tensor:
    """KL divergence from N(0, sigma0^2) before squashing, in nats, shape (B,); a sum over the entries, at least 0.

    No squashing changes it: both densities have the same slope.
    """
    log_ratio = 2 * (gaussian.log_sigma - math.log(sigma0))
    # Rounding must not make less than nothing of it.
    wider = (log_ratio.expm1() - log_ratio).clamp(min=0.0)
    return 0.5 * (wider + (gaussian.mean / sigma0).square()).sum(-1)


@torch.no_grad()
def advantages(rewards: Tensor, value: Tensor, reward_scale: float, normalize: bool = False) -> Tensor:
    """How much better each sample did than could be expected without it.

    The baseline of a sample is the mean of the K - 1 other rewards of its puzzle and of the value, which counts as
    one more sample. (Leaving one out: Kool et al. 2019; Ahmadian et al. 2024, arXiv 2402.14740.) It does not depend
    on the sample, so the gradient has no bias. With one sample it is the value alone. Of the gradient's variance,
    the part that the baseline's own noise adds falls to ((K - 1) / K)^2 of that without the value, if the value is
    right, and less of it is saved the more the value is wrong: nothing where its error is more than 1 to 1.5
    standard deviations of the rewards.

    Without `normalize` advantages are in proportion to `reward_scale`. With it, each puzzle's are divided by the
    standard deviation of its rewards and value, so that **only the sign of `reward_scale` matters**. (The value is
    among them, since an error of the value would have no limit next to rewards that are almost equal: so no
    advantage exceeds (K + 1) / sqrt(K).) A puzzle whose rewards are all equal tells its samples apart in nothing, and
    counts 0. Nothing depends on the other puzzles of a batch.

    Args:
        rewards: Unscaled, shape (B, K).
        value: What the policy expected of them, unscaled, shape (B,).
        reward_scale: Factor of rewards and value; a negative one seeks what is bad.
        normalize: Divide by the spread.

    Returns:
        Float32 without gradient, shape (B, K).

    Raises:
        ValueError: One sample has no spread to divide by.
    """
    samples = rewards.shape[1]
    if normalize and samples < 2:
        raise ValueError(
            f"samples must be at least 2 where advantages are normalized, but got {samples}. "
            "Draw more samples, or do not normalize."
        )
    known = torch.cat([rewards.float(), value.float()[:, None]], dim=1)
    above = known[:, :samples] - (known.sum(1, keepdim=True) - known[:, :samples]) / samples
    if not normalize:
        return reward_scale * above
    spread = known.std(dim=1, correction=0, keepdim=True)
    equal = (rewards.amax(1, keepdim=True) - rewards.amin(1, keepdim=True)) < SPREAD
    sign = float((reward_scale > 0) - (reward_scale < 0))
    return (sign * above / spread).masked_fill(equal, 0.0)


def policy_loss(
    gaussian: Gaussian,
    u: Tensor,
    advantages: Tensor,
    rewards: Tensor,
    scale: float = SCALE,
    sigma0: float = SIGMA,
) -> PolicyTerms:
    """The terms of the policy's loss; see `PolicyTerms` for their signs.

    The gradient of the first comes through the log-probability alone: samples, advantages and rewards are detached.

    Args:
        gaussian: Computed anew for the stored states.
        u: The stored samples, before squashing, shape (B, K, prompt_dim).
        advantages: Shape (B, K).
        rewards: Unscaled, shape (B, K); their mean is what the value learns.
        scale: That of the policy.
        sigma0: Of the Gaussian around no change that `kl` is taken from.
    """
    scores = log_prob(u.detach(), gaussian, scale)
    expected = rewards.detach().float().mean(1)
    return PolicyTerms(
        reinforce=-(advantages.detach() * scores).mean(),
        value=0.5 * (gaussian.value - expected).square().mean(),
        entropy=entropy(gaussian).mean(),
        kl=kl(gaussian, sigma0).mean(),
    )


def _network(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs))
