"""Hartmann's functions with a fidelity: closed form, known optimum, rank correlations from good to none.

The form and constants are those of mf-prior-bench (Mallik et al. 2023, arXiv 2306.12370). Below full fidelity the
function is flatter, by `bias` times the squared distance to full fidelity on a log scale. It is also noisy, by `noise`
times that distance.
"""

import math

import numpy as np
from numpy.typing import NDArray

from searchlight.trainables.task import TaskConfig, searchable

Array = NDArray[np.float64]

BIAS_NOISE = {"good": (0.5, 0.1), "bad": (2.0, 0.4), "terrible": (4.0, 0.8)}
BEST = {3: -3.86278, 6: -3.32237}
OPTIMUM6 = (0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573)
FIDELITIES = 100  # the ratio of full fidelity to the lowest

ALPHA = np.array([1.0, 1.2, 3.0, 3.2])
A = {
    3: np.array([[3.0, 10, 30], [0.1, 10, 35], [3.0, 10, 30], [0.1, 10, 35]]),
    6: np.array(
        [
            [10, 3, 17, 3.5, 1.7, 8],
            [0.05, 10, 17, 0.1, 8, 14],
            [3, 3.5, 1.7, 10, 17, 8],
            [17, 8, 0.05, 10, 0.1, 14],
        ]
    ),
}
P = {
    3: 1e-4 * np.array([[3689, 1170, 2673], [4699, 4387, 7470], [1091, 8732, 5547], [381, 5743, 8828]]),
    6: 1e-4
    * np.array(
        [
            [1312, 1696, 5569, 124, 8283, 5886],
            [2329, 4135, 8307, 3736, 1004, 9991],
            [2348, 1451, 3522, 2883, 3047, 6650],
            [4047, 8828, 8732, 5743, 1091, 381],
        ]
    ),
}


class Config3(TaskConfig):
    x0: float = searchable(0.5, low=0.0, high=1.0)
    x1: float = searchable(0.5, low=0.0, high=1.0)
    x2: float = searchable(0.5, low=0.0, high=1.0)


class Config6(Config3):
    x3: float = searchable(0.5, low=0.0, high=1.0)
    x4: float = searchable(0.5, low=0.0, high=1.0)
    x5: float = searchable(0.5, low=0.0, high=1.0)


def compute_value(x: Array, share: float, kind: str, draw: np.random.Generator) -> float:
    """Compute the noisy function at `x` after `share` of a full training."""
    bias, noise = BIAS_NOISE[kind]
    missing = 1 - max(0.0, math.log(share * FIDELITIES) / math.log(FIDELITIES))
    alpha = ALPHA - bias * missing**2
    bumps = np.exp(-(A[len(x)] * (x - P[len(x)]) ** 2).sum(1))
    return float(-(alpha * bumps).sum() + noise * missing * draw.standard_normal())
