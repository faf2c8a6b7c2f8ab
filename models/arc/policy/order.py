"""Orders in which programs are tried, and their score at any time: the best reward after few and after many programs.

Shapes: P puzzles, A operations. Rewards of operations that do not apply are 0.
"""

import torch
from torch import Tensor

BUDGETS = (2, 4, 8, 16, 32, 64)  # numbers of programs


def compute_anytime_reward(order: Tensor, rewards: Tensor) -> Tensor:
    """Compute the best reward among the first programs of an order, the mean over `BUDGETS`.

    Args:
        order: The operations of each puzzle, the first to try first, int64 of shape (P, A).
        rewards: The rewards of all operations, shape (P, A).

    Returns:
        Shape (P,).
    """
    best = rewards.gather(1, order).cummax(1).values
    return best[:, _limit_budgets(rewards.shape[1]) - 1].mean(1)


def compute_uniform_reward(is_valid: Tensor, rewards: Tensor) -> Tensor:
    """Compute the expected `compute_anytime_reward` of a random order of the valid operations, shape (P,).

    Of N valid operations, the one of rank i (1 is the best) is the best of K drawn ones with probability
    C(N - i, K - 1) / C(N, K). So nothing needs to be sampled.
    """
    scores = []
    for valid, row in zip(is_valid, rewards, strict=True):
        ranked = row[valid].sort(descending=True).values.double()
        number = len(ranked)
        expected = []
        for budget in BUDGETS:
            drawn = min(budget, number)
            # The share of draws in which none of the first i is drawn.
            missed = torch.ones(number + 1, dtype=torch.float64)
            missed[1:] = (
                (number - drawn - torch.arange(number)).clamp(min=0) / (number - torch.arange(number))
            ).cumprod(0)
            expected.append((ranked * (missed[:-1] - missed[1:])).sum())
        scores.append(torch.stack(expected).mean())
    return torch.stack(scores).float()


def order_by_cover(rewards: Tensor) -> Tensor:
    """Return a fixed order of operations, int64 of shape (A,): a greedy cover of training puzzles.

    The next operation is the one that adds most to the sum of the puzzles' best rewards.
    """
    best = torch.zeros(len(rewards))
    left = torch.ones(rewards.shape[1], dtype=torch.bool)
    order = []
    for _ in range(rewards.shape[1]):
        gains = (rewards - best[:, None]).clamp(min=0).sum(0)
        chosen = int(gains.masked_fill(~left, -1.0).argmax())
        order.append(chosen)
        left[chosen] = False
        best = best.maximum(rewards[:, chosen])
    return torch.tensor(order)


def apply_order(order: Tensor, is_valid: Tensor) -> Tensor:
    """Return a fixed order (A,) for each puzzle, the valid operations first, int64 of shape (P, A)."""
    later = (~is_valid)[:, order].long().argsort(dim=1, stable=True)
    return order[later]


def _limit_budgets(operations: int) -> Tensor:
    return torch.tensor(BUDGETS).clamp(max=operations)
