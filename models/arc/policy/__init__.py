"""The policy that changes the trust in hypotheses, and its rewards."""

from searchlight.models.arc.policy.prompt_policy import Gaussian, PromptPolicy
from searchlight.models.arc.policy.reward import rewards, total

__all__ = [
    "Gaussian",
    "PromptPolicy",
    "rewards",
    "total",
]
