"""A compact agent that answers a query grid from the demonstrations in its context."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from searchlight.models.arc.agent.blocks import GridBlock, Lookup, PlaceEmbedding
from searchlight.models.arc.agent.pointers import DIRECTIONS, HEADS, Pointers, compute_hits, copy, mix
from searchlight.models.arc.agent.refinement import Reading, Refiner
from searchlight.models.arc.puzzles import FIRST_COLOR, GUESSES, SYMBOLS, guess_outputs, guess_sizes, measure_extents

ROLES = 7
HYPOTHESES = GUESSES + DIRECTIONS * HEADS
PROPOSALS = 8  # hypotheses whose answers the refiner gets: those that the demonstrations speak for most
LOOKUP_HEADS = 4
FLOOR = 0.05  # probability of a symbol that a hypothesis rules out
EVIDENCE = 10.0  # how much a nat per cell counts in telling which hypothesis explains a puzzle


class GridAgent(nn.Module):
    """A network that answers a puzzle's query in context: no weight belongs to a single puzzle.

    One convolutional trunk computes features of all inputs. The features of each demonstration are concatenated with
    its output, and each cell of the query attends once to the cells of the demonstrations (`Lookup`). A weight-tied
    block then refines the answer in several steps. The input of each step is the answer of the step before, as in
    looped networks such as TRM (arXiv 2510.04871). Symbols are embedded by their role in the episode, and by their
    name, which augmentation makes nearly meaningless. The logits are a sum of three terms: a mixture of hypotheses,
    which dominates in an untrained agent; the votes of the lookup; and the match between a cell's features and each
    embedded symbol.

    Shapes: B episodes, D demonstrations, canvases of side S.

    Args:
        width: The number of channels. 24 to 96 are suitable for grids of side 12.
        steps: The number of refinement steps, at least 1.
        dropout: The dropout probability in the blocks.
        prompt_dim: The length of a prompt vector that conditions the refinement, or 0 without prompts.
        layers: The number of blocks in the trunk.
    """

    def __init__(
        self,
        width: int = 32,
        steps: int = 2,
        dropout: float = 0.0,
        prompt_dim: int = 0,
        layers: int = 3,
    ) -> None:
        super().__init__()
        self.names = nn.Parameter(0.3 * torch.randn(SYMBOLS, width))
        self.roles = nn.Linear(ROLES, width)
        self.place = PlaceEmbedding(width)
        self.guess_sharpness = nn.Parameter(torch.tensor(30.0))
        self.guess_bias = nn.Parameter(2.0 * F.one_hot(torch.tensor(0), HYPOTHESES).float())
        self.pointers = Pointers()
        self.guess_in = nn.Linear(width, width, bias=False)

        self.trunk = nn.ModuleList(GridBlock(width, dropout) for _ in range(layers))
        self.pair_in = nn.Linear(2 * width, width)
        self.pair = GridBlock(width, dropout)
        self.pair_norm = nn.LayerNorm(width)
        self.task = nn.Linear(width, 2 * width)
        # Small and not zero: everything behind a layer of zeros would get no gradient in the first update.
        nn.init.normal_(self.task.weight, std=0.02)
        nn.init.zeros_(self.task.bias)

        self.lookup = Lookup(width, LOOKUP_HEADS, SYMBOLS)
        self.refiner = Refiner(width, steps, LOOKUP_HEADS, SYMBOLS, dropout, prompt_dim)

    def forward(
        self,
        query: Tensor,
        demo_inputs: Tensor,
        demo_outputs: Tensor,
        demo_mask: Tensor,
        prompt: Tensor | None = None,
    ) -> Tensor:
        """Answer a batch of queries.

        Args:
            query: Symbols 0..11, shape (B, S, S), S at most 32.
            demo_inputs: Symbols, shape (B, D, S, S), D at least 1.
            demo_outputs: Symbols, shape (B, D, S, S).
            demo_mask: bool, shape (B, D). The content of a slot marked False has no effect.
            prompt: The prompts, shape (B, prompt_dim), or None without prompts.

        Returns:
            The logits after each refinement step, float32 of shape (steps, B, S, S, 12).
        """
        logits: Tensor = self.refiner(self.read(query, demo_inputs, demo_outputs, demo_mask), prompt)
        return logits

    def read(self, query: Tensor, demo_inputs: Tensor, demo_outputs: Tensor, demo_mask: Tensor) -> Reading:
        """Return the input of the refiner, which does not depend on a prompt. For the arguments, see `forward`."""
        batch, demos, side, _ = demo_inputs.shape
        inputs = torch.cat([query[:, None], demo_inputs], dim=1)
        symbols = F.one_hot(torch.cat([inputs, demo_outputs], dim=1).long(), SYMBOLS).float().flatten(2, 3)
        roles = compute_symbol_roles(symbols[:, 0], symbols[:, 1 : 1 + demos], symbols[:, 1 + demos :], demo_mask)
        table = self.names + self.roles(roles)
        hypotheses = self._evaluate_hypotheses(inputs, demo_outputs, demo_mask)
        embedded = symbols @ table[:, None]

        x = embedded[:, : 1 + demos] + self.guess_in(hypotheses.mixture @ table[:, None])
        x = x.view(batch, 1 + demos, side, side, -1) + self.place(measure_extents(inputs), side)
        x = x.flatten(0, 1)
        for block in self.trunk:
            x = block(x)
        x = x.view(batch, 1 + demos, side * side, -1)
        pairs = self.pair_in(torch.cat([x[:, 1:], embedded[:, 1 + demos :]], dim=-1))
        pairs = self.pair(pairs.view(batch * demos, side, side, -1))
        pairs = self.pair_norm(pairs).view(batch, demos, side * side, -1)
        state = x[:, 0]
        found, votes = self.lookup(
            state, pairs, symbols[:, 0], symbols[:, 1 : 1 + demos], symbols[:, 1 + demos :], demo_mask
        )
        return Reading(
            state=state,
            found=found,
            votes=votes,
            trust=hypotheses.trust,
            proposals=hypotheses.proposals,
            table=table,
            film=self._compute_film(pairs, demo_mask),
            evidence=hypotheses.evidence,
        )

    def _evaluate_hypotheses(self, inputs: Tensor, demo_outputs: Tensor, demo_mask: Tensor) -> "Hypotheses":
        """Evaluate all hypotheses on the demonstrations. The query is the first input."""
        with torch.no_grad():
            guesses = guess_outputs(inputs, guess_sizes(inputs, demo_outputs, demo_mask))
        with torch.autocast(inputs.device.type, enabled=False):
            return self._test_hypotheses(inputs, guesses, demo_outputs, demo_mask)

    def _test_hypotheses(
        self, inputs: Tensor, guesses: Tensor, demo_outputs: Tensor, demo_mask: Tensor
    ) -> "Hypotheses":
        batch, count, side, _ = inputs.shape
        demos = count - 1
        flat = inputs.flatten(0, 1)
        attention, lines = self.pointers(flat, measure_extents(flat))
        # Heads copy within the input; beyond it, and on the edge, stands what the first guess has there.
        frame = guesses[:, :, 0]
        inside = (inputs >= FIRST_COLOR) & (frame >= FIRST_COLOR)

        answers = demo_outputs.long()
        found = compute_hits(*_drop_query(attention, lines, count), answers.flatten(0, 1)).view(
            batch, demos, -1, side, side
        )
        certain = (frame[:, 1:] == answers).float()[:, :, None]
        copied = torch.where(inside[:, 1:, None], found, certain)
        right = torch.cat([(guesses[:, 1:] == answers[:, :, None]).float(), copied], dim=2).flatten(3)
        relevant = ((frame[:, 1:] >= FIRST_COLOR) | (answers >= FIRST_COLOR)).flatten(2)[:, :, None]
        weight = relevant * demo_mask[:, :, None, None] / relevant.sum(-1, keepdim=True).clamp(min=1)
        weight = weight / demo_mask.sum(1).clamp(min=1)[:, None, None, None]
        agreed = (right * weight).sum((1, 3))
        likelihood = ((FLOOR + (1 - FLOOR) * right).log() * weight).sum((1, 3))
        logits = agreed * self.guess_sharpness + self.guess_bias
        evidence = (EVIDENCE * likelihood).logsumexp(-1) / EVIDENCE

        weights = logits.softmax(-1)
        mixture = self._mix(weights, attention, lines, guesses, inside)
        trust, best = logits.topk(min(PROPOSALS, logits.shape[1]), dim=-1)
        first = (
            attention.view(batch, count, *attention.shape[1:])[:, 0],
            lines.view(batch, count, *lines.shape[1:])[:, 0],
        )
        named = F.one_hot(guesses[:, 0], SYMBOLS).float()
        pointed = torch.where(inside[:, 0, None, ..., None], copy(*first), named[:, :1])
        everything = torch.cat([named, pointed], dim=1).flatten(2, 3)
        proposals = everything.gather(1, best[:, :, None, None].expand(-1, -1, *everything.shape[2:]))
        return Hypotheses(mixture, trust, proposals, evidence)

    @staticmethod
    def _mix(weights: Tensor, attention: Tensor, lines: Tensor, guesses: Tensor, inside: Tensor) -> Tensor:
        """Return the mixture of all hypotheses for each input, probabilities of shape (B, M, S * S, 12)."""
        batch, count, side, _ = inside.shape
        named = guesses.flatten(3).transpose(2, 3)
        drawn = weights[:, None, None, :GUESSES].expand(named.shape)
        mixture = weights.new_zeros(*named.shape[:3], SYMBOLS).scatter_add(3, named, drawn)
        shares = weights[:, None, GUESSES:].expand(-1, count, -1).flatten(0, 1)
        pointed = mix(attention, lines, shares).view(batch, count, side * side, SYMBOLS)
        rest = weights[:, None, None, GUESSES:].sum(-1, keepdim=True)
        framed = F.one_hot(guesses[:, :, 0].flatten(2), SYMBOLS) * rest
        return mixture + torch.where(inside.flatten(2)[..., None], pointed, framed)

    def _compute_film(self, pairs: Tensor, demo_mask: Tensor) -> Tensor:
        used = demo_mask[:, :, None].to(pairs.dtype)
        mean = (pairs.mean(2) * used).sum(1) / used.sum(1).clamp(min=1.0)
        film: Tensor = self.task(mean)
        return film


class Hypotheses(NamedTuple):
    """The hypotheses about a puzzle's rule, for B episodes, M inputs (the query first), Q cells and K proposals.

    Attributes:
        mixture: The mixture of all hypotheses for each input, probabilities of shape (B, M, Q, symbols).
        trust: The logits of the K hypotheses that agree best with the demonstrations, shape (B, K).
        proposals: The answers of these K to the query, probabilities of shape (B, K, Q, symbols).
        evidence: The mean log-likelihood of the demonstrations under these K, nats per cell, at most 0, shape (B,).
    """

    mixture: Tensor
    trust: Tensor
    proposals: Tensor
    evidence: Tensor


def _drop_query(attention: Tensor, lines: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return attention and lines of the demonstrations' inputs alone, of `count` inputs with the query first."""
    first, second = (part.view(-1, count, *part.shape[1:])[:, 1:].flatten(0, 1) for part in (attention, lines))
    return first, second


def compute_symbol_roles(query: Tensor, inputs: Tensor, outputs: Tensor, demo_mask: Tensor) -> Tensor:
    """Compute seven features of each symbol's role in an episode, which do not depend on its name.

    Args:
        query: One-hot symbols of the C cells of the query, float of shape (B, C, 12).
        inputs: One-hot symbols of the demonstrations' inputs, float of shape (B, D, C, 12).
        outputs: One-hot symbols of the demonstrations' outputs, float of shape (B, D, C, 12).
        demo_mask: bool of shape (B, D). False marks a slot without a demonstration.

    Returns:
        Float of shape (B, 12, 7), in 0..1. The features are the square roots of the share of cells in the query, in
        inputs and in outputs; the share of inputs and of outputs that contain the symbol; and the square roots of the
        share of cells that change into the symbol and from the symbol.
    """
    used = demo_mask.to(query.dtype)[:, :, None]
    number = used.sum(1).clamp(min=1.0)
    inputs, outputs = inputs * used[..., None], outputs * used[..., None]
    changed = (inputs * outputs).sum(-1, keepdim=True) == 0
    in_inputs, in_outputs = inputs.mean(2), outputs.mean(2)
    gained, lost = (outputs * changed).mean((1, 2)), (inputs * changed).mean((1, 2))
    slots = demo_mask.shape[1]
    return torch.stack(
        [
            query.mean(1).sqrt(),
            (in_inputs.sum(1) / number).sqrt(),
            (in_outputs.sum(1) / number).sqrt(),
            (in_inputs > 0).sum(1) / number,
            (in_outputs > 0).sum(1) / number,
            (gained * slots / number).sqrt(),
            (lost * slots / number).sqrt(),
        ],
        dim=-1,
    )
