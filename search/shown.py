"""How values are shown to people."""

from typing import Any


def short(value: Any) -> str:
    """`value` as it is shown to people."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def clock(seconds: float) -> str:
    """A duration, as 1:02:03 or 2:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
