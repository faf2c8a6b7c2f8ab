"""Spike-timing-dependent plasticity (STDP): the change of a weight from the spikes on both sides of a synapse.

B samples, T steps; spikes of N_pre and N_post neurons, shapes (B, T, N). Times are in steps. A sequence starts without
spikes.
"""

import math

import torch
from torch import Tensor

A_PLUS, A_MINUS = 0.005, 0.00525


def sum_pairs(pre: Tensor, post: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Sum pair STDP, all to all: pre before post adds A+ e^(-dt / tau), post before pre subtracts A- e^(-dt / tau).

    Two spikes in the same step change nothing. Bi and Poo 1998; Song, Miller and Abbott 2000: tau of 20 ms (here of 1
    ms per step), A+ of 0.005 and A- / A+ of 1.05.

    Args:
        pre: Presynaptic spikes, shape (B, T, N_pre), floating point.
        post: Postsynaptic spikes, shape (B, T, N_post).
        tau: Time constant of both traces, in steps.

    Returns:
        Potentiation and depression, each at least 0, summed over samples and steps, shape (N_post, N_pre).
    """
    # With pre spikes x_j, post spikes y_i and their traces r_j, o_i of earlier steps (Morrison et al. 2008):
    #     dw_ij = sum_t A+ y_i(t) r_j(t) - A- o_i(t) x_j(t).
    # A trace already sums over all earlier spikes, so that no loop over pairs of spikes is needed.
    return A_PLUS * _correlate(post, compute_traces(pre, tau)), A_MINUS * _correlate(compute_traces(post, tau), pre)


def compute_traces(spikes: Tensor, tau: float) -> Tensor:
    """Compute the trace before each step's own spike is added: x_t = exp(-1 / tau) * (x_{t-1} + s_{t-1}).

    Spikes in the same step therefore do not interact, and spikes n steps apart weigh exp(-n / tau). Each pass doubles
    the time span of the sums, which takes log2(T) passes instead of T steps.

    Args:
        spikes: Shape (B, T, N), floating point.
        tau: Time constant above 0, in steps.

    Returns:
        Shape (B, T, N), of the type of `spikes`.
    """
    # x_t(n), the sum over the last n steps, doubles its span by x_t(2n) = x_t(n) + exp(-n / tau) x_{t-n}(n).
    trace = torch.empty_like(spikes)
    trace[:, 0] = 0
    trace[:, 1:] = math.exp(-1 / tau) * spikes[:, :-1]
    span = 1
    while span < spikes.shape[1]:
        longer = trace.clone()
        longer[:, span:].add_(trace[:, :-span], alpha=math.exp(-span / tau))
        trace, span = longer, 2 * span
    return trace


def _correlate(post: Tensor, pre: Tensor) -> Tensor:
    """Return the sum of the outer products of all samples and steps, shape (N_post, N_pre)."""
    return post.flatten(0, 1).T @ pre.flatten(0, 1)
