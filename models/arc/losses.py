"""The losses of a grid agent: of cells, of the grid's layout, and between its refinement steps.

Each is a mean over the batch in which every episode counts alike, and is computed in float32.
Logits have shape (steps, batch, S, S, 12), targets are symbols of shape (batch, S, S).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from models.arc.canvas import BORDER, FIRST_COLOUR, PAD, SYMBOLS

BORDER_WEIGHT = 1.0
PAD_WEIGHT = 0.1


def cell_loss(
    logits: Tensor,
    target: Tensor,
    hard_cell_floor: float = 1.0,
    border_weight: float = BORDER_WEIGHT,
    pad_weight: float = PAD_WEIGHT,
) -> tuple[Tensor, Tensor]:
    """Compute the mean cross-entropy over cells, episodes and refinement steps (deep supervision).

    Every episode counts alike, however large its grid: within one, the cells' weights are scaled to sum to 1 at
    each step. The edge of the grid carries its size and counts as much as a colour by default; cells outside count
    little, since they follow from the edge. Cells that are already right may count less: a cell's weight is
    multiplied by floor + (1 - floor) * (1 - p), where p is the probability of its symbol, taken as a constant. (As
    in focal loss, Lin et al. 2017, arXiv 1708.02002, but with a floor: where right cells count nothing, they are
    unlearned.)

    Args:
        logits: Any floating dtype.
        target: uint8 symbols.
        hard_cell_floor: Weight of a cell that is surely right relative to one that is surely wrong; above 0, and
            at most 1, where all count alike.
        border_weight: Weight of a BORDER cell relative to a colour's; at least 0.
        pad_weight: Weight of a PAD cell; at least 0.

    Returns:
        The mean loss, a float32 scalar, and its weight: the number of episodes that the mean is taken over,
        a float32 scalar.

    Raises:
        ValueError: The floor is out of range.
    """
    if not 0 < hard_cell_floor <= 1:
        raise ValueError(
            f"hard_cell_floor must be above 0 and at most 1, but got {hard_cell_floor}. Use 1 to weigh cells alike."
        )
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


def colour_loss(logits: Tensor, target: Tensor, hard_cell_floor: float = 1.0) -> Tensor:
    """Compute `cell_loss` of which colour each cell of the answer has, given that it has one.

    What part of the layout a cell is counts in `layout_loss` alone.
    """
    layout = torch.arange(SYMBOLS, device=logits.device) < FIRST_COLOUR
    colours = logits.float().masked_fill(layout, -1e4)
    return cell_loss(colours, target, hard_cell_floor, border_weight=0.0, pad_weight=0.0)[0]


def layout_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Compute the cross-entropy of what part of the layout each cell is: inside the grid, its edge, or outside.

    Which colour a cell inside has does not matter. The three parts count alike, as far as the target has them:
    the edge, which alone tells the size, has a few cells of many.

    Returns:
        The mean over parts, episodes and steps, a float32 scalar.
    """
    log_probs = logits.float().log_softmax(-1)
    inside = log_probs[..., FIRST_COLOUR:].logsumexp(-1)
    parts = torch.stack([log_probs[..., PAD], log_probs[..., BORDER], inside], dim=-1)
    belongs = F.one_hot(target.long().clamp(max=FIRST_COLOUR), FIRST_COLOUR + 1).float()
    counts = belongs.sum((1, 2), keepdim=True)
    weights = belongs / counts.clamp(min=1.0) / (counts > 0).sum(-1, keepdim=True)
    return -(parts * weights).sum((2, 3, 4)).mean()


def consistency(logits: Tensor) -> Tensor:
    """Compare each refinement step with the one before: the mean Jensen-Shannon divergence of a cell.

    Returns:
        A float32 scalar in 0..ln 2; 0 (without a gradient) if there is one step.
    """
    if len(logits) < 2:
        return logits.new_zeros((), dtype=torch.float32)
    log_probs = logits.float().log_softmax(-1)
    return js_divergence(log_probs[:-1], log_probs[1:]).mean()


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Compute KL[p || q] in nats over the last dimension; at least 0, and 0 where p is q.

    Args:
        log_p: Finite log-probabilities.
        log_q: Finite log-probabilities.
    """
    # Rounding must not make less than nothing of it.
    return (log_p.exp() * (log_p - log_q)).sum(-1).clamp(min=0.0)


def js_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Compute the Jensen-Shannon divergence in nats over the last dimension: symmetric, 0 where p is q, at most ln 2.

    Args:
        log_p: Finite log-probabilities.
        log_q: Finite log-probabilities.
    """
    log_mean = torch.logaddexp(log_p, log_q) - math.log(2)
    return 0.5 * (kl_divergence(log_p, log_mean) + kl_divergence(log_q, log_mean))
