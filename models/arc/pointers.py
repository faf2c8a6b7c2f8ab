"""Attention of a cell to the cells of its row or column: hypotheses about where an answer's cells come from.

A head scores how a cell of the answer and a cell of the input in its line lie to each other: their distance, with and
without wrapping around; mirrored places; the rank of a cell among those with a colour, against the place that is
answered. Each head is applied in four directions with the same weights, so a rule that is learned downwards holds
leftwards too. What a head copies is a hypothesis, which the demonstrations can test: see `GridAgent`.

N canvases, S their side, P heads. Symbols play no part but by being background or not, and by being equal.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.arc.canvas import FIRST_COLOUR, SYMBOLS

HEADS = 12
DIRECTIONS = 4
REACH = 4  # largest distance that has a weight of its own
GAIN = 10.0  # of the weights: a score of 10 decides, and an optimizer's steps are small
PLACES, CELLS, ABSENT = 4 + 3 * REACH, 8, 4  # numbers of features, see `_places`, `_cells` and `_absent`


class Pointers(nn.Module):
    """Points from each cell of an answer to a cell of the input in its line, or to none, which is background.

    Args:
        heads: Heads, each of which makes a hypothesis in each direction.
    """

    def __init__(self, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.places = nn.Parameter(0.1 * torch.randn(heads, PLACES))
        self.cells = nn.Parameter(0.1 * torch.randn(heads, CELLS))
        self.absent = nn.Parameter(0.1 * torch.randn(heads, ABSENT))

    def forward(self, canvases: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Point to cells.

        Args:
            canvases: Symbols, shape (N, S, S).
            sizes: Heights and widths of the grids on them, int64 of shape (N, 2).

        Returns:
            Attention, float32 of shape (N, 2, 2, P, S, S, S + 1): by axis (columns, rows), direction, head, line, place
            in the answer, and place in the input, the last one for none. And the symbols of the lines, int64 of shape
            (N, 2, S, S).
        """
        lines = torch.stack([canvases.mT, canvases], dim=1).long()
        side = lines.shape[-1]
        length = sizes[:, :, None]
        place = torch.arange(side, device=lines.device).expand(*length.shape[:2], side)
        ends = (place, length - 1 - place)
        coloured = lines > FIRST_COLOUR
        before = coloured.cumsum(-1) - coloured.long()
        ranks = (before, coloured.sum(-1, keepdim=True) - before - coloured.long())
        equal = lines[..., :, None] == lines[..., None, :]
        scores = []
        for turn in (1, -1):
            near = self._score(self.places, _places(place, ends[::turn], length, turn))[:, :, :, None]
            far = self._score(self.cells, _cells(coloured, ends[::turn], ranks[::turn], equal))
            none = self._score(self.absent, _absent(coloured, ranks[::turn]))
            outside = (place >= length)[:, :, None, None, None, :]
            scores.append(torch.cat([(near + far).masked_fill(outside, -1e4), none[..., None]], dim=-1))
        return torch.stack(scores, dim=2).softmax(-1), lines

    def _score(self, weights: Tensor, features: list[Tensor]) -> Tensor:
        """Features (N, 2, ...) -> scores (N, 2, P, ...)."""
        shape = torch.broadcast_shapes(*(feature.shape for feature in features))  # type: ignore[no-untyped-call]
        stacked = torch.stack([feature.float().expand(shape) for feature in features], dim=2)
        return GAIN * torch.einsum("pf,naf...->nap...", weights, stacked)


def copy(attention: Tensor, lines: Tensor) -> Tensor:
    """What heads copy, as probabilities of symbols, float32 of shape (N, 4 * P, S, S, 12)."""
    named = F.one_hot(lines, SYMBOLS).float()[:, :, None, None]
    copied = attention[..., :-1] @ named
    copied[..., FIRST_COLOUR] += attention[..., -1]
    columns, rows = copied.unbind(1)
    return torch.cat([columns.transpose(3, 4).flatten(1, 2), rows.flatten(1, 2)], dim=1)


def hits(attention: Tensor, lines: Tensor, answers: Tensor) -> Tensor:
    """The probability that each head gives to each cell's answer.

    Args:
        attention: See `Pointers`.
        lines: See `Pointers`.
        answers: Symbols, shape (N, S, S).

    Returns:
        Float32 of shape (N, 4 * P, S, S).
    """
    asked = torch.stack([answers.mT, answers], dim=1).long()
    right = asked[..., None] == lines[..., None, :]
    none = (asked == FIRST_COLOUR)[..., None]
    found = (attention * torch.cat([right, none], dim=-1)[:, :, None, None]).sum(-1)
    columns, rows = found.unbind(1)
    return torch.cat([columns.mT.flatten(1, 2), rows.flatten(1, 2)], dim=1)


def _places(place: Tensor, ends: tuple[Tensor, ...], length: Tensor, turn: int) -> list[Tensor]:
    """How two places of a line lie to each other, whatever is there: (N, 2, S, S) each."""
    source, target = place[..., None, :], place[..., :, None]
    offset = turn * (source - target)
    wrapped = offset % length[..., None].clamp(min=1)
    return [
        offset == 0,
        offset < 0,
        offset > 0,
        ends[0][..., None, :] == ends[1][..., :, None],
        *(offset == step for step in range(1, REACH + 1)),
        *(offset == -step for step in range(1, REACH + 1)),
        *(wrapped == step for step in range(1, REACH + 1)),
    ]


def _cells(coloured: Tensor, ends: tuple[Tensor, ...], ranks: tuple[Tensor, ...], equal: Tensor) -> list[Tensor]:
    """How a cell of the input suits a place, by what is in the line: (N, 2, S, S, S) each."""
    there, here = coloured[..., None, :], coloured[..., :, None]
    start, end = (part[:, :, None, :, None] for part in ends)
    before, after = (rank[..., None, :] for rank in ranks)
    seen = (ranks[0] + coloured.long())[..., :, None]
    return [
        there,
        equal,
        there & (after == end),
        there & (before == start),
        there & (before == seen),
        there & (before + 1 == seen),
        there & (before == 0),
        there & here,
    ]


def _absent(coloured: Tensor, ranks: tuple[Tensor, ...]) -> list[Tensor]:
    """What speaks for background at a place: (N, 2, S, S) each."""
    return [torch.ones_like(coloured), coloured, ranks[0] > 0, ranks[1] > 0]
