"""The table of simulated searches: a row per problem, side and seed, in a Parquet file."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from benchmarks.recording import describe_commit
from benchmarks.search.peers import PEERS
from benchmarks.search.problems.problems import Problem
from benchmarks.search.problems.recorded import list_problems
from benchmarks.search.problems.tables import build_from_table, find_source, list_tables
from benchmarks.search.simulator import simulate
from benchmarks.search.strategies import SIDES
from benchmarks.search.table import fill_table, load_table
from benchmarks.search.warm_starts import WARM_STARTS

ALL_SIDES = {**SIDES, **WARM_STARTS, **PEERS}
GANGS = 8
TRAININGS = 4  # full trainings per gang in the budget
GANGS_OF = {8: 2, 32: GANGS, 128: GANGS}  # by the budget in full trainings
POINTS = 200  # times at which a regret is stored, evenly spaced over the budget
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
        ("budget", pa.int32()),
        ("defaults", pa.dictionary(pa.int16(), pa.string())),
    ]
)


_describe_commit = cache(describe_commit)


class Key(NamedTuple):
    """The problem, side and seed of one search, its budget in full trainings, and the quality of its defaults."""

    problem: str
    side: str
    seed: int
    budget: int = GANGS * TRAININGS
    defaults: str = "none"


@dataclass(frozen=True)
class Row:
    """The result of one search.

    Attributes:
        regrets: The regrets at POINTS times. The other attributes are those of `Run`.
        revision: The commit of the code that searched, with "+" if files had been changed.
        epoch_s: The real seconds of an epoch, or None if suggestions took no time; see `simulate`.
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
    budget: int = GANGS * TRAININGS
    defaults: str = "none"

    @property
    def key(self) -> Key:
        return Key(self.problem, self.side, self.seed, self.budget, self.defaults)


def list_keys(problems: Sequence[str], sides: Sequence[str], seeds: int) -> list[Key]:
    """Return all searches, seed by seed, so that an interrupted run has about equal numbers of seeds."""
    return [Key(problem, side, seed) for seed in range(seeds) for problem in problems for side in sides]


def run_search(key: Key, epoch_s: float | None = None, folder: Path | None = None) -> Row:
    """Simulate one search; `epoch_s` as in `simulate`. `folder` has the tables of the problem if it is not ours."""
    problem, gangs = _get_problem(folder, key.problem), GANGS_OF[key.budget]
    side = ALL_SIDES[key.side](problem.give_defaults(key.defaults, key.seed), key.seed)
    budget = key.budget / gangs * problem.seconds
    run = simulate(side, problem, gangs, budget, key.seed, epoch_s)
    nothing = problem.worst - problem.best
    regrets = [run.regret_at(budget * (point + 1) / POINTS, nothing) for point in range(POINTS)]
    numbers = {name: getattr(run, name) for name in Row.__dataclass_fields__ if hasattr(run, name)}
    return Row(**{**key._asdict(), **numbers, "regrets": regrets, "revision": _describe_commit(), "epoch_s": epoch_s})


def load_rows(file: Path) -> list[Row]:
    """Return the searches in `file`, none if it does not exist."""
    return [Row(**row) for row in load_table(file)]


def add_rows(
    file: Path,
    keys: Sequence[Key],
    processes: int = 1,
    epoch_s: float | None = None,
    search: Callable[..., Row] = run_search,
    say: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Run the searches of `keys` that are missing in `file` and add them to it. Return the rows of `keys`.

    Raises:
        ValueError: The file has searches with another `epoch_s`.
    """
    known = {row.key: row for row in load_rows(file)}
    if other := {row.epoch_s for row in known.values()} - {epoch_s}:
        raise ValueError(f"{file} must have searches with epochs of {epoch_s} s, but has some of {other.pop()} s.")
    rows = {key: asdict(row) for key, row in known.items()}
    make_row = partial(_run_as_dict, search, epoch_s)
    return [Row(**row) for row in fill_table(file, SCHEMA, rows, keys, make_row, processes, say)]


def _run_as_dict(search: Callable[..., Row], epoch_s: float | None, key: Key) -> dict[str, Any]:
    return asdict(search(key, epoch_s=epoch_s))


@cache
def _get_problems() -> dict[str, Problem]:
    return {problem.name: problem for problem in list_problems()}


@cache
def _get_problem(folder: Path | None, name: str) -> Problem:
    if folder is None:
        return _get_problems()[name]
    source = find_source(name, list_tables(folder))
    return replace(_build(folder, name), source=None if source is None else _build(folder, source))


@cache
def _build(folder: Path, name: str) -> Problem:
    return build_from_table(list_tables(folder)[name])
