"""The policy that chooses programs: what it sees of a puzzle, its loss, and the score of an order."""

from searchlight.models.arc.policy.order import (
    BUDGETS,
    apply_order,
    compute_anytime_reward,
    compute_uniform_reward,
    order_by_cover,
)
from searchlight.models.arc.policy.program_policy import ProgramPolicy
from searchlight.models.arc.policy.reinforce import (
    compute_advantages,
    compute_entropy,
    compute_reinforce_loss,
    has_spread,
)
from searchlight.models.arc.policy.statistics import STATISTICS, compute_statistics

__all__ = [
    "BUDGETS",
    "ProgramPolicy",
    "STATISTICS",
    "apply_order",
    "compute_advantages",
    "compute_anytime_reward",
    "compute_entropy",
    "compute_reinforce_loss",
    "compute_statistics",
    "compute_uniform_reward",
    "has_spread",
    "order_by_cover",
]
