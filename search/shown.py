"""How values are shown to people."""

import shlex
from pathlib import Path
from typing import Any

from trainables.filesystem.paths import Place


def short(value: Any) -> str:
    """`value` as it is shown to people."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def clock(seconds: float) -> str:
    """A duration, as 1:02:03 or 2:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def go_on(place: Place) -> str:
    """The command that takes up the search at `place`."""
    return f"python search/run.py --resume {place.name}{_storage(place)}"


def replay(place: Place) -> str:
    """The command that tells MLflow what it lacks of the search at `place`."""
    return f"{report_again(place)} --replay"


def report_again(place: Place) -> str:
    """The command that writes the page and the Parquet file of the search at `place`."""
    return f"python search/report.py {place.name}{_storage(place)}"


def log_it(place: Place, register: str) -> str:
    """The command that makes a model of the best checkpoint of the search at `place`, and registers it."""
    option = f"--register {shlex.quote(register)}" if register else "--log-model"
    return f"{report_again(place)} {option}"


def _storage(place: Place) -> str:
    return "" if place.parent == Path("runs").absolute() else f" --storage {shlex.quote(str(place.parent))}"
