"""Surrogate derivatives: what backward takes for the derivative of a spike, which is 0 or infinite.

Both are 1 where the membrane is at its threshold, and fall off to both sides, the quicker the larger the slope
(Neftci, Mostafa & Zenke 2019, arXiv 1901.09948). At one height, a change of the slope changes how far from threshold
a neuron still learns, and not how much.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class Surrogate(NamedTuple):
    """A kind of surrogate.

    Attributes:
        derivative: From the membrane's distance to threshold, any shape, and the slope.
        slope: What is usual.
    """

    derivative: Callable[[Tensor, float], Tensor]
    slope: float


def atan(distance: Tensor, slope: float) -> Tensor:
    """1 / (1 + (pi/2 k v)^2), of the arc tangent (Fang et al. 2021, arXiv 2007.05785)."""
    return (0.5 * math.pi * slope * distance).square_().add_(1).reciprocal_()


def fast_sigmoid(distance: Tensor, slope: float) -> Tensor:
    """1 / (k |v| + 1)^2 (Zenke & Ganguli 2018, SuperSpike, arXiv 1705.11146)."""
    return distance.abs().mul_(slope).add_(1).square_().reciprocal_()


SURROGATES = {"atan": Surrogate(atan, 2.0), "fast_sigmoid": Surrogate(fast_sigmoid, 25.0)}
