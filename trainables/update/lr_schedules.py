"""Factors of a learning rate over the updates of a trial. None is ever 0: an update at 0 would be lost."""

import math


def linear_warmup(update: int, rising: int) -> float:
    """Up to 1 in so many updates, and 1 from then on."""
    return min(1.0, (update + 1) / max(1, rising))


def warmup_cosine(update: int, updates: int, warmup: float, lowest: float = 0.01) -> float:
    """Up to 1 over a share `warmup` of the `updates`, then a half cosine down to `lowest`."""
    rising = max(1, round(updates * warmup))
    if update < rising:
        return linear_warmup(update, rising)
    progress = min(1.0, (update - rising) / max(1, updates - rising))
    return lowest + (1 - lowest) * 0.5 * (1 + math.cos(math.pi * progress))
