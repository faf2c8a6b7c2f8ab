"""The refinement of an answer in several steps, conditioned on a prompt."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from searchlight.models.arc.agent.blocks import GridBlock


class Reading(NamedTuple):
    """The features of B puzzles that the refiner needs, for Q cells of a canvas and H heads, without any prompt.

    Attributes:
        state: The features of the query's cells, shape (B, Q, width).
        found: The output of the lookup for each cell, shape (B, Q, width).
        votes: The votes of the lookup for symbols, in 0..1, shape (B, Q, H, symbols).
        trust: The logits of the K hypotheses that explain the demonstrations best, shape (B, K).
        proposals: The answers of these hypotheses, probabilities of shape (B, K, Q, symbols).
        table: The embedded symbols, shape (B, symbols, width).
        film: A summary of the demonstrations, the scale and shift of FiLM, shape (B, 2 * width).
        evidence: The mean log-likelihood of the demonstrations, nats per cell, shape (B,).
    """

    state: Tensor
    found: Tensor
    votes: Tensor
    trust: Tensor
    proposals: Tensor
    table: Tensor
    film: Tensor
    evidence: Tensor

    def repeat(self, count: int) -> "Reading":
        """Return a reading with each episode repeated `count` times in a row, for `count` prompts."""
        return Reading(*(part.repeat_interleave(count, dim=0) for part in self))


class Refiner(nn.Module):
    """A block that is applied in each step with the same weights. Its input is the answer of the step before.

    Args:
        width: The number of channels.
        steps: The number of refinement steps, at least 1.
        heads: The number of heads of the lookup, each with separate votes.
        symbols: The number of symbols that a cell may have.
        dropout: The dropout probability in the block.
        prompt_dim: The length of the prompt that conditions the block, or 0 without prompts.
    """

    def __init__(self, width: int, steps: int, heads: int, symbols: int, dropout: float, prompt_dim: int) -> None:
        super().__init__()
        self.steps = steps
        self.core = GridBlock(width, dropout)
        self.prompt = nn.Linear(prompt_dim, 2 * width) if prompt_dim else None
        self.feedback = nn.Linear(width, width) if steps > 1 else None
        self.head_norm = nn.LayerNorm(width)
        self.point = nn.Linear(width, width)
        self.symbol_bias = nn.Parameter(torch.zeros(symbols))
        self.gates = nn.Linear(width, 1 + heads)
        # Small and not zero: everything behind a layer of zeros would get no gradient in the first update.
        for layer in (self.point, self.gates, self.prompt):
            if layer is not None:
                nn.init.normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        with torch.no_grad():
            self.gates.bias.copy_(torch.tensor([4.0] + [0.5] * heads))

    def forward(self, reading: Reading, prompt: Tensor | None = None, change: Tensor | None = None) -> Tensor:
        """Answer the queries of a reading.

        Args:
            reading: The features of B episodes.
            prompt: The prompts, shape (B, prompt_dim), or None without prompts.
            change: The change of the trust in the hypotheses, shape (B, K), or None for no change.

        Returns:
            The logits after each step, float32 of shape (steps, B, S, S, symbols).
        """
        state, batch = reading.state, len(reading.state)
        side = round(state.shape[1] ** 0.5)
        film = self._compute_film(reading.film, prompt)
        trust = (reading.trust if change is None else reading.trust + change).softmax(-1)
        guess = (trust[:, :, None, None] * reading.proposals).sum(1)
        steps: list[Tensor] = []
        for _ in range(self.steps):
            if steps and self.feedback is not None:
                state = state + self.feedback(steps[-1].softmax(-1).to(reading.table.dtype) @ reading.table)
            state = self.core((state + reading.found).view(batch, side, side, -1), film).flatten(1, 2)
            steps.append(self._compute_logits(self.head_norm(state), reading, guess))
        return torch.stack(steps).view(self.steps, batch, side, side, -1)

    def _compute_film(self, film: Tensor, prompt: Tensor | None) -> tuple[Tensor, Tensor]:
        if prompt is not None:
            assert self.prompt is not None
            film = film + self.prompt(prompt)
        scale, shift = film[:, None, None].chunk(2, dim=-1)
        return scale, shift

    def _compute_logits(self, state: Tensor, reading: Reading, guess: Tensor) -> Tensor:
        gates = self.gates(state)
        logits: Tensor = self.point(state) @ reading.table.mT + self.symbol_bias + gates[..., :1] * guess
        logits = logits + (gates[..., 1:, None] * reading.votes).sum(2)
        return logits.float()
