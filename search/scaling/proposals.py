"""The settings to run at the next size: the predicted optimum and its neighbors."""

from collections.abc import Mapping

import numpy as np

from searchlight.search.scaling.law import INTERVAL, Array, ScalingLaw

NEAREST, FARTHEST = 0.06, 0.25  # distance of neighbors, in searched ranges
SAME = 0.02  # points that are closer in each parameter are one point


def propose(law: ScalingLaw, size: Mapping[str, float], count: int) -> list[dict[str, float]]:
    """Return at most `count` settings for `size`, inside of the searched ranges, in the order of their use.

    They are the predicted optimum, and for each parameter a smaller and a larger value. The remaining ones are drawn
    around the optimum. The distance of neighbors is half the width of the law's interval, within limits.
    """
    positions = np.clip(law.locate(size), 0.0, 1.0)
    center = positions[0]
    low, high = np.quantile(positions[1:], INTERVAL, axis=0)
    step = np.clip((high - low) / 2, NEAREST, FARTHEST)
    random = np.random.default_rng(0)
    points = [center, *(center + sign * step * axis for axis in np.eye(len(center)) for sign in (-1.0, 1.0))]
    points += [center + step * random.uniform(-1.5, 1.5, len(center)) for _ in range(4 * count)]
    chosen: list[Array] = []
    for point in (np.clip(point, 0.0, 1.0) for point in points):
        if len(chosen) < count and not any((np.abs(point - other) < SAME).all() for other in chosen):
            chosen.append(point)
    named = (zip(law.parameters, point.tolist(), strict=True) for point in chosen)
    return [{parameter.name: parameter.from_share(share) for parameter, share in each} for each in named]
