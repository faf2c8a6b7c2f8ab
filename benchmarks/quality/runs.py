"""The table of simulated searches: a row per problem, side and seed, in a Parquet file that later runs add to."""

import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from search.storage.atomic_file import atomic_path

from .peers import PEERS
from .problems import Problem, all_problems
from .simulator import simulate
from .strategies import SIDES
from .variants import VARIANTS

ALL_SIDES = {**SIDES, **PEERS, **VARIANTS}
GANGS = 8
TRAININGS = 4  # full ones that the budget has time for in each gang
POINTS = 200  # moments at which a regret is kept, evenly spaced until the end of the budget
SAVE_EVERY_S = 20.0
SCHEMA = pa.schema(
    [
        ("problem", pa.dictionary(pa.int16(), pa.string())),
        ("side", pa.dictionary(pa.int16(), pa.string())),
        ("seed", pa.int32()),
        ("regrets", pa.list_(pa.float32())),
        *((name, pa.float32()) for name in ("by_best_report", "at_rest", "spent", "lost", "decisions")),
        *((name, pa.int32()) for name in ("trials", "whole", "diverged", "suggestions")),
        ("revision", pa.dictionary(pa.int16(), pa.string())),
        ("epoch_s", pa.float32()),
    ]
)


class Key(NamedTuple):
    """One search: of a problem, by a side, with a seed."""

    problem: str
    side: str
    seed: int


@dataclass(frozen=True)
class Row:
    """What came of one search.

    Attributes:
        regrets: At POINTS moments. The others are as in `Run`.
        revision: The commit of the code that searched, with "+" if files had been changed.
        epoch_s: The real seconds of an epoch; None where suggestions took no time: see `simulate`.
    """

    problem: str
    side: str
    seed: int
    regrets: list[float]
    by_best_report: float
    at_rest: float
    spent: float
    lost: float
    decisions: float
    trials: int
    whole: int
    diverged: int
    suggestions: int
    revision: str
    epoch_s: float | None = None

    @property
    def key(self) -> Key:
        return Key(self.problem, self.side, self.seed)


def list_keys(problems: Sequence[str], sides: Sequence[str], seeds: int) -> list[Key]:
    """Return all searches, seed by seed: wherever a run is cut off, all problems and sides have as many seeds."""
    return [Key(problem, side, seed) for seed in range(seeds) for problem in problems for side in sides]


def run_search(key: Key, epoch_s: float | None = None) -> Row:
    """Simulate one search; `epoch_s` as in `simulate`."""
    problem, make = _get_problems()[key.problem], ALL_SIDES[key.side]
    budget = TRAININGS * problem.seconds
    run = simulate(make(problem, key.seed), problem, GANGS, budget, key.seed, epoch_s)
    nothing = problem.worst - problem.best
    regrets = [run.regret_at(budget * (point + 1) / POINTS, nothing) for point in range(POINTS)]
    numbers = {name: getattr(run, name) for name in Row.__dataclass_fields__ if hasattr(run, name)}
    return Row(**{**key._asdict(), **numbers, "regrets": regrets, "revision": _get_revision(), "epoch_s": epoch_s})


def load_rows(file: Path) -> list[Row]:
    """Return the rows of `file`, none if it does not exist."""
    return [Row(**row) for row in pq.read_table(file).to_pylist()] if file.exists() else []


def save_rows(file: Path, rows: Iterable[Row]) -> None:
    """Write `rows` to `file`, sorted by problem, side and seed."""
    table = pa.Table.from_pylist([asdict(row) for row in sorted(rows, key=lambda row: row.key)], SCHEMA)
    with atomic_path(file) as path:
        pq.write_table(table, path, compression="zstd")


def add_rows(
    file: Path,
    keys: Sequence[Key],
    processes: int = 1,
    epoch_s: float | None = None,
    search: Callable[..., Row] = run_search,
    say: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Run those of `keys` that `file` lacks, add their rows to it, and return the rows of `keys` alone.

    What was run is saved at least every SAVE_EVERY_S seconds, as a search ends, and when the process is interrupted.

    Raises:
        ValueError: The file has searches with another `epoch_s`.
    """
    rows = {row.key: row for row in load_rows(file)}
    if other := {row.epoch_s for row in rows.values()} - {epoch_s}:
        raise ValueError(f"{file} must have searches with epochs of {epoch_s} s, but has some of {other.pop()} s.")
    missing = [key for key in keys if key not in rows]
    saved = time.monotonic()
    try:
        for count, row in enumerate(_run_all(partial(search, epoch_s=epoch_s), missing, processes), 1):
            rows[row.key] = row
            say(f"{count} of {len(missing)} searches")
            if time.monotonic() - saved > SAVE_EVERY_S:
                save_rows(file, rows.values())
                saved = time.monotonic()
    finally:
        if missing:
            save_rows(file, rows.values())
    return [rows[key] for key in keys]


def _run_all(search: Callable[[Key], Row], keys: Sequence[Key], processes: int) -> Iterator[Row]:
    if processes == 1:
        yield from map(search, keys)
        return
    with get_context("spawn").Pool(processes) as pool:  # Ray's threads do not survive a fork
        yield from pool.imap_unordered(search, keys)


@cache
def _get_problems() -> dict[str, Problem]:
    return {problem.name: problem for problem in all_problems()}


@cache
def _get_revision() -> str:
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=9", "--dirty=+"]
    return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()
