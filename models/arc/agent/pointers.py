"""Attention of a cell to the cells of its row or column: hypotheses about where an answer's cells come from.

A head scores the relative position of a cell of the answer and a cell of the input in the same row or column. It uses
their distance with and without wrapping around, the mirrored position, and the rank of the input cell among the cells
with a color. Each head is applied in four directions with the same weights, so that a rule that is learned downwards
also holds leftwards. The cells that a head copies are a hypothesis, which the demonstrations can test: see `GridAgent`.

Shapes: N canvases of side S, P heads. Of symbols, only two facts count: whether they are background, and equality.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from searchlight.models.arc.puzzles import FIRST_COLOR, SYMBOLS

HEADS = 12
DIRECTIONS = 4
REACH = 4  # largest distance that has a weight of its own
GAIN = 10.0  # of the weights: a score of 10 decides, and an optimizer's steps are small
PLACES, CELLS, ABSENT = (
    4 + 3 * REACH,
    8,
    4,
)  # numbers of features, see `_list_place_features`, `_list_cell_features` and `_list_absent_features`


class Pointers(nn.Module):
    """Attention from each cell of an answer to the input cells of its row or column, or to none, for background.

    Args:
        heads: The number of heads. Each gives one hypothesis per direction.
    """

    def __init__(self, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.places = nn.Parameter(0.1 * torch.randn(heads, PLACES))
        self.cells = nn.Parameter(0.1 * torch.randn(heads, CELLS))
        self.absent = nn.Parameter(0.1 * torch.randn(heads, ABSENT))

    def forward(self, canvases: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the attention of all heads.

        Args:
            canvases: Symbols, shape (N, S, S).
            sizes: The heights and widths of the grids on the canvases, int64 of shape (N, 2).

        Returns:
            The attention, float32 of shape (N, 2, 2, P, S + 1, S, S). The dimensions are canvas, axis (columns, rows),
            direction, head, place in the input (the last one for none), line, and place in the answer. And the symbols
            of the lines, int64 of shape (N, 2, S, S).
        """
        lines = torch.stack([canvases.mT, canvases], dim=1).long()
        number, _, side, _ = lines.shape
        length = sizes[:, :, None]
        place = torch.arange(side, device=lines.device).expand(*length.shape[:2], side)
        ends = (place, length - 1 - place)
        colored = lines > FIRST_COLOR
        before = colored.cumsum(-1) - colored.long()
        ranks = (before, colored.sum(-1, keepdim=True) - before - colored.long())
        equal = _view_by_source(lines) == lines[:, :, None]

        # Features of none stand behind those of the places in the input, so that one product scores them all.
        content = torch.empty(number, 2, 2, CELLS + ABSENT, side + 1, side, side, device=lines.device)
        content[:, :, :, :CELLS, -1] = content[:, :, :, CELLS:, :-1] = 0.0
        offsets = torch.zeros(number, 2, 2, PLACES, side + 1, side, device=lines.device)
        for direction, turn in enumerate((1, -1)):
            for index, feature in enumerate(_list_place_features(place, ends[::turn], length, turn)):
                offsets[:, :, direction, index, :-1] = feature
            for index, feature in enumerate(_list_cell_features(colored, ends[::turn], ranks[::turn], equal)):
                content[:, :, direction, index, :-1] = feature
            for index, feature in enumerate(_list_absent_features(colored, ranks[::turn]), CELLS):
                content[:, :, direction, index, -1] = feature

        outside = F.pad(place >= length, (0, 1))[:, :, None, None, :, None]
        near = _score(self.places, offsets).masked_fill(outside, -1e4)
        scores = _score(torch.cat([self.cells, self.absent], dim=1), content).add_(near[..., None, :])
        # Over any but the last dimension the processor's vector unit computes the softmax, several times as fast.
        return scores.softmax(4), lines


def copy(attention: Tensor, lines: Tensor) -> Tensor:
    """Return the probabilities of the symbols that heads copy, float32 of shape (N, 4 * P, S, S, 12)."""
    named = F.one_hot(lines, SYMBOLS).float()
    copied = torch.einsum("nadpslt,nalsc->nadpltc", attention[..., :-1, :, :], named)
    copied[..., FIRST_COLOR] += attention[..., -1, :, :]
    columns, rows = copied.unbind(1)
    return torch.cat([columns.transpose(3, 4).flatten(1, 2), rows.flatten(1, 2)], dim=1)


def mix(attention: Tensor, lines: Tensor, shares: Tensor) -> Tensor:
    """Return the weighted sum of the probabilities that heads copy.

    Args:
        attention: See `Pointers.forward`.
        lines: See `Pointers.forward`.
        shares: The weight of each hypothesis, shape (N, 4 * P).

    Returns:
        Float32 of shape (N, S * S, 12). The sum over symbols is the sum of the weights.
    """
    number, _, side, _ = lines.shape
    joint = shares.view(number, 2, 1, -1) @ attention.flatten(2, 3).flatten(3)
    joint = joint.view(number, 2, side + 1, side, side)
    copied = torch.einsum("naslt,nalsc->naltc", joint[:, :, :-1], F.one_hot(lines, SYMBOLS).float())
    none = F.one_hot(torch.tensor(FIRST_COLOR, device=lines.device), SYMBOLS)
    columns, rows = (copied + joint[:, :, -1, ..., None] * none).unbind(1)
    return (columns.transpose(1, 2) + rows).flatten(1, 2)


def compute_hits(attention: Tensor, lines: Tensor, answers: Tensor) -> Tensor:
    """Compute the probability that each head gives to each cell's answer.

    Args:
        attention: See `Pointers.forward`.
        lines: See `Pointers.forward`.
        answers: Symbols, shape (N, S, S).

    Returns:
        Float32 of shape (N, 4 * P, S, S).
    """
    asked = torch.stack([answers.mT, answers], dim=1).long()[:, :, None]
    right = torch.cat([asked == _view_by_source(lines), asked == FIRST_COLOR], dim=2)
    found = (attention * right[:, :, None, None]).sum(4)
    columns, rows = found.unbind(1)
    return torch.cat([columns.mT.flatten(1, 2), rows.flatten(1, 2)], dim=1)


def _score(weights: Tensor, features: Tensor) -> Tensor:
    """Return the scores (N, 2, 2, P, ...) of features (N, 2, 2, F, ...) under weights (P, F)."""
    flat = features.flatten(0, 2).flatten(2)
    # An expanded factor spares a copy of the features, which `matmul` and `einsum` make.
    scores = torch.bmm((GAIN * weights).expand(len(flat), -1, -1), flat)
    return scores.view(*features.shape[:3], -1, *features.shape[4:])


def _view_by_source(lines: Tensor) -> Tensor:
    """View lines (N, 2, lines, places) by their places in the input, as (N, 2, places, lines, 1)."""
    return lines.mT[..., None]


def _list_place_features(place: Tensor, ends: tuple[Tensor, ...], length: Tensor, turn: int) -> list[Tensor]:
    """Return features of two places, in the input and in the answer, without their symbols, each (N, 2, S, S)."""
    source, target = place[..., :, None], place[..., None, :]
    offset = turn * (source - target)
    wrapped = offset % length[..., None].clamp(min=1)
    return [
        offset == 0,
        offset < 0,
        offset > 0,
        ends[0][..., :, None] == ends[1][..., None, :],
        *(offset == step for step in range(1, REACH + 1)),
        *(offset == -step for step in range(1, REACH + 1)),
        *(wrapped == step for step in range(1, REACH + 1)),
    ]


def _list_cell_features(
    colored: Tensor, ends: tuple[Tensor, ...], ranks: tuple[Tensor, ...], equal: Tensor
) -> list[Tensor]:
    """Return features of an input cell and a place that depend on the symbols of the line, each (N, 2, S, S, S)."""
    there, here = _view_by_source(colored), colored[:, :, None]
    start, end = (part[:, :, None, None, :] for part in ends)
    before, after = (_view_by_source(rank) for rank in ranks)
    seen = (ranks[0] + colored.long())[:, :, None]
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


def _list_absent_features(colored: Tensor, ranks: tuple[Tensor, ...]) -> list[Tensor]:
    """Return features that predict background at a place, each (N, 2, S, S)."""
    return [torch.ones_like(colored), colored, ranks[0] > 0, ranks[1] > 0]
