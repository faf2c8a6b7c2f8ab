"""The value that each trial would have at the highest rung, predicted from the changes of other trials."""

import itertools
import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Trial = TypeVar("Trial", bound=Hashable)


def predict_ends(curves: Mapping[Trial, Mapping[int, float]], rungs: Sequence[int]) -> dict[Trial, float]:
    """Return the value of each trial at its highest rung, plus the median change of other trials from there to the end.

    The change is summed from rung to rung, since few trials reach the end. So the order of trials at a rung is kept.

    Args:
        curves: The values of each trial by step.
        rungs: The steps at which trials are compared, ascending. A trial that has reached none is left out.
    """
    to_end = dict.fromkeys(rungs, 0.0)
    for rung, above in reversed(list(itertools.pairwise(rungs))):
        changes = [curve[above] - curve[rung] for curve in curves.values() if above in curve and rung in curve]
        changes = [change for change in changes if math.isfinite(change)]
        to_end[rung] = to_end[above] + (statistics.median(changes) if changes else 0.0)
    ends = {}
    for trial, curve in curves.items():
        highest = next((rung for rung in reversed(rungs) if rung in curve), None)
        if highest is not None and not math.isnan(curve[highest]):
            ends[trial] = curve[highest] + to_end[highest]
    return ends
