"""Exponential traces of the spikes before each step."""

import math

import torch
from torch import Tensor


def compute_traces(spikes: Tensor, tau: float) -> Tensor:
    """Compute the trace before each step's own spike is added: x_t = exp(-1 / tau) * (x_{t-1} + s_{t-1}).

    Spikes in the same step therefore do not interact, and spikes n steps apart weigh exp(-n / tau). Each pass doubles
    the time span of the sums, which takes log2(T) passes instead of T steps.

    Args:
        spikes: Shape (B, T, N), floating point.
        tau: Time constant, in steps.

    Returns:
        Shape (B, T, N), of the type of `spikes`.

    Raises:
        ValueError: `tau` is not above 0.
    """
    if not tau > 0:
        raise ValueError(f"tau must be above 0, but got {tau}. It is a time constant in steps; 20 is usual.")
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
