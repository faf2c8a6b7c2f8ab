"""The combination of agent, prompt encoder and policy, and the losses that train them."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from searchlight.models.arc.agent import (
    PAD_WEIGHT,
    GridAgent,
    Reading,
    Refiner,
    compute_cell_loss,
    compute_color_loss,
    compute_consistency,
    compute_layout_loss,
    free_energy,
)
from searchlight.models.arc.policy import Gaussian, PromptPolicy, compute_rewards, sum_rewards
from searchlight.models.arc.policy import prompt_policy as policy
from searchlight.models.arc.prompt import PromptEncoder, compute_puzzle_features
from searchlight.models.arc.puzzles import PAD, Batch

Refine = Callable[[Reading, Tensor, Tensor], Tensor]

FAR = 10.0  # logits of trust behind the first: beyond it, all are equally far to the policy
CLIP = 1.0  # of each term's gradient of the policy, by puzzle


class Weights(NamedTuple):
    """The weights of the terms of both losses. The risk, which is the answer's cross-entropy, and the score have 1."""

    size: float
    ambiguity: float
    consistency: float
    pathwise: float
    information: float
    entropy: float
    kl: float


class Solver:
    """An agent that answers puzzles, with an optional prompt encoder and an optional policy.

    The agent reads a puzzle once, and the encoder computes its prompt. The policy gives a distribution over changes of
    the trust in the agent's hypotheses about the rule. The agent refines one answer for each sampled change.

    Shapes: B episodes, T refinement steps, canvases of side S, K candidates.

    Args:
        agent: The agent.
        encoder: The encoder of prompts. None: there are no prompts.
        policy: The policy that changes the trust in hypotheses. None: the trust does not change.
    """

    def __init__(self, agent: GridAgent, encoder: PromptEncoder | None, policy: PromptPolicy | None) -> None:
        self.agent, self.encoder, self.policy = agent, encoder, policy

    def read(self, batch: Batch) -> Reading:
        """Read the puzzles. The result does not depend on prompts."""
        reading: Reading = self.agent.read(batch.query, batch.demo_inputs, batch.demo_outputs, batch.demo_mask)
        return reading

    def encode_prompt(self, batch: Batch) -> tuple[Tensor | None, Tensor]:
        """Return the prompts, shape (B, dim), and the features of the puzzles, shape (B, 15)."""
        features = compute_puzzle_features(batch.query, batch.demo_inputs, batch.demo_outputs, batch.demo_mask)
        return None if self.encoder is None else self.encoder(batch.text, features), features

    def get_distribution(self, prompt: Tensor, features: Tensor, reading: Reading) -> Gaussian:
        """Return the policy's distribution, given the prompts, the features and the trust in each proposal.

        Raises:
            ValueError: There is no policy.
        """
        if self.policy is None:
            raise ValueError("get_distribution must be asked of a solver with a policy, but it has none.")
        trust = (reading.trust - reading.trust[:, :1]).detach().float().clamp(min=-FAR) / FAR
        gaussian: Gaussian = self.policy(prompt.detach(), torch.cat([features, trust], dim=1))
        return gaussian

    def answer_candidates(self, batch: Batch, noise: Tensor) -> Tensor:
        """Answer under K candidate changes of trust.

        Args:
            batch: The episodes.
            noise: Standard normal noise of shape (K, A), which selects the changes. Zeros select the policy's mean.

        Returns:
            Logits of shape (T, B, K, S, S, 12). Without a policy, K is 1.
        """
        prompt, features = self.encode_prompt(batch)
        reading = self.read(batch)
        if self.policy is None or prompt is None:
            logits: Tensor = self.agent.refiner(reading, prompt)
            return logits[:, :, None]
        gaussian = self.get_distribution(prompt, features, reading)
        changes = self.policy.squash(policy.sample(gaussian, len(noise), noise.expand(len(prompt), -1, -1)))
        return _refine_all(self.agent.refiner, reading, prompt, changes)

    def compute_agent_loss(self, batch: Batch, floor: float, weights: Weights) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of agent and encoder: risk of cells and sizes, ambiguity, consistency, unexplained cells.

        The agent answers under one change that the policy draws. No gradient reaches the policy.

        Args:
            batch: Episodes with targets.
            floor: The smallest weight of a cell, see `compute_cell_loss`.
            weights: The weights of the terms. The weight of ambiguity is that of the current epoch.

        Returns:
            The mean over episodes, and its terms by name.
        """
        prompt, features = self.encode_prompt(batch)
        reading, change = self.read(batch), None
        if self.policy is not None and prompt is not None:
            with torch.no_grad():
                gaussian = self.get_distribution(prompt, features, reading)
                change = self.policy.squash(policy.sample(gaussian, 1))[:, 0]

        logits: Tensor = self.agent.refiner(reading, prompt, change)
        cells = compute_color_loss(logits, batch.target, floor)
        sizes = compute_layout_loss(logits, batch.target)
        uncertain = free_energy.compute_ambiguity(
            logits[-1:].log_softmax(-1), compute_cell_weights(batch.target)
        ).mean()
        changing = compute_consistency(logits)
        unexplained = -reading.evidence.float().mean()

        loss = (1 - weights.size) * cells + weights.size * sizes + unexplained
        loss = loss + weights.ambiguity * uncertain + weights.consistency * changing
        return loss, {
            "risk": cells,
            "risk_sizes": sizes,
            "unexplained": unexplained,
            "ambiguity": uncertain,
            "consistency": changing,
        }

    def compute_policy_loss(
        self, batch: Batch, samples: int, reward_scale: float, normalize: bool, weights: Weights
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of the policy on episodes whose pairs are held-out demonstrations.

        It adds two gradients: the score function of the rewards, and the pathwise gradient of the agent's loss and the
        information gain through the sampled changes. Neither reaches the agent or the encoder. The gradient of each
        term with respect to mean and standard deviation is clipped per puzzle, so that no term scales another down.

        Args:
            batch: Episodes with targets.
            samples: The number of changes per episode, K.
            reward_scale: The factor of the rewards.
            normalize: Whether to divide advantages by their standard deviation.
            weights: The weights of the terms.

        Returns:
            The mean over episodes, and its terms by name.

        Raises:
            ValueError: There is no policy.
        """
        if self.policy is None:
            raise ValueError("compute_policy_loss must be asked of a solver with a policy, but it has none.")

        with torch.no_grad():
            prompt, features = self.encode_prompt(batch)
            reading = self.read(batch)
        assert prompt is not None
        gaussian = self.get_distribution(prompt, features, reading)

        # Each puzzle has its own copy of sigma, so that its gradient can be clipped by itself.
        held = Gaussian(*(part.detach().expand_as(gaussian.mean).requires_grad_() for part in gaussian))
        noise = torch.randn(len(prompt), samples, held.mean.shape[1], device=prompt.device)
        actions = held.mean[:, None] + held.log_sigma.exp()[:, None] * noise

        parameters = {name: value.detach() for name, value in self.agent.refiner.state_dict().items()}
        frozen = functools.partial(_call_refiner, self.agent.refiner, parameters)
        logits = _refine_all(frozen, reading, prompt, self.policy.squash(actions))
        earned, rewarded = _compute_reward(logits, batch)
        advantages = policy.compute_advantages(earned, reward_scale, normalize)

        row = Gaussian(held.mean, held.log_sigma[:, None])
        target = batch.target.repeat_interleave(samples, 0)
        # A sum over puzzles, as the other terms are.
        surrogate = compute_cell_loss(logits.flatten(1, 2), target)[0] * len(prompt)
        gain = free_energy.compute_information_gain(
            logits[-1].transpose(0, 1).log_softmax(-1), compute_cell_weights(batch.target)
        )
        terms = {
            "reinforce": (policy.compute_reinforce_loss(row, actions, advantages, self.policy.scale).sum(), 1.0),
            "pathwise": (surrogate, weights.pathwise),
            "information_gain": (gain.sum(), -weights.information),
            "entropy": (policy.compute_entropy(held).sum(), -weights.entropy),
            "kl": (policy.compute_kl(held, self.policy.initial_sigma).sum(), weights.kl),
        }

        loss = _clip_terms(gaussian, held, list(terms.values()))
        shown = {name: value.detach() / len(prompt) for name, (value, _) in terms.items()}
        return loss / len(prompt), rewarded | shown


@torch.no_grad()
def _compute_reward(logits: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the rewards of answers, shape (B, K), for logits (T, B, K, S, S, 12), and their means by metric name."""
    count = logits.shape[2]
    target, query = (part.repeat_interleave(count, 0) for part in (batch.target, batch.query))
    parts = compute_rewards(logits[-1].flatten(0, 1), target, query)
    earned = sum_rewards(parts).view(-1, count)
    return earned, {
        "reward": earned.mean(),
        "reward_exact": parts.exact.mean(),
        "reward_likelihood": parts.likelihood.mean(),
        "reward_spread": policy.has_spread(earned).float().mean(),
    }


def _clip_terms(gaussian: Gaussian, held: Gaussian, terms: list[tuple[Tensor, float]]) -> Tensor:
    """Return a loss of `gaussian` whose gradient is the sum of the gradients of `terms` in `held`.

    The gradient of each term is clipped separately for each puzzle.
    """
    surrogate = torch.zeros((), device=held.mean.device)
    value = torch.zeros((), device=held.mean.device)
    inputs = torch.cat([part.detach() for part in held], dim=1)
    passed = torch.cat([part.expand_as(held.mean) for part in gaussian], dim=1)
    for term, weight in terms:
        if not weight:
            continue
        parts = torch.autograd.grad(term, list(held), retain_graph=True, allow_unused=True)
        filled = [torch.zeros_like(held.mean) if part is None else part for part in parts]
        surrogate = surrogate + (weight * policy.clip_rows(torch.cat(filled, dim=1), CLIP) * (passed - inputs)).sum()
        value = value + weight * term.detach()
    return surrogate + value


def _call_refiner(
    refiner: Refiner, parameters: dict[str, Tensor], reading: Reading, prompts: Tensor, change: Tensor
) -> Tensor:
    """Return the refiner's answer, computed with the parameters `parameters`."""
    logits: Tensor = functional_call(refiner, parameters, (reading, prompts, change))
    return logits


def _refine_all(refine: Refine, reading: Reading, prompt: Tensor, changes: Tensor) -> Tensor:
    """Return logits (T, B, K, S, S, 12) of answers refined under prompts (B, dim) and changes of trust (B, K, A)."""
    count = changes.shape[1]
    logits = refine(reading.repeat(count), prompt.repeat_interleave(count, 0), changes.flatten(0, 1))
    return logits.view(len(logits), -1, count, *logits.shape[2:])


def compute_cell_weights(target: Tensor) -> Tensor:
    """Return the weights of the cells of an answer, float32 of shape (B, S, S)."""
    return torch.where(target == PAD, PAD_WEIGHT, 1.0)
