"""A compact agent that answers a query grid from the demonstrations in its context."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.arc.baselines import GUESSES, extents, guess_outputs, guess_sizes
from models.arc.blocks import LARGEST_CANVAS, GridBlock, Lookup, PlaceEmbedding
from models.arc.canvas import FIRST_COLOUR, SYMBOLS
from models.arc.pointers import DIRECTIONS, HEADS, Pointers, copy, hits, mix
from models.arc.refinement import Reading, Refiner

ROLES = 7
HYPOTHESES = GUESSES + DIRECTIONS * HEADS
PROPOSALS = 8  # hypotheses whose answers the refiner gets: those that the demonstrations speak for most
FLOOR = 0.05  # probability of a symbol that a hypothesis rules out
EVIDENCE = 10.0  # how much a nat per cell counts in telling which hypothesis explains a puzzle


class GridAgent(nn.Module):
    """Answers a puzzle's query in context: no weight belongs to any one puzzle.

    All inputs go through one convolutional trunk. Each demonstration's features are joined with its output,
    and every cell of the query looks up once what became of cells like it there (`Lookup`). A weight-tied
    block then refines the answer for a number of steps, each fed the answer of the step before, as in
    looped networks such as TRM (arXiv 2510.04871). Symbols are embedded by the role they play in the
    episode, and by their name, which augmentation makes nearly meaningless. Logits add up three sources: a
    mixture of guesses (`guesses.py`), which dominates in an untrained agent; the votes of the lookup; and the
    match between a cell's features and each embedded symbol.

    B episodes, D demonstrations, S the side of a canvas.

    Args:
        width: Channels; 24..96 suit grids of side 12.
        steps: Refinement steps, at least 1.
        heads: Attention heads of the lookup.
        dropout: Dropout in the blocks, 0..1.
        prompt_dim: Length of a prompt vector that conditions the refinement; 0 for none.
        layers: Blocks in the trunk.
        guesses: Start from the best of the guesses; False starts from the input as it is, the identity.

    Raises:
        ValueError: A size is out of range.
    """

    def __init__(
        self,
        width: int = 32,
        steps: int = 2,
        heads: int = 4,
        dropout: float = 0.0,
        prompt_dim: int = 0,
        layers: int = 3,
        guesses: bool = True,
    ) -> None:
        super().__init__()
        for name, size, least in (
            ("width", width, 1),
            ("steps", steps, 1),
            ("heads", heads, 1),
            ("prompt_dim", prompt_dim, 0),
            ("layers", layers, 0),
        ):
            if size < least:
                raise ValueError(f"{name} must be at least {least}, but got {size}. Use the default to start with.")
        self.names = nn.Parameter(0.3 * torch.randn(SYMBOLS, width))
        self.roles = nn.Linear(ROLES, width)
        self.place = PlaceEmbedding(width)
        self.guesses = guesses
        if guesses:
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
        self.lookup = Lookup(width, heads, SYMBOLS)
        self.refiner = Refiner(width, steps, heads, SYMBOLS, dropout, prompt_dim)

    def forward(
        self,
        query: Tensor,
        demo_inputs: Tensor,
        demo_outputs: Tensor,
        demo_mask: Tensor,
        prompt: Tensor | None = None,
    ) -> Tensor:
        """Answer a batch of queries: what is read, refined under the prompt.

        Args:
            query: Symbols 0..11, shape (B, S, S), S at most 32.
            demo_inputs: Symbols, shape (B, D, S, S), D at least 1.
            demo_outputs: Symbols, shape (B, D, S, S).
            demo_mask: bool, shape (B, D). What lies in a slot marked False has no influence.
            prompt: Shape (B, prompt_dim), or None for none.

        Returns:
            Logits after each step, float32 of shape (steps, B, S, S, 12).

        Raises:
            ValueError: The canvas is too large, or the prompt does not have `prompt_dim` entries.
        """
        logits: Tensor = self.refiner(self.read(query, demo_inputs, demo_outputs, demo_mask), prompt)
        return logits

    def read(self, query: Tensor, demo_inputs: Tensor, demo_outputs: Tensor, demo_mask: Tensor) -> Reading:
        """Read what the refiner needs to answer, under whatever prompt; arguments as for `forward`."""
        batch, demos, side, _ = demo_inputs.shape
        if side > LARGEST_CANVAS:
            raise ValueError(f"query must have a side of at most {LARGEST_CANVAS}, but got {side}. Crop the canvases.")
        inputs = torch.cat([query[:, None], demo_inputs], dim=1)
        symbols = F.one_hot(torch.cat([inputs, demo_outputs], dim=1).long(), SYMBOLS).float().flatten(2, 3)
        roles = symbol_roles(symbols[:, 0], symbols[:, 1 : 1 + demos], symbols[:, 1 + demos :], demo_mask)
        table = self.names + self.roles(roles)
        hypotheses = self._hypotheses(inputs, demo_outputs, demo_mask) if self.guesses else None
        guesses = symbols[:, : 1 + demos] if hypotheses is None else hypotheses.mixture
        embedded = symbols @ table[:, None]

        x = embedded[:, : 1 + demos] + self.guess_in(guesses @ table[:, None])
        x = x.view(batch, 1 + demos, side, side, -1) + self.place(extents(inputs), side)
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
        if hypotheses is None:
            trust, proposals, evidence = votes.new_zeros(batch, 1), guesses[:, :1], votes.new_zeros(batch)
        else:
            trust, proposals, evidence = hypotheses.trust, hypotheses.proposals, hypotheses.evidence
        return Reading(state, found, votes, trust, proposals, table, self._film(pairs, demo_mask), evidence)

    def _hypotheses(self, inputs: Tensor, demo_outputs: Tensor, demo_mask: Tensor) -> "Hypotheses":
        """Try all hypotheses on the demonstrations; arguments as for `agreement`, and the query before its inputs."""
        with torch.no_grad():
            guesses = guess_outputs(inputs, guess_sizes(inputs, demo_outputs, demo_mask))
        with torch.autocast(inputs.device.type, enabled=False):
            return self._try(inputs, guesses, demo_outputs, demo_mask)

    def _try(self, inputs: Tensor, guesses: Tensor, demo_outputs: Tensor, demo_mask: Tensor) -> "Hypotheses":
        batch, count, side, _ = inputs.shape
        demos = count - 1
        flat = inputs.flatten(0, 1)
        attention, lines = self.pointers(flat, extents(flat))
        # Heads copy within the input; beyond it, and on the edge, stands what the first guess has there.
        frame = guesses[:, :, 0]
        inside = (inputs >= FIRST_COLOUR) & (frame >= FIRST_COLOUR)

        answers = demo_outputs.long()
        found = hits(*_after_query(attention, lines, count), answers.flatten(0, 1)).view(batch, demos, -1, side, side)
        certain = (frame[:, 1:] == answers).float()[:, :, None]
        copied = torch.where(inside[:, 1:, None], found, certain)
        right = torch.cat([(guesses[:, 1:] == answers[:, :, None]).float(), copied], dim=2).flatten(3)
        relevant = ((frame[:, 1:] >= FIRST_COLOUR) | (answers >= FIRST_COLOUR)).flatten(2)[:, :, None]
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
        """Mix all hypotheses for every input: probabilities of shape (B, M, S * S, 12)."""
        batch, count, side, _ = inside.shape
        named = guesses.flatten(3).transpose(2, 3)
        drawn = weights[:, None, None, :GUESSES].expand(named.shape)
        mixture = weights.new_zeros(*named.shape[:3], SYMBOLS).scatter_add(3, named, drawn)
        shares = weights[:, None, GUESSES:].expand(-1, count, -1).flatten(0, 1)
        pointed = mix(attention, lines, shares).view(batch, count, side * side, SYMBOLS)
        rest = weights[:, None, None, GUESSES:].sum(-1, keepdim=True)
        framed = F.one_hot(guesses[:, :, 0].flatten(2), SYMBOLS) * rest
        return mixture + torch.where(inside.flatten(2)[..., None], pointed, framed)

    def _film(self, pairs: Tensor, demo_mask: Tensor) -> Tensor:
        used = demo_mask[:, :, None].to(pairs.dtype)
        mean = (pairs.mean(2) * used).sum(1) / used.sum(1).clamp(min=1.0)
        film: Tensor = self.task(mean)
        return film


class Hypotheses(NamedTuple):
    """What the hypotheses about a puzzle's rule say. B episodes, M inputs (the query first), Q cells, K proposals.

    Attributes:
        mixture: Of all, for every input, probabilities of shape (B, M, Q, symbols).
        trust: Logits of the K that agree best with the demonstrations, shape (B, K).
        proposals: Their answers to the query, probabilities of shape (B, K, Q, symbols).
        evidence: How well the best explain the demonstrations, nats per cell, at most 0, shape (B,).
    """

    mixture: Tensor
    trust: Tensor
    proposals: Tensor
    evidence: Tensor


def _after_query(attention: Tensor, lines: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return attention and lines of the demonstrations' inputs alone, of `count` inputs with the query first."""
    first, second = (part.view(-1, count, *part.shape[1:])[:, 1:].flatten(0, 1) for part in (attention, lines))
    return first, second


def symbol_roles(query: Tensor, inputs: Tensor, outputs: Tensor, demo_mask: Tensor) -> Tensor:
    """Describe what part each symbol plays in an episode, whatever it is called.

    Args:
        query: One-hot symbols of C cells, float of shape (B, C, 12).
        inputs: Those of the demonstrations' inputs, shape (B, D, C, 12).
        outputs: Those of the demonstrations' outputs, same shape.
        demo_mask: bool of shape (B, D).

    Returns:
        Float of shape (B, 12, 7), each in 0..1: square roots of the share of cells in the query, in inputs,
        in outputs; share of inputs and of outputs in which it occurs; square roots of the share of cells that
        become it and that cease to be it.
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
