"""A compact agent that answers a query grid from the demonstrations in its context."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.arc.baselines import GUESSES, agreement, extents, guess_outputs, guess_sizes
from models.arc.blocks import LARGEST_CANVAS, GridBlock, Lookup, PlaceEmbedding
from models.arc.canvas import SYMBOLS
from models.arc.refinement import Reading, Refiner

ROLES = 7


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
            self.guess_bias = nn.Parameter(2.0 * F.one_hot(torch.tensor(0), GUESSES).float())
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
        """What the refiner needs to answer, under whatever prompt; arguments as for `forward`."""
        batch, demos, side, _ = demo_inputs.shape
        if side > LARGEST_CANVAS:
            raise ValueError(f"query must have a side of at most {LARGEST_CANVAS}, but got {side}. Crop the canvases.")
        inputs = torch.cat([query[:, None], demo_inputs], dim=1)
        symbols = F.one_hot(torch.cat([inputs, demo_outputs], dim=1).long(), SYMBOLS).float().flatten(2, 3)
        roles = symbol_roles(symbols[:, 0], symbols[:, 1 : 1 + demos], symbols[:, 1 + demos :], demo_mask)
        table = self.names + self.roles(roles)
        guesses = self._guess(inputs, demo_outputs, demo_mask) if self.guesses else symbols[:, : 1 + demos]
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
        found, votes = self.lookup(state, pairs, symbols[:, 1 + demos :], demo_mask)
        return Reading(state, found, votes, guesses[:, 0], table, self._film(pairs, demo_mask))

    def _guess(self, inputs: Tensor, demo_outputs: Tensor, demo_mask: Tensor) -> Tensor:
        """A mixture of the guesses for every input, as probabilities: (B, 1 + D, S * S, 12)."""
        with torch.no_grad():
            guesses = guess_outputs(inputs, guess_sizes(inputs, demo_outputs, demo_mask))
            trust = agreement(guesses[:, 1:], demo_outputs, demo_mask)
        weights = (trust * self.guess_sharpness + self.guess_bias).softmax(-1)
        named = guesses.flatten(3).transpose(2, 3)
        mixture = weights.new_zeros(*named.shape[:3], SYMBOLS)
        return mixture.scatter_add(3, named, weights[:, None, None].expand(named.shape))

    def _film(self, pairs: Tensor, demo_mask: Tensor) -> Tensor:
        used = demo_mask[:, :, None].to(pairs.dtype)
        mean = (pairs.mean(2) * used).sum(1) / used.sum(1).clamp(min=1.0)
        film: Tensor = self.task(mean)
        return film


def symbol_roles(query: Tensor, inputs: Tensor, outputs: Tensor, demo_mask: Tensor) -> Tensor:
    """What part each symbol plays in an episode, whatever it is called.

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
