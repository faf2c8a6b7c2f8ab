"""The loss of a grid agent: cross-entropy of every cell, at every refinement step."""

import torch
import torch.nn.functional as F
from torch import Tensor

from models.arc.canvas import BORDER, PAD, SYMBOLS

BORDER_WEIGHT = 1.0
PAD_WEIGHT = 0.1


def cell_loss(
    logits: Tensor, target: Tensor, border_weight: float = BORDER_WEIGHT, pad_weight: float = PAD_WEIGHT
) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy over cells, episodes and refinement steps (deep supervision).

    Every episode counts alike, however large its grid: within one, the cells' weights are scaled to sum to 1.
    The edge of the grid carries its size and counts as much as a colour by default; cells outside count
    little, since they follow from the edge.

    Args:
        logits: Shape (steps, batch, S, S, 12), any floating dtype; computed on in float32.
        target: uint8 symbols, shape (batch, S, S).
        border_weight: Weight of a BORDER cell relative to a colour's; at least 0.
        pad_weight: Weight of a PAD cell; at least 0.

    Returns:
        The mean loss, a float32 scalar, and its weight: the number of episodes that the mean is taken over,
        a float32 scalar.
    """
    steps, episodes = logits.shape[:2]
    symbol_weights = torch.ones(SYMBOLS, device=logits.device)
    symbol_weights[BORDER] = border_weight
    symbol_weights[PAD] = pad_weight
    symbols = target.long()
    weights = symbol_weights[symbols].flatten(1)
    weights = weights / weights.sum(dim=1, keepdim=True)
    losses = F.cross_entropy(
        logits.float().flatten(0, -2), symbols.expand(steps, *symbols.shape).flatten(), reduction="none"
    )
    mean = (losses.view(steps, episodes, -1) * weights).sum() / (steps * episodes)
    return mean, logits.new_tensor(episodes, dtype=torch.float32)
