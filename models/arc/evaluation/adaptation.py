"""Gradient steps on the demonstrations of a puzzle, before its tests are answered.

This is test-time training (Akyürek et al. 2024, arXiv 2411.07279).
"""

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from searchlight.models.arc.puzzles import Puzzle, TrainingPool
from searchlight.models.arc.solver import Solver, Weights

BATCH = 4  # episodes in a step: more cost more, and gain no more
BETAS = (0.9, 0.98)


class Adaptation(NamedTuple):
    """The settings of an agent's adaptation to a puzzle.

    Attributes:
        pools: The demonstrations of each puzzle as a pool of episodes. None for a puzzle with a single demonstration.
        texts: The text input of the prompt encoder for each episode of each pool. None: no text.
        steps: The number of updates of the agent.
        lr: The learning rate of Adam.
        floor: The smallest weight of a cell, see `Solver.agent_loss`.
        weights: The weights of the terms of the loss.
    """

    pools: Sequence[TrainingPool | None]
    texts: Sequence[Tensor | None]
    steps: int
    lr: float
    floor: float
    weights: Weights

    def adapt(self, solver: Solver, number: int, device: torch.device) -> Solver:
        """Return a copy of a solver whose agent is trained on the demonstrations of a puzzle.

        Each step trains on demonstrations under random symmetries and permutations of colors, which depend on the
        puzzle only. The prompt encoder and the given solver do not change.

        Args:
            solver: The solver, in evaluation mode.
            number: The index of the puzzle.
            device: The device of the solver.
        """
        pool, text = self.pools[number], self.texts[number]
        if pool is None:
            return solver
        agent = copy.deepcopy(solver.agent).requires_grad_()  # that of a saved model has no gradients
        parameters = list(agent.parameters())
        optimizer = torch.optim.Adam(parameters, lr=self.lr, betas=BETAS)
        learner = Solver(agent, solver.encoder, None)  # the policy has no part in the agent's gradient
        generator = torch.Generator().manual_seed(0)
        with torch.enable_grad():
            for _ in range(self.steps):
                indices = torch.randint(len(pool), (BATCH,), generator=generator)
                batch = pool.build_batch(indices, generator)._replace(text=None if text is None else text[indices])
                loss, _ = learner.compute_agent_loss(batch.to(device), self.floor, self.weights)
                # Not backward: the encoder's parameters would get a gradient, too.
                for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                    parameter.grad = gradient
                optimizer.step()
                torch.clear_autocast_cache()  # an open autocast would keep the weights from before the step
        return Solver(agent, solver.encoder, solver.policy)


def build_demonstration_pools(puzzles: Sequence[Puzzle], max_demos: int) -> list[TrainingPool | None]:
    """Return a pool of each puzzle's demonstrations, or None for a puzzle with a single demonstration."""
    return [TrainingPool([], [one], max_demos) if len(one.demonstrations) > 1 else None for one in puzzles]
