"""Surrogate derivatives, which replace the derivative of a spike in backward.

Both are 1 at the threshold and decay on both sides, faster with a larger slope (Neftci, Mostafa & Zenke 2019,
arXiv 1901.09948). With a fixed height, the slope only changes how far from its threshold a neuron learns.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class Surrogate(NamedTuple):
    """A surrogate derivative.

    Attributes:
        derivative: A function of the membrane's distance to threshold, any shape, and the slope.
        slope: The usual slope.
    """

    derivative: Callable[[Tensor, float], Tensor]
    slope: float


# A spike is a step function of v, whose derivative is 0 or does not exist. Backward uses that of a smooth step:
#     atan: d/dv arctan(pi/2 k v) / pi = k/2 / (1 + (pi/2 k v)^2),
#     fast sigmoid: d/dv v / (1 + k |v|) = 1 / (1 + k |v|)^2.
# The first is divided by its height k/2, so that both are 1 at the threshold.


def compute_atan(distance: Tensor, slope: float) -> Tensor:
    """Compute 1 / (1 + (pi/2 k v)^2), of the arc tangent (Fang et al. 2021, arXiv 2007.05785)."""
    return (0.5 * math.pi * slope * distance).square_().add_(1).reciprocal_()


def compute_fast_sigmoid(distance: Tensor, slope: float) -> Tensor:
    """Compute 1 / (k |v| + 1)^2 (Zenke & Ganguli 2018, SuperSpike, arXiv 1705.11146)."""
    return distance.abs().mul_(slope).add_(1).square_().reciprocal_()


SURROGATES = {"atan": Surrogate(compute_atan, 2.0), "fast_sigmoid": Surrogate(compute_fast_sigmoid, 25.0)}
