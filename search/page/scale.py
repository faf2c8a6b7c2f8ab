"""Which part of an axis is worth its place."""

from collections.abc import Sequence
from math import isfinite
from statistics import quantiles

ROOM = 0.06  # of the axis, beyond its values on either side
FAR = 3.0  # times the way from the best to the worst of nine in ten: what is worse is not shown


def robust(values: Sequence[float | None], mode: str) -> list[float] | None:
    """The range of an axis that shows all `values` but those so bad that the others would be one line beside them.

    None: all of them are shown.
    """
    finite = sorted(value for value in values if value is not None and isfinite(value))
    if len(finite) < 5:
        return None
    tenths = quantiles(finite, n=10, method="inclusive")
    best, most, worst = (finite[0], tenths[-1], finite[-1]) if mode == "min" else (finite[-1], tenths[0], finite[0])
    if abs(worst - best) <= FAR * abs(most - best) or most == best:
        return None
    room = ROOM * abs(most - best)
    return [best - room, most + room] if mode == "min" else [most - room, best + room]
