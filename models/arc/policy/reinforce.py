"""The score-function estimator (REINFORCE, Williams 1992) over programs, and the entropy of the policy.

A puzzle is one step of a contextual bandit: the policy samples programs, each gets a reward, and none is discounted.

Shapes: B puzzles, K samples for each puzzle, A operations.
"""

from torch import Tensor

SPREAD = 0.01  # of rewards: below it, a puzzle does not tell its samples apart


def compute_advantages(rewards: Tensor, reward_scale: float) -> Tensor:
    """Compute the advantages of samples: the scaled reward minus the mean of the other samples' (Kool et al. 2019).

    Args:
        rewards: The rewards, shape (B, K) with K at least 2.
        reward_scale: The factor of the rewards. The weight of the policy's entropy does not grow with it.

    Returns:
        Shape (B, K). The sum over the samples of a puzzle is 0, and equal rewards give exactly 0.
    """
    count = rewards.shape[1]
    return reward_scale * (rewards - rewards.mean(1, keepdim=True)) * (count / (count - 1))


def compute_reinforce_loss(log_probs: Tensor, actions: Tensor, advantages: Tensor) -> Tensor:
    """Compute the loss whose gradient is the estimated gradient of the expected reward, negated.

    Args:
        log_probs: The log-probabilities of all operations, shape (B, A).
        actions: The sampled operations, int64 of shape (B, K).
        advantages: The advantages, without gradient, shape (B, K).

    Returns:
        The mean over puzzles and samples, a scalar.
    """
    return -(advantages * log_probs.gather(1, actions)).mean()


def compute_entropy(log_probs: Tensor) -> Tensor:
    """Compute the entropy of the policy in nats, shape (B,). An operation that is not valid counts 0."""
    probs = log_probs.exp()
    return -(probs * log_probs.masked_fill(probs == 0, 0.0)).sum(1)


def has_spread(rewards: Tensor) -> Tensor:
    """Return for each puzzle whether its samples' rewards (B, K) differ, by more than 0.01, bool of shape (B,)."""
    return rewards.amax(1) - rewards.amin(1) > SPREAD
