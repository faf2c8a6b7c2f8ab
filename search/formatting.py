"""How values are shown to people."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainables.filesystem.paths import StoragePath


def format_value(value: Any) -> str:
    """`value` as it is shown to people."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def format_duration(seconds: float) -> str:
    """A duration, as 1:02:03 or 2:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def resume_command(place: StoragePath) -> str:
    """The command that takes up the search at `place`."""
    return f"python search/run.py --resume {place.name}{_format_storage_option(place)}"


def replay_command(place: StoragePath) -> str:
    """The command that tells MLflow what it lacks of the search at `place`."""
    return f"{report_command(place)} --replay"


def report_command(place: StoragePath) -> str:
    """The command that writes the page and the Parquet file of the search at `place`."""
    return f"python search/report.py {place.name}{_format_storage_option(place)}"


def log_model_command(place: StoragePath, register: str) -> str:
    """The command that makes a model of the best checkpoint of the search at `place`, and registers it."""
    option = f"--register {shlex.quote(register)}" if register else "--log-model"
    return f"{report_command(place)} {option}"


def _format_storage_option(place: StoragePath) -> str:
    return "" if place.parent == Path("runs").absolute() else f" --storage {shlex.quote(str(place.parent))}"


def pluralize(count: int, noun: str) -> str:
    """As "1 trial" or "3 trials"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def join_words(words: Sequence[str]) -> str:
    """As "a, b and c"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def format_numbers(numbers: Sequence[int], most: int = 8) -> str:
    """The first of `numbers`, and how many more there are."""
    shown = ", ".join(map(str, numbers[:most]))
    return shown + (f" and {len(numbers) - most} more" if len(numbers) > most else "")


def format_percent(share: float) -> str:
    """As "12 %"; what is little is not told as nothing, nor nearly all as all."""
    if 0 < share < 0.005:
        return f"{100 * share:.2g} %" if share >= 0.00005 else "under 0.01 %"
    return "over 99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"


def format_change(value: float, before: float) -> str:
    """How far `value` is from `before`, as "0.012 (13 %)"; no percents of nothing, nor across zero."""
    step = f"{abs(value - before):.3g}"
    if before and math.copysign(1, value) == math.copysign(1, before) and math.isfinite(value / before):
        return f"{step} ({format_percent(abs(value - before) / abs(before))})"
    return step
