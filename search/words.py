"""Numbers as parts of a sentence."""

import math
from collections.abc import Sequence


def counted(count: int, noun: str) -> str:
    """As "1 trial" or "3 trials"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(words: Sequence[str]) -> str:
    """As "a, b and c"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def some(numbers: Sequence[int], most: int = 8) -> str:
    """The first of `numbers`, and how many more there are."""
    shown = ", ".join(map(str, numbers[:most]))
    return shown + (f" and {len(numbers) - most} more" if len(numbers) > most else "")


def percent(share: float) -> str:
    """As "12 %"; what is little is not told as nothing, nor nearly all as all."""
    if 0 < share < 0.005:
        return f"{100 * share:.2g} %" if share >= 0.00005 else "under 0.01 %"
    return "over 99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"


def change(value: float, before: float) -> str:
    """How far `value` is from `before`, as "0.012 (13 %)"; no percents of nothing, nor across zero."""
    step = f"{abs(value - before):.3g}"
    if before and math.copysign(1, value) == math.copysign(1, before) and math.isfinite(value / before):
        return f"{step} ({percent(abs(value - before) / abs(before))})"
    return step
