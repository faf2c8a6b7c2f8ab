"""The policy that changes the trust in hypotheses, and its rewards."""

from searchlight.models.arc.policy.prompt_policy import Gaussian, PromptPolicy
from searchlight.models.arc.policy.reward import compute_rewards, sum_rewards

__all__ = [
    "Gaussian",
    "PromptPolicy",
    "compute_rewards",
    "sum_rewards",
]
