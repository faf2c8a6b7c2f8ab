"""The reward of an answer for the policy, computed on canvases for many samples at once."""

from typing import NamedTuple

import torch
from torch import Tensor

from searchlight.models.arc.puzzles import (
    BORDER,
    FIRST_COLOR,
    PAD,
    compute_cell_accuracies,
    find_likeliest_sizes,
    measure_extents,
)

CELL_LIFT = 0.2
SIZE = 0.1
LIKELIHOOD = 1.0
WORST = -3.0  # nats per cell, below which an answer is as bad as any


class Rewards(NamedTuple):
    """Parts of the reward, each float32 of shape (N,).

    Attributes:
        exact: 1 if the answer is right, else 0.
        cell_lift: The gain in right cells over answering with the query, as a share of the largest gain, -1..1.
        size: 1 if height and width are right, else 0.
        likelihood: The mean log-probability of the right symbols of cells and edge, in nats, -3..0. It distinguishes
            samples with the same answer and different confidence.
    """

    exact: Tensor
    cell_lift: Tensor
    size: Tensor
    likelihood: Tensor


@torch.no_grad()
def compute_rewards(logits: Tensor, target: Tensor, query: Tensor) -> Rewards:
    """Compute the parts of the reward of each answer.

    The answer is the most likely color in each cell of the most likely size. With a wrong size, missing and surplus
    cells count as wrong: the number of matching cells in the overlap is divided by the larger of the two areas. The
    lift is at least -1. If the query is the right answer, no gain is possible, and the lift is minus the share of
    wrong cells.

    Args:
        logits: The logits of the last refinement step, any floating dtype, shape (N, S, S, 12).
        target: The symbols of the right answers, shape (N, S, S).
        query: The symbols of the queries, shape (N, S, S).
    """
    log_probs = logits.float().log_softmax(-1)
    colors = log_probs[..., FIRST_COLOR:]
    sizes = find_likeliest_sizes(colors.logsumexp(-1), log_probs[..., BORDER], log_probs[..., PAD])
    places = torch.arange(logits.shape[1], device=logits.device)
    inside = (places < sizes[:, :1])[:, :, None] & (places < sizes[:, 1:])[:, None, :]
    answer = torch.where(inside, colors.argmax(-1) + FIRST_COLOR, PAD)

    accuracy, identity = compute_cell_accuracies(answer, target), compute_cell_accuracies(query, target)
    room = torch.where(identity < 1, 1 - identity, 1.0)
    lift = ((accuracy - identity) / room).clamp(min=-1.0)
    shown = target != PAD
    right = log_probs.gather(-1, target.long()[..., None])[..., 0] * shown
    likelihood = (right.flatten(1).sum(1) / shown.flatten(1).sum(1).clamp(min=1)).clamp(min=WORST)
    return Rewards((accuracy == 1).float(), lift, (sizes == measure_extents(target)).all(1).float(), likelihood)


def sum_rewards(rewards: Rewards) -> Tensor:
    """Return the sum of the parts, shape (N,). A right answer has the largest part, 1."""
    return rewards.exact + CELL_LIFT * rewards.cell_lift + SIZE * rewards.size + LIKELIHOOD * rewards.likelihood
