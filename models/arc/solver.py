"""Agent, prompt encoder and policy at work together: what each is asked, and what each is trained on."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from models.arc import free_energy, policy
from models.arc.agent import GridAgent
from models.arc.canvas import PAD
from models.arc.curriculum import mix
from models.arc.episodes import Batch
from models.arc.losses import PAD_WEIGHT, cell_loss, consistency, layout_loss
from models.arc.policy import Gaussian, PromptPolicy
from models.arc.prompt.encoder import PromptEncoder
from models.arc.prompt.features import puzzle_features
from models.arc.refinement import Reading, Refiner
from models.arc.reward import rewards, total


class Weights(NamedTuple):
    """Of the terms of both losses. The weight of the risk, the answer's cross-entropy, is 1."""

    ambiguity: float
    consistency: float
    pathwise: float
    information: float
    value: float
    entropy: float
    kl: float


class Solver:
    """Answers puzzles under prompts.

    The agent reads a puzzle once. The encoder makes a prompt of it, and the policy a distribution of nearby prompts,
    under any number of which the agent refines its answer.

    B episodes, T refinement steps, S the side of a canvas, K candidates.

    Args:
        agent: That answers.
        encoder: Of prompts; None: there are none.
        policy: That refines prompts; None: they stay as they are.
    """

    def __init__(self, agent: GridAgent, encoder: PromptEncoder | None, policy: PromptPolicy | None) -> None:
        self.agent, self.encoder, self.policy = agent, encoder, policy

    def read(self, batch: Batch) -> Reading:
        """What the agent sees in the puzzles, whatever the prompt."""
        reading: Reading = self.agent.read(batch.query, batch.demo_inputs, batch.demo_outputs, batch.demo_mask)
        return reading

    def prompt(self, batch: Batch) -> tuple[Tensor | None, Tensor]:
        """The prompts, shape (B, dim), and the features that they were made with, (B, 15)."""
        features = puzzle_features(batch.query, batch.demo_inputs, batch.demo_outputs, batch.demo_mask)
        return None if self.encoder is None else self.encoder(batch.text, features), features

    def candidates(self, batch: Batch, noise: Tensor) -> Tensor:
        """Answers under K candidate prompts.

        Args:
            noise: Standard normal, shape (K, dim): which prompts of its distribution the policy tries. Zeros are its
                mean.

        Returns:
            Logits of shape (T, B, K, S, S, 12); K is 1 without a policy.
        """
        prompt, features = self.prompt(batch)
        reading = self.read(batch)
        if self.policy is None or prompt is None:
            logits: Tensor = self.agent.refiner(reading, prompt)
            return logits[:, :, None]
        gaussian: Gaussian = self.policy(prompt, features)
        deltas = self.policy.squash(policy.sample(gaussian, len(noise), noise.expand(len(prompt), -1, -1)))
        return _refined(self.agent.refiner, reading, prompt, deltas)

    def agent_loss(
        self, batch: Batch, ratio: float, floor: float, weights: Weights
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What agent and encoder are trained on: risk, in the mixture of the curriculum, ambiguity and consistency.

        The agent answers under one prompt of the policy's distribution. The policy has no part in the gradient.

        Args:
            batch: Episodes with targets.
            ratio: Of the curriculum: the share of the loss of sizes.
            floor: Of the weights of cells, see `cell_loss`.
            weights: Of the terms; that of ambiguity as it is by now.

        Returns:
            The mean over episodes, and its terms by name.
        """
        prompt, features = self.prompt(batch)
        if self.policy is not None and prompt is not None:
            with torch.no_grad():
                gaussian: Gaussian = self.policy(prompt.detach(), features)
                delta = self.policy.squash(policy.sample(gaussian, 1))[:, 0]
            prompt = prompt + delta
        logits: Tensor = self.agent.refiner(self.read(batch), prompt)
        cells, _ = cell_loss(logits, batch.target, hard_cell_floor=floor)
        sizes = layout_loss(logits, batch.target)
        uncertain = free_energy.ambiguity(logits[-1:].log_softmax(-1), cell_weights(batch.target)).mean()
        changing = consistency(logits)
        loss = mix(ratio, cells, sizes) + weights.ambiguity * uncertain + weights.consistency * changing
        return loss, {"risk": cells, "risk_sizes": sizes, "ambiguity": uncertain, "consistency": changing}

    def policy_loss(
        self, batch: Batch, samples: int, reward_scale: float, normalize: bool, weights: Weights
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What the policy is trained on: the episodes' pairs are demonstrations that are held out.

        Two gradients: the score function of the rewards, which are exact answers, cells and sizes; and the pathwise one
        of the agent's loss and the information gain, through the sampled prompts. Neither reaches agent or encoder.

        Args:
            batch: Episodes with targets.
            samples: Prompts tried per episode, K.
            reward_scale: Factor of the rewards.
            normalize: Divide advantages by their spread.
            weights: Of the terms.

        Returns:
            The mean over episodes, and its terms by name.

        Raises:
            ValueError: There is no policy.
        """
        if self.policy is None:
            raise ValueError("policy_loss must be asked of a solver with a policy, but it has none.")
        with torch.no_grad():
            prompt, features = self.prompt(batch)
            reading = self.read(batch)
        assert prompt is not None
        gaussian: Gaussian = self.policy(prompt, features)
        actions = policy.sample(gaussian, samples)
        parameters = {name: value.detach() for name, value in self.agent.refiner.state_dict().items()}
        frozen = functools.partial(_called, self.agent.refiner, parameters)
        logits = _refined(frozen, reading, prompt, self.policy.squash(actions))
        flat = logits.flatten(1, 2)
        target = batch.target.repeat_interleave(samples, 0)
        with torch.no_grad():
            parts = rewards(flat[-1], target, batch.query.repeat_interleave(samples, 0))
            earned = total(parts).view(-1, samples)
            advantages = policy.advantages(earned, gaussian.value, reward_scale, normalize)
        terms = policy.policy_loss(gaussian, actions, advantages, earned, self.policy.scale)
        surrogate, _ = cell_loss(flat, target)
        gain = free_energy.information_gain(
            logits[-1].transpose(0, 1).log_softmax(-1), cell_weights(batch.target)
        ).mean()
        loss = (
            terms.reinforce
            + weights.pathwise * surrogate
            - weights.information * gain
            + weights.value * terms.value
            - weights.entropy * terms.entropy
            + weights.kl * terms.kl
        )
        return loss, {
            "reward": earned.mean(),
            "reward_exact": parts.exact.mean(),
            "reinforce": terms.reinforce,
            "pathwise": surrogate,
            "information_gain": gain,
            "value_loss": terms.value,
            "entropy": terms.entropy,
            "kl": terms.kl,
        }


def _called(refiner: Refiner, parameters: dict[str, Tensor], reading: Reading, prompts: Tensor) -> Tensor:
    """The refiner with other parameters."""
    logits: Tensor = functional_call(refiner, parameters, (reading, prompts))
    return logits


def _refined(refine: Callable[[Reading, Tensor], Tensor], reading: Reading, prompt: Tensor, deltas: Tensor) -> Tensor:
    """Logits (T, B, K, S, S, 12) under prompts (B, dim) that are changed by deltas (B, K, dim)."""
    count = deltas.shape[1]
    logits = refine(reading.repeat(count), (prompt[:, None] + deltas).flatten(0, 1))
    return logits.view(len(logits), -1, count, *logits.shape[2:])


def cell_weights(target: Tensor) -> Tensor:
    """How much each cell of an answer counts, float32 (B, S, S)."""
    return torch.where(target == PAD, PAD_WEIGHT, 1.0)
