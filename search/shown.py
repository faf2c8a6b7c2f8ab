"""How values are shown to people."""

import shlex
from pathlib import Path
from typing import Any


def short(value: Any) -> str:
    """`value` as it is shown to people."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def clock(seconds: float) -> str:
    """A duration, as 1:02:03 or 2:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def go_on(folder: Path) -> str:
    """The command that takes up the search in `folder`."""
    return f"python search/run.py --resume {folder.name}{_storage(folder)}"


def replay(folder: Path) -> str:
    """The command that tells MLflow what it lacks of the search in `folder`."""
    return f"{report_again(folder)} --replay"


def report_again(folder: Path) -> str:
    """The command that writes the page and the Parquet file of the search in `folder`."""
    return f"python search/report.py {folder.name}{_storage(folder)}"


def log_it(folder: Path, register: str) -> str:
    """The command that makes a model of the best checkpoint of the search in `folder`, and registers it."""
    option = f"--register {shlex.quote(register)}" if register else "--log-model"
    return f"{report_again(folder)} {option}"


def _storage(folder: Path) -> str:
    return "" if folder.parent == Path("runs").absolute() else f" --storage {shlex.quote(str(folder.parent))}"
