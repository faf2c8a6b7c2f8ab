"""The losses of a grid agent: of cells, of the grid's layout, and between its refinement steps.

Each is a mean over the batch in which all episodes have equal weight, and is computed in float32.
Logits have shape (steps, batch, S, S, 12), targets are symbols of shape (batch, S, S).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from searchlight.models.arc.puzzles import BORDER, FIRST_COLOR, PAD, SYMBOLS

BORDER_WEIGHT = 1.0
PAD_WEIGHT = 0.1


def compute_cell_loss(
    logits: Tensor,
    target: Tensor,
    hard_cell_floor: float = 1.0,
    border_weight: float = BORDER_WEIGHT,
    pad_weight: float = PAD_WEIGHT,
) -> tuple[Tensor, Tensor]:
    """Compute the mean cross-entropy over cells, episodes and refinement steps (deep supervision).

    All episodes have equal weight, for any size of their grids: the weights of an episode's cells sum to 1 at each
    step. The edge of the grid shows its size and has the weight of a color by default. Cells outside have a small
    weight, since they follow from the edge. Cells that are already right may have a smaller weight: it is multiplied by
    floor + (1 - floor) * (1 - p), where p is the probability of the right symbol, without gradient. This is the focal
    loss (Lin et al. 2017, arXiv 1708.02002) with a floor. Without a floor, right cells would be unlearned.

    Args:
        logits: Logits of any floating dtype.
        target: uint8 symbols.
        hard_cell_floor: The weight of a cell with p = 1, relative to a cell with p = 0. It is above 0 and at most 1,
            where all cells have equal weight.
        border_weight: The weight of a BORDER cell relative to a cell with a color, at least 0.
        pad_weight: The weight of a PAD cell relative to a cell with a color, at least 0.

    Returns:
        The mean loss and its weight, the number of episodes, both float32 scalars.
    """
    steps, episodes = logits.shape[:2]
    symbol_weights = torch.ones(SYMBOLS, device=logits.device)
    symbol_weights[BORDER] = border_weight
    symbol_weights[PAD] = pad_weight
    symbols = target.long()
    losses = F.cross_entropy(
        logits.float().flatten(0, -2), symbols.expand(steps, *symbols.shape).flatten(), reduction="none"
    ).view(steps, episodes, -1)
    missing = -torch.expm1(-losses.detach())
    weights = symbol_weights[symbols].flatten(1) * (hard_cell_floor + (1 - hard_cell_floor) * missing)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    mean = (losses * weights).sum() / (steps * episodes)
    return mean, logits.new_tensor(episodes, dtype=torch.float32)


def compute_color_loss(logits: Tensor, target: Tensor, hard_cell_floor: float = 1.0) -> Tensor:
    """Compute the `compute_cell_loss` of the colors of the cells inside the answer's grid.

    The position of the grid's edge counts only in `compute_layout_loss`.
    """
    layout = torch.arange(SYMBOLS, device=logits.device) < FIRST_COLOR
    colors = logits.float().masked_fill(layout, -1e4)
    return compute_cell_loss(colors, target, hard_cell_floor, border_weight=0.0, pad_weight=0.0)[0]


def compute_layout_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Compute the cross-entropy of three classes of cells: inside the grid, its edge, and outside.

    The colors of the cells inside have no effect. The classes that the target contains have equal weight, because
    the edge, which alone shows the size, has few cells.

    Returns:
        The mean over parts, episodes and steps, a float32 scalar.
    """
    log_probs = logits.float().log_softmax(-1)
    inside = log_probs[..., FIRST_COLOR:].logsumexp(-1)
    parts = torch.stack([log_probs[..., PAD], log_probs[..., BORDER], inside], dim=-1)
    belongs = F.one_hot(target.long().clamp(max=FIRST_COLOR), FIRST_COLOR + 1).float()
    counts = belongs.sum((1, 2), keepdim=True)
    weights = belongs / counts.clamp(min=1.0) / (counts > 0).sum(-1, keepdim=True)
    return -(parts * weights).sum((2, 3, 4)).mean()


def compute_consistency(logits: Tensor) -> Tensor:
    """Compute the mean Jensen-Shannon divergence of cells between each refinement step and the step before.

    Returns:
        A float32 scalar in 0..ln 2. With one step, it is 0 without a gradient.
    """
    if len(logits) < 2:
        return logits.new_zeros((), dtype=torch.float32)
    log_probs = logits.float().log_softmax(-1)
    return compute_js_divergence(log_probs[:-1], log_probs[1:]).mean()


def compute_kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Compute KL[p || q] in nats over the last dimension. It is at least 0, and 0 if p equals q.

    Args:
        log_p: Finite log-probabilities.
        log_q: Finite log-probabilities.
    """
    # Rounding must not make less than nothing of it.
    return (log_p.exp() * (log_p - log_q)).sum(-1).clamp(min=0.0)


def compute_js_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Compute the Jensen-Shannon divergence in nats over the last dimension: symmetric, 0 where p is q, at most ln 2.

    Args:
        log_p: Finite log-probabilities.
        log_q: Finite log-probabilities.
    """
    log_mean = torch.logaddexp(log_p, log_q) - math.log(2)
    return 0.5 * (compute_kl_divergence(log_p, log_mean) + compute_kl_divergence(log_q, log_mean))
