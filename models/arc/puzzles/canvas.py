"""Grids of any size on square canvases of one size, and back.

A canvas has 12 symbols: nothing (PAD), the edge of the grid (BORDER), and ten colors. The edge is drawn to the right
of and below the grid, so that a model that predicts a canvas also predicts the size of its grid. A grid as large as the
canvas has no edge.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from searchlight.models.arc.puzzles.puzzle import COLORS, Grid

PAD = 0
BORDER = 1
FIRST_COLOR = 2
SYMBOLS = FIRST_COLOR + COLORS


def draw_canvas(grid: Grid, side: int) -> NDArray[np.uint8]:
    """Draw a grid in the upper left corner of a canvas.

    Args:
        grid: Colors 0..9, shape (height, width), neither longer than `side`.
        side: Height and width of the canvas.

    Returns:
        Symbols 0..11, shape (side, side).
    """
    height, width = grid.shape
    canvas = np.full((side, side), PAD, dtype=np.uint8)
    canvas[: height + 1, : width + 1] = BORDER
    canvas[:height, :width] = grid + FIRST_COLOR
    return canvas


def draw_canvases(grids: Sequence[Grid], side: int) -> Tensor:
    """Draw several grids: uint8 symbols of shape (grids, side, side)."""
    canvases = np.zeros((len(grids), side, side), dtype=np.uint8)
    for index, grid in enumerate(grids):
        canvases[index] = draw_canvas(grid, side)
    return torch.from_numpy(canvases)


def read_grid(canvas: NDArray[np.uint8]) -> Grid:
    """Return the grid on a canvas, also if the canvas is inconsistent. This is the inverse of `draw_canvas`.

    The size is the one whose layout (colors inside, edge, nothing) agrees with most cells, so that a few wrong cells
    have no effect. Cells inside the grid without a color become color 0.

    Args:
        canvas: Symbols 0..11, shape (side, side).

    Returns:
        Colors 0..9, shape (height, width) with 1 <= height, width <= side.
    """
    symbols = torch.from_numpy(canvas.astype(np.int64))[None]
    agreement = torch.stack([symbols >= FIRST_COLOR, symbols == BORDER, symbols == PAD]).float()
    height, width = find_likeliest_sizes(*agreement)[0].tolist()
    inside = canvas[:height, :width]
    return np.where(inside >= FIRST_COLOR, inside - FIRST_COLOR, 0).astype(np.uint8)


def find_likeliest_sizes(inside: Tensor, border: Tensor, pad: Tensor) -> Tensor:
    """Find the size of the grid on each canvas, given how well each cell suits each part of the layout.

    Args:
        inside: Score (a log-probability, say) of each cell being part of the grid, shape (canvases, side,
            side).
        border: Score of being its edge, same shape.
        pad: Score of being outside, same shape.

    Returns:
        Heights and widths in 1..side with the highest total score, int64 of shape (canvases, 2).
    """
    side = inside.shape[-1]
    inside_sums, border_sums, pad_sums = (_compute_prefix_sums(scores) for scores in (inside, border, pad))
    ends = torch.arange(1, side + 1, device=inside.device)
    edges = (ends + 1).clamp(max=side)
    grid = (slice(None), ends[:, None], ends[None, :])
    framed = (slice(None), edges[:, None], edges[None, :])
    # The constant total of the pad scores is left out: it is the same for every size.
    totals = inside_sums[grid] + border_sums[framed] - border_sums[grid] - pad_sums[framed]
    best = totals.flatten(1).argmax(dim=1)
    return torch.stack([best // side + 1, best % side + 1], dim=1)


def measure_extents(canvases: Tensor) -> Tensor:
    """Return height and width of the grid on each canvas, int64 of shape (..., 2), for symbols (..., S, S)."""
    color = canvases >= FIRST_COLOR
    return torch.stack([color.any(-1).sum(-1), color.any(-2).sum(-1)], dim=-1)


def compute_cell_accuracy(prediction: Grid, truth: Grid) -> float:
    """Return the number of matching cells in the overlap of two grids, divided by the larger of both areas."""
    side = max(prediction.shape + truth.shape)
    return float(compute_cell_accuracies(draw_canvases([prediction], side), draw_canvases([truth], side)))


def compute_cell_accuracies(answers: Tensor, targets: Tensor) -> Tensor:
    """Return the cell accuracy of answers and targets, symbols of shape (N, S, S), as float32 of shape (N,)."""
    matching = ((answers == targets) & (targets >= FIRST_COLOR)).flatten(1).sum(1)
    area = torch.maximum(measure_extents(answers).prod(1), measure_extents(targets).prod(1))
    return matching.float() / area.clamp(min=1)


def _compute_prefix_sums(scores: Tensor) -> Tensor:
    """Add up all cells above and left: (canvases, side, side) -> (canvases, side + 1, side + 1)."""
    sums = scores.new_zeros(scores.shape[0], scores.shape[1] + 1, scores.shape[2] + 1, dtype=torch.float64)
    sums[:, 1:, 1:] = scores.double().cumsum(1).cumsum(2)
    return sums
