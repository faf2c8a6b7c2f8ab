"""Results of benchmarks: JSON objects that the scripts print, `results/` keeps, and goals and pages read.

A result has tables of figures. A table is a list of rows, which are dicts from column to value, or a single such dict.
`units` has the unit of a column, if it has one.
"""

import argparse
import importlib.metadata
import json
import math
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BENCH = RESULTS / "bench"  # what `make bench` wrote last
GPU = RESULTS / "gpu"  # what `make gpu` wrote last
SEARCH = ROOT / "search" / "run.py"
LIBRARIES = ("Ray", "Optuna", "MLflow", "torch")
LOAD = os.getloadavg()[0]  # before the benchmark adds its own

Row = dict[str, Any]
Table = list[Row] | Row


class NotMeasuredError(Exception):
    """A figure is not in the results."""


@dataclass(frozen=True)
class Result:
    """The output of a benchmark.

    Attributes:
        command: The command that repeats it, or the script of an earlier commit.
        about: What all figures have in common, such as versions of peers and sizes.
        load: The load average of the machine, before and after.
        seconds: The duration of the command.
        note: A remark on the measurement, such as other work on the machine.
        printed: The lines of a program of the product, where a page shows them.
    """

    command: str
    date: str
    machine: str
    figures: dict[str, Table]
    units: dict[str, str] = field(default_factory=dict)
    about: str = ""
    commit: str = ""
    load: list[float] = field(default_factory=list)
    seconds: float | None = None
    note: str = ""
    printed: list[str] = field(default_factory=list)

    @property
    def source(self) -> str:
        """The date, the machine and the circumstances, in one line."""
        run = [
            f"commit {self.commit}" if self.commit else "",
            f"load average {' to '.join(map(str, self.load))}" if self.load else "",
            f"{self.seconds:.0f} s" if self.seconds is not None else "",
        ]
        return "; ".join(filter(None, [f"{self.date}, {self.machine}", ", ".join(filter(None, run)), self.note]))

    def find_rows(self, table: str, **chosen: object) -> list[Row]:
        """Return the rows of a table with the `chosen` values.

        Raises:
            NotMeasuredError: There is no such row.
        """
        rows = self.figures.get(table, [])
        rows = [rows] if isinstance(rows, dict) else rows
        found = [row for row in rows if all(row.get(name) == value for name, value in chosen.items())]
        if not found:
            raise NotMeasuredError(f"{table} of {self.command} must have a row with {chosen}, but has none.")
        return found

    def find_row(self, table: str, **chosen: object) -> Row:
        """Return the first row of a table with the `chosen` values, as `find_rows` does."""
        return self.find_rows(table, **chosen)[0]


def load_result(name: str) -> Result:
    """Read the result of the last `make bench`. If it has none of `name`, read that of a longer study.

    "study/NAME" is always the longer study.

    Raises:
        NotMeasuredError: There is no such result.
    """
    for path in (BENCH / f"{name}.json", RESULTS / f"{name.removeprefix('study/')}.json"):
        if path.exists():
            return Result(**json.loads(path.read_text(encoding="utf-8")))
    raise NotMeasuredError(f"{name}.json must be in {RESULTS}, but is not.")


def to_json(result: Result) -> str:
    """Return a result as JSON with a row of figures per line. Unset fields are left out."""
    fields = {name: value for name, value in asdict(result).items() if value not in ("", None, [], {})}
    tables = []
    for name, table in fields.pop("figures").items():
        rows = table if isinstance(table, list) else table.items()
        parts = [_dump(row) if isinstance(row, dict) else f"{_dump(row[0])}: {_dump(row[1])}" for row in rows]
        left, right = "[]" if isinstance(table, list) else "{}"
        tables.append(f"  {_dump(name)}: {left}\n   " + ",\n   ".join(parts) + f"\n  {right}")
    lines = [f" {_dump(name)}: {_dump(value)}" for name, value in fields.items()]
    return "{\n" + ",\n".join([*lines, ' "figures": {\n' + ",\n".join(tables) + "\n }"]) + "\n}\n"


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def print_result(
    figures: Mapping[str, Table], units: Mapping[str, str] | None = None, about: str = "", digits: int = 4
) -> None:
    """Print the result of this script, with its figures rounded to `digits` significant digits."""
    script = Path(sys.argv[0]).resolve()
    path = script.relative_to(ROOT) if script.is_relative_to(ROOT) else script
    result = Result(
        command=shlex.join(["python", str(path), *sys.argv[1:]]),
        date=datetime.now(UTC).date().isoformat(),
        machine=describe_machine(),
        commit=describe_commit(),
        load=[round(LOAD, 1), round(os.getloadavg()[0], 1)],
        seconds=round(time.time() - psutil.Process().create_time(), 1),
        about=about,
        units=dict(units or {}),
        figures=round_figures(figures, digits),
    )
    print(to_json(result), end="", flush=True)


def round_figures(value: Any, digits: int) -> Any:
    """Round the floats in a value to significant digits. Write infinity as "inf", and NaN as None."""
    if isinstance(value, Mapping):
        return {name: round_figures(each, digits) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [round_figures(each, digits) for each in value]
    if not isinstance(value, float):
        return value
    if math.isnan(value):
        return None
    return float(f"{value:.{digits}g}") if math.isfinite(value) else str(value)


def load_or_measure(path: Path, measure: Callable[[], Row]) -> Row:
    """Return the row that an earlier call kept in a file, or measure it and keep it.

    So a long benchmark can be stopped at any time, and goes on when it is called again.
    """
    if path.exists():
        known: Row = json.loads(path.read_text(encoding="utf-8"))
        return known
    row = measure()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")  # a call that is ended while it writes must not leave half of a row
    part.write_text(_dump(row), encoding="utf-8")
    part.replace(path)
    return row


def print_progress(line: str) -> None:
    """Print a line to standard error, since standard output has the result alone."""
    print(line, file=sys.stderr, flush=True)


def create_parser(description: str | None) -> argparse.ArgumentParser:
    """Create a parser whose help is the docstring of a script."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the option --set, whose values `parse_settings` reads."""
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE of the task's config")


def parse_settings(given: argparse.Namespace) -> dict[str, str]:
    """Return the values of --set by name."""
    return dict(part.split("=", 1) for part in given.set)


def get_quartiles(values: Iterable[float], scale: float = 1.0) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile, each times `scale`. One value is all three."""
    scaled = [scale * value for value in values]
    low, median, high = statistics.quantiles(scaled, n=4, method="inclusive") if len(scaled) > 1 else 3 * scaled
    return low, median, high


def name_quartiles(name: str, values: Iterable[float], scale: float = 1.0) -> Row:
    """Return the median as the figure `name`, and the quartiles as NAME_low and NAME_high."""
    low, median, high = get_quartiles(values, scale)
    return {name: median, f"{name}_low": low, f"{name}_high": high}


def describe_versions(packages: Sequence[str]) -> str:
    """Return the versions of packages, with "missing" for those that are not installed."""
    return ", ".join(f"{package} {_find_version(package)}" for package in packages)


def _find_version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def describe_machine() -> str:
    """Return the processor, its cores, the memory, the GPU and the versions, in one line."""
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    model = next(models, platform.processor() or platform.machine())
    memory = f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    python = f"Python {platform.python_version()}"
    return ", ".join([model, f"{os.cpu_count()} cores", memory, gpu, python, describe_versions(LIBRARIES)])


def describe_commit() -> str:
    """Return the commit of the checkout, with a "+" if product or benchmarks differ from it."""
    try:
        git = ["git", "-C", str(ROOT)]
        commit = subprocess.run([*git, "rev-parse", "--short=9", "HEAD"], capture_output=True, text=True, check=True)
        changed = [*git, "status", "--porcelain", "--", "*.py"]
        return commit.stdout.strip() + "+" * bool(subprocess.run(changed, capture_output=True, check=True).stdout)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
