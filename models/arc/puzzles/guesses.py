"""Guesses at an answer that need no learning: its size, and simple transformations of the query.

The demonstrations show which guess to trust. An agent that begins with the best guess only learns where the answer
differs. All functions work on whole batches of canvases and on integers, without gradients.

Shapes: B episodes, D demonstrations, M = 1 + D inputs (the query first), S the side of a canvas, K guesses.
"""

import torch
from torch import Tensor

from searchlight.models.arc.puzzles.canvas import BORDER, FIRST_COLOR, measure_extents

GUESSES = 13


def guess_sizes(inputs: Tensor, demo_outputs: Tensor, demo_mask: Tensor) -> Tensor:
    """Guess the size of each input's output by the first rule that holds in all demonstrations.

    The rules, for heights and widths separately, are: the same ratio to the input; the same size; the same difference
    to the input; the input's other side. If no rule holds, the guess is the input's size.

    Args:
        inputs: Symbols, shape (B, M, S, S), the query first.
        demo_outputs: Symbols, shape (B, D, S, S).
        demo_mask: bool, shape (B, D).

    Returns:
        int64 of shape (B, M, 2), each in 1..S.
    """
    size = measure_extents(inputs).double()
    source, target = size[:, 1:].clamp(min=1.0), measure_extents(demo_outputs).double()
    used = demo_mask[:, :, None]

    def find_agreed(values: Tensor) -> tuple[Tensor, Tensor]:
        highest = values.masked_fill(~used, -1e6).amax(1)
        lowest = values.masked_fill(~used, 1e6).amin(1)
        return highest[:, None], (highest - lowest).abs() < 1e-6

    ratio, same_ratio = find_agreed(target / source)
    constant, same_size = find_agreed(target)
    difference, same_difference = find_agreed(target - source)
    swap, same_swap = find_agreed(target - source.flip(-1))
    swapped = same_swap & (swap[:, 0] == 0)
    guesses = torch.stack([size * ratio, constant.expand_as(size), size + difference, size.flip(-1), size], dim=-1)
    holds = torch.stack([same_ratio, same_size, same_difference, swapped, torch.ones_like(swapped)], dim=-1)
    first = holds.int().argmax(-1)[:, None, :, None].expand(*size.shape, 1)
    return guesses.gather(-1, first)[..., 0].round().clamp(1, inputs.shape[-1]).long()


def guess_outputs(inputs: Tensor, sizes: Tensor) -> Tensor:
    """Return 13 transformations of each input, as outputs of the given size.

    In this order: the unchanged input; reflected left to right; reflected top to bottom; rotated by 180 degrees; the
    four symmetries that swap rows and columns; tiled; enlarged; subsampled; tiled with every other tile reflected; the
    lower right corner. Cells outside the transformed input have color 0. The edge is drawn around the given size.

    Args:
        inputs: Symbols, shape (B, M, S, S).
        sizes: Heights and widths, int64 of shape (B, M, 2).

    Returns:
        int64 symbols of shape (B, M, 13, S, S).
    """
    symbols = inputs.long()
    side = symbols.shape[-1]
    column = torch.arange(side, device=inputs.device).expand(side, side)
    row = column.T
    size = measure_extents(inputs).clamp(min=1)
    height, width = size[..., 0, None, None], size[..., 1, None, None]
    out_height, out_width = sizes[..., 0, None, None], sizes[..., 1, None, None]
    last_row, last_column = height - 1, width - 1
    grow = ((out_height // height).clamp(min=1), (out_width // width).clamp(min=1))
    shrink = ((height // out_height).clamp(min=1), (width // out_width).clamp(min=1))
    tile_row, tile_column = row % height, column % width

    sources = [
        (row, column),
        (row, last_column - column),
        (last_row - row, column),
        (last_row - row, last_column - column),
        (column, row),
        (column, last_column - row),
        (last_row - column, row),
        (last_row - column, last_column - row),
        (tile_row, tile_column),
        (row // grow[0], column // grow[1]),
        (row * shrink[0], column * shrink[1]),
        (
            torch.where(row // height % 2 == 0, tile_row, last_row - tile_row),
            torch.where(column // width % 2 == 0, tile_column, last_column - tile_column),
        ),
        (row + height - out_height, column + width - out_width),
    ]

    shape = (*inputs.shape[:2], side, side)
    rows = torch.stack([source.expand(shape) for source, _ in sources], dim=2)
    columns = torch.stack([source.expand(shape) for _, source in sources], dim=2)
    reached = (rows >= 0) & (columns >= 0) & (rows < height[:, :, None]) & (columns < width[:, :, None])
    cells = (rows * side + columns).clamp(0, side * side - 1)
    moved = symbols.flatten(2).gather(2, cells.flatten(2)).view(cells.shape)

    inside = (row < out_height) & (column < out_width)
    edge = (row <= out_height) & (column <= out_width) & ~inside
    frame = torch.where(inside, FIRST_COLOR, edge.long() * BORDER)[:, :, None]
    return torch.where(reached & inside[:, :, None], moved, frame)


def measure_agreement(guesses: Tensor, demo_outputs: Tensor, demo_mask: Tensor) -> Tensor:
    """Compute the accuracy of each kind of guess on the demonstrations.

    Args:
        guesses: The guesses for the demonstrations' inputs, symbols of shape (B, D, K, S, S).
        demo_outputs: Symbols, shape (B, D, S, S).
        demo_mask: bool, shape (B, D).

    Returns:
        The share of matching cells among the cells with a color in guess or output, as a mean over demonstrations,
        float32 in 0..1 of shape (B, K). It is 0 without demonstrations.
    """
    answers = demo_outputs.long()[:, :, None]
    relevant = (guesses >= FIRST_COLOR) | (answers >= FIRST_COLOR)
    hits = ((guesses == answers) & relevant).flatten(3).sum(-1)
    shares = hits.float() / relevant.flatten(3).sum(-1).clamp(min=1)
    used = demo_mask.float()[:, :, None]
    return (shares * used).sum(1) / used.sum(1).clamp(min=1.0)
