"""Fifteen features of the change that a puzzle's demonstrations show.

They depend on the demonstrations and the query of an episode, and not on its answer. Features of the query's output use
the mean over the demonstrations' outputs, or the size that `guess_sizes` predicts.

Shapes: B episodes, D demonstrations, N canvases, S the side of a canvas.
"""

import math

import torch
from torch import Tensor

from searchlight.models.arc.puzzles import COLORS, FIRST_COLOR, LARGEST_SIDE, SYMBOLS, guess_sizes, measure_extents

FEATURES: tuple[str, ...] = (
    "size_change_ratio",
    "size_preserved",
    "pixel_change_ratio",
    "color_preservation",
    "spatial_correlation",
    "symmetry_change",
    "density_change",
    "colors_added",
    "colors_removed",
    "input_color_count",
    "output_color_count",
    "input_height",
    "input_width",
    "output_height",
    "output_width",
)


def compute_puzzle_features(query: Tensor, demo_inputs: Tensor, demo_outputs: Tensor, demo_mask: Tensor) -> Tensor:
    """Compute the features of each episode, as means over its demonstrations.

    Args:
        query: uint8 symbols, shape (B, S, S).
        demo_inputs: uint8 symbols, shape (B, D, S, S).
        demo_outputs: uint8 symbols, shape (B, D, S, S).
        demo_mask: bool, shape (B, D). A demonstration marked False has no effect.

    Returns:
        float32 of shape (B, 15), in the order of `FEATURES`, each in -1..1. Areas are logarithms of their ratio to base
        900, sides are divided by 30, and numbers of colors by 10. Without demonstrations, their features are 0.
    """
    batch, demos = demo_mask.shape
    pairs = _compute_pair_features(demo_inputs.flatten(0, 1), demo_outputs.flatten(0, 1)).view(batch, demos, -1)
    used = demo_mask[:, :, None]
    means = pairs.masked_fill(~used, 0.0).sum(1) / used.sum(1).clamp(min=1)
    expected = guess_sizes(torch.cat([query[:, None], demo_inputs], dim=1), demo_outputs, demo_mask)[:, 0]
    sizes = torch.cat([measure_extents(query), expected], dim=1).float() / LARGEST_SIDE
    query_colors = _find_colors(query).sum(1, keepdim=True) / COLORS
    return torch.cat([means[:, :-1], query_colors, means[:, -1:], sizes], dim=1)


def _compute_pair_features(inputs: Tensor, outputs: Tensor) -> Tensor:
    """Return ten features of each pair, float32 (N, 10), for symbols (N, S, S). The output's colors come last."""
    before, after = measure_extents(inputs), measure_extents(outputs)
    areas = before.prod(1).clamp(min=1).float(), after.prod(1).clamp(min=1).float()
    same_size = (before == after).all(1)
    in_either = (inputs >= FIRST_COLOR) | (outputs >= FIRST_COLOR)
    changed = _compute_share((inputs != outputs) & in_either, in_either)
    had, has = _find_colors(inputs), _find_colors(outputs)
    features = [
        (areas[1] / areas[0]).log() / math.log(LARGEST_SIDE**2),
        same_size.float(),
        torch.where(same_size, changed, 1.0),
        _compute_share(had * has > 0, had + has > 0),
        _compute_correlation(inputs, outputs),
        _compute_symmetry(outputs, after) - _compute_symmetry(inputs, before),
        _compute_density(outputs) - _compute_density(inputs),
        ((has - had) > 0).sum(1) / COLORS,
        ((had - has) > 0).sum(1) / COLORS,
        has.sum(1) / COLORS,
    ]
    return torch.stack(features, dim=1)


def _compute_share(part: Tensor, whole: Tensor) -> Tensor:
    """Return for each row the share of the true entries of `whole` that are true in `part`, or 0 without any."""
    return part.flatten(1).sum(1).float() / whole.flatten(1).sum(1).clamp(min=1)


def _find_colors(canvases: Tensor) -> Tensor:
    """Return whether each color is on each canvas, float32 0 or 1 of shape (N, 10), for symbols (N, S, S)."""
    shown = torch.zeros(len(canvases), SYMBOLS, device=canvases.device)
    return shown.scatter_(1, canvases.flatten(1).long(), 1.0)[:, FIRST_COLOR:]


def _compute_correlation(inputs: Tensor, outputs: Tensor) -> Tensor:
    """Return the Pearson correlation of the masks of non-background cells of two grids, or 0 if one is constant.

    Colors are names, so that a correlation of their numbers has no meaning.
    """
    both = ((inputs >= FIRST_COLOR) & (outputs >= FIRST_COLOR)).flatten(1).float()
    count = both.sum(1).clamp(min=1)

    def center(canvases: Tensor) -> Tensor:
        filled = (canvases > FIRST_COLOR).flatten(1) * both
        return (filled - (filled.sum(1) / count)[:, None]) * both

    x, y = center(inputs), center(outputs)
    spread = (x.square().sum(1) * y.square().sum(1)).sqrt()
    return torch.where(spread > 1e-4, (x * y).sum(1) / spread.clamp(min=1e-4), 0.0)


def _compute_symmetry(canvases: Tensor, sizes: Tensor) -> Tensor:
    """Return the share of cells that equal their reflection, shape (N,), as a mean over both axes."""
    places = torch.arange(canvases.shape[-1], device=canvases.device)
    inside = canvases >= FIRST_COLOR
    shares = []
    for axis in (1, 2):
        opposite = (sizes[:, axis - 1, None] - 1 - places).clamp(min=0)
        index = opposite[:, :, None] if axis == 1 else opposite[:, None, :]
        mirrored = canvases.gather(axis, index.expand(canvases.shape))
        shares.append(_compute_share((mirrored == canvases) & inside, inside))
    return (shares[0] + shares[1]) / 2


def _compute_density(canvases: Tensor) -> Tensor:
    """Return the share of a grid's cells that are not background, shape (N,), for symbols (N, S, S)."""
    return _compute_share(canvases > FIRST_COLOR, canvases >= FIRST_COLOR)
