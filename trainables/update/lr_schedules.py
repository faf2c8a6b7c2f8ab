"""Factors of a learning rate over the updates of a trial. All are above 0, since an update at 0 is wasted."""

import math


def linear_warmup(update: int, rising: int) -> float:
    """Return a factor that rises linearly to 1 over `rising` updates, and is 1 after that."""
    return min(1.0, (update + 1) / max(1, rising))


def warmup_cosine(update: int, updates: int, warmup: float, lowest: float = 0.01) -> float:
    """Return a factor that rises to 1 over a share `warmup` of `updates`, then follows a half cosine to `lowest`."""
    rising = max(1, round(updates * warmup))
    if update < rising:
        return linear_warmup(update, rising)
    progress = min(1.0, (update - rising) / max(1, updates - rising))
    return lowest + (1 - lowest) * 0.5 * (1 + math.cos(math.pi * progress))
