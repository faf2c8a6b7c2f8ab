"""Text formats of values, durations and commands."""

import math
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from searchlight.trainables.filesystem.paths import StoragePath
from searchlight.trainables.registry import PACKAGE

PROGRAM = "searchlight"
SCHEMA = 1  # the version of all that is printed as JSON: docs/schemas
DISTRIBUTION = "searchlight-hpo"  # on the package index, where searchlight is another product
SCRIPTS = {"run": "run.py", "resume": "run.py --resume", "list": "run.py --list", "report": "report.py"}


def format_value(value: Any) -> str:
    """Return `value` as text, floats with four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def format_interval(low: float, high: float) -> str:
    """Return an interval as 0.1234 to 0.1235."""
    return f"{format_value(low)} to {format_value(high)}"


def format_bytes(size: float) -> str:
    """Return a number of bytes as 1.5 GB."""
    unit = min(int(math.log10(max(size, 1)) / 3), 4)
    return f"{size / 1000**unit:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[unit]}"


def format_duration(seconds: float) -> str:
    """Return a duration as 1:02:03 or 2:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_command(name: str) -> str:
    """Return the command that runs, resumes, reports or lists searches, in the way this process was started.

    An installation has the command searchlight, also for a notebook. A clone has a script, as a relative path.
    """
    program = Path(sys.argv[0])
    if program.name != PROGRAM and program.resolve().parent != PACKAGE.resolve().parent / "search":
        program = Path(sys.executable).with_name(PROGRAM)
    if program.name == PROGRAM and program.exists():
        return f"{PROGRAM if _is_on_path(program) else _shorten_path(program.absolute())} {name}"
    python = Path(sys.executable)
    interpreter = "python" if _is_on_path(python.with_name("python")) else _shorten_path(python)
    script, *option = SCRIPTS[name].split()
    return " ".join([interpreter, _shorten_path(PACKAGE.parent / "search" / script), *option])


def _is_on_path(program: Path) -> bool:
    found = shutil.which(program.name)
    return found is not None and Path(found).parent.resolve() == program.parent.resolve()


def _shorten_path(path: Path) -> str:
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def resume_command(place: StoragePath) -> str:
    """Return the command that resumes the search at `place`."""
    return f"{format_command('resume')} {format_location(place)}"


def resume_hint(place: StoragePath) -> str:
    """Return a line for the end of a search by an error."""
    return f"nothing of search {place.name} is lost. Resume it: {resume_command(place)}"


def list_command(storage: StoragePath) -> str:
    """Return the command that lists the searches in `storage`."""
    is_default = storage == Path("runs").absolute()
    return f"{format_command('list')}{'' if is_default else f' --storage {shlex.quote(str(storage))}'}"


def replay_command(place: StoragePath) -> str:
    """Return the command that logs to MLflow what is missing there of the search at `place`."""
    return f"{report_command(place)} --replay"


def report_command(place: StoragePath) -> str:
    """Return the command that writes the page and the Parquet file of the search at `place`."""
    return f"{format_command('report')} {format_location(place)}"


def log_model_command(place: StoragePath, register: str, command: Callable[[StoragePath], str] = report_command) -> str:
    """Return the `command` for the search at `place` with the option that logs its best checkpoint as a model."""
    return f"{command(place)} {f'--register {shlex.quote(register)}' if register else '--log-model'}"


def format_location(place: StoragePath, *arguments: str) -> str:
    """Return the words that name the search at `place` on the command line, and then further arguments."""
    is_default = place.parent == Path("runs").absolute()
    return shlex.join([place.name, *arguments, *([] if is_default else ["--storage", str(place.parent)])])


def pluralize(count: int, noun: str) -> str:
    """Return "1 trial" or "3 trials"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def join_words(words: Sequence[str], last: str = "and") -> str:
    """Return "a, b and c", or with another word before the last one."""
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def format_numbers(numbers: Sequence[int], most: int = 8) -> str:
    """Return the first `most` of `numbers` and the count of the others."""
    shown = ", ".join(map(str, numbers[:most]))
    return shown + (f" and {len(numbers) - most} more" if len(numbers) > most else "")


def format_trials(numbers: Sequence[int]) -> str:
    """Return "trial 3" or "trials 3, 5"."""
    return f"trial{'' if len(numbers) == 1 else 's'} {format_numbers(numbers)}"


def format_percent(share: float) -> str:
    """Return a share as "12 %". Small shares are not rounded to 0 %, nor large ones to 100 %."""
    if 0 < share < 0.005:
        return f"{100 * share:.2g} %" if share >= 0.00005 else "under 0.01 %"
    return "over 99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"


def format_change(value: float, before: float) -> str:
    """Return the difference as "0.012 (13 %)". Omit the percentage if `before` is zero or has another sign."""
    step = f"{abs(value - before):.3g}"
    if before and math.copysign(1, value) == math.copysign(1, before) and math.isfinite(value / before):
        return f"{step} ({format_percent(abs(value - before) / abs(before))})"
    return step
