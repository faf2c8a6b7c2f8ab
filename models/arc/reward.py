"""What an answer is worth to the policy: read and scored on canvases, as attempts are, for many samples at once."""

from typing import NamedTuple

import torch
from torch import Tensor

from models.arc.baselines import extents
from models.arc.canvas import BORDER, FIRST_COLOUR, PAD, likeliest_sizes
from models.arc.metrics import cell_accuracies

CELL_LIFT = 0.2
SIZE = 0.1
LIKELIHOOD = 1.0
WORST = -3.0  # nats per cell, below which an answer is as bad as any


class Rewards(NamedTuple):
    """Parts of the reward, each float32 of shape (N,).

    Attributes:
        exact: 1 if the answer is right, else 0.
        cell_lift: Gain in right cells over answering with the query, as a share of what there is to gain; -1..1.
        size: 1 if height and width are right, else 0.
        likelihood: Mean log-probability of the answer's cells and edge, in nats, -3..0: it tells samples apart that
            answer alike, some of them more surely.
    """

    exact: Tensor
    cell_lift: Tensor
    size: Tensor
    likelihood: Tensor


@torch.no_grad()
def rewards(logits: Tensor, target: Tensor, query: Tensor) -> Rewards:
    """Score answers.

    The answer is the likeliest colour in each cell of the likeliest size. A wrong size costs the cells that are
    amiss or too many: matching cells in the overlap are divided by the larger of the two areas, nothing is resized.
    Losses beyond all that there was to gain count -1. If the query is the answer, there is nothing to gain, and the
    lift is minus the share of wrong cells.

    Args:
        logits: Of the last refinement step, any floating dtype, shape (N, S, S, 12).
        target: Symbols of the answers, shape (N, S, S).
        query: Symbols of the queries, same shape.
    """
    log_probs = logits.float().log_softmax(-1)
    colours = log_probs[..., FIRST_COLOUR:]
    sizes = likeliest_sizes(colours.logsumexp(-1), log_probs[..., BORDER], log_probs[..., PAD])
    places = torch.arange(logits.shape[1], device=logits.device)
    inside = (places < sizes[:, :1])[:, :, None] & (places < sizes[:, 1:])[:, None, :]
    answer = torch.where(inside, colours.argmax(-1) + FIRST_COLOUR, PAD)

    accuracy, identity = cell_accuracies(answer, target), cell_accuracies(query, target)
    room = torch.where(identity < 1, 1 - identity, 1.0)
    lift = ((accuracy - identity) / room).clamp(min=-1.0)
    shown = target != PAD
    right = log_probs.gather(-1, target.long()[..., None])[..., 0] * shown
    likelihood = (right.flatten(1).sum(1) / shown.flatten(1).sum(1).clamp(min=1)).clamp(min=WORST)
    return Rewards((accuracy == 1).float(), lift, (sizes == extents(target)).all(1).float(), likelihood)


def total(rewards: Rewards) -> Tensor:
    """Add up the parts, shape (N,): 1 for being right counts most, and parts of it show the way."""
    return rewards.exact + CELL_LIFT * rewards.cell_lift + SIZE * rewards.size + LIKELIHOOD * rewards.likelihood
