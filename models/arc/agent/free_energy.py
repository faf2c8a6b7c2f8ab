"""Expected free energy of answers: the expected distance from preferred outcomes, and the expected uncertainty.

With hidden states s (members of an ensemble, samples of a prompt), predictions p(o|s), their mean q(o), and
preferences C(o), per cell:

    G = KL[q || C] + E_s H[p(o|s)]  (risk and ambiguity)  =  -E_q ln C - I(o; s)  (pragmatic and epistemic value).

The first form already contains the information gain I, so nothing here adds it a second time (Da Costa et al. 2020,
arXiv 2001.07203; Millidge et al. 2021, arXiv 2004.08128). It ranks candidates. As terms of a loss, ambiguity is for
the agent and information gain for the policy.

Everything is in nats, a weighted mean over the cells of each episode. B episodes, S the side of a canvas, 12 symbols;
a mask holds the cells' weights (float, or bool), of shape (B, S, S), and an episode without any weight counts 0.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from searchlight.models.arc.agent.losses import compute_kl_divergence
from searchlight.models.arc.puzzles import SYMBOLS


def compute_ambiguity(log_probs: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean entropy of a cell, in 0..ln 12.

    Args:
        log_probs: Shape (..., B, S, S, 12).
        mask: Weights of the cells.

    Returns:
        Float32 of shape (..., B): by refinement step or hidden state, where there are several.
    """
    log_probs = log_probs.float()
    return _average_cells(-(log_probs.exp() * log_probs).sum(-1), mask)


def compute_information_gain(log_probs: Tensor, mask: Tensor) -> Tensor:
    """Compute the mutual information of the hidden state and each cell of the answer.

    Args:
        log_probs: The log-probabilities under K hidden states, shape (K, B, S, S, 12).
        mask: The weights of the cells.

    Returns:
        Float32 of shape (B,), in 0..ln K.
    """
    # I(o; s) = H[q] - E_s H[p(o|s)] = E_s KL[p(o|s) || q]. The last form subtracts no two nearly equal entropies.
    log_probs = log_probs.float()
    return _average_cells(compute_kl_divergence(log_probs, _mix_states(log_probs)).mean(0), mask)


def compute_preferences(target: Tensor, epsilon: float = 0.05) -> Tensor:
    """Return the log-probabilities of preferred symbols: mostly the target, and a small probability of the others.

    Args:
        target: The right symbols, shape (B, S, S).
        epsilon: The probability that all symbols share. With 0, each uncertainty would have an infinite cost.

    Returns:
        ln C, float32 of shape (B, S, S, 12).

    Raises:
        ValueError: `epsilon` is not between 0 and 1.
    """
    if not 0 < epsilon < 1:
        raise ValueError(f"epsilon must be between 0 and 1, but got {epsilon}. Use 0.05 to start with.")
    certain = F.one_hot(target.long(), SYMBOLS).float()
    return ((1 - epsilon) * certain + epsilon / SYMBOLS).log()


def compute_risk(log_q: Tensor, log_c: Tensor, mask: Tensor) -> Tensor:
    """Compute the KL divergence of predictions from preferences, KL[q || C], at least 0.

    Args:
        log_q: The log-probabilities of the predictions, shape (..., B, S, S, 12).
        log_c: The log-probabilities of the preferences, shape (B, S, S, 12).
        mask: The weights of the cells.

    Returns:
        Float32 of shape (..., B).
    """
    return _average_cells(compute_kl_divergence(log_q.float(), log_c.float()), mask)


def compute_expected_free_energy(log_probs: Tensor, log_c: Tensor, mask: Tensor) -> Tensor:
    """Compute the sum of the risk of the mean prediction and the mean ambiguity. Smaller is better.

    Args:
        log_probs: The log-probabilities under K hidden states, shape (K, B, S, S, 12).
        log_c: The log-probabilities of the preferences, shape (B, S, S, 12).
        mask: The weights of the cells.

    Returns:
        G, float32 of shape (B,), at least 0.
    """
    # G = KL[q || C] + 1/K sum_s H[p(o|s)] with q = 1/K sum_s p(o|s), so that all K hidden states are equally probable.
    log_probs = log_probs.float()
    return compute_risk(_mix_states(log_probs), log_c, mask) + compute_ambiguity(log_probs, mask).mean(0)


def compute_posterior(free_energy: Tensor, precision: float) -> Tensor:
    """Compute the probability of each candidate, softmax(-precision * G).

    Args:
        free_energy: G of K candidates, shape (B, K).
        precision: The factor of G. 0 gives equal probabilities, and a large one selects the smallest G.
    """
    return (-precision * free_energy.float()).softmax(-1)


def _mix_states(log_probs: Tensor) -> Tensor:
    return log_probs.logsumexp(0) - math.log(len(log_probs))


def _average_cells(cells: Tensor, mask: Tensor) -> Tensor:
    weights = mask.float()
    return (cells * weights).sum((-2, -1)) / weights.sum((-2, -1)).clamp(min=torch.finfo(torch.float32).tiny)
