"""Compare searchers on tables of recorded trainings of others, at several budgets and with good and wrong defaults.

    python benchmarks/search/recorded_tables.py --problems-from FOLDER [--seeds 20] [--sides hyperband,random]

Without --problems-from, the problems are those of benchmarks/search/search_quality.py.

Time is simulated, as in benchmarks/search/search_quality.py. A side is written as NAME or NAME@DEFAULTS: each searcher
first tries the config that it is given, and PriorBand also has it as a prior. Ratios are those of single searches with
the same seed. Each search is stored in --runs, and searches in that file are not run again.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.recording import create_parser, print_progress, print_result
from benchmarks.search.comparison import MEASURES, Pair, bootstrap, count_wins, get_single_ratio
from benchmarks.search.peers import require_hash_seed
from benchmarks.search.problems.problems import DEFAULTS, Problem
from benchmarks.search.problems.recorded import list_problems
from benchmarks.search.problems.tables import HALVED, build_from_table, list_tables
from benchmarks.search.runs import ALL_SIDES, GANGS_OF, Key, Row, add_rows, run_search

ABOUT = (
    "Regrets are shares of the range of a table's values. single_ratio: geometric mean over searches and tables of the "
    "ratio of final regrets, paired by seed; below a thousandth of the range they are equal. by_best: the same if all "
    "deliver the trial and the checkpoint of the best report. time: median share of the other's time to its final "
    "median. Intervals: 95 %, by bootstrap over seeds, and over both seeds and tables."
)
Figures = dict[str, Any]


def parse_side(text: str) -> tuple[str, str]:
    """Return the side and the quality of its defaults.

    Raises:
        SystemExit: There is no such side or quality.
    """
    side, _, defaults = text.partition("@")
    defaults = defaults or "documented"
    if side not in ALL_SIDES or defaults not in DEFAULTS:
        names, kinds = ", ".join(ALL_SIDES), ", ".join(DEFAULTS)
        sys.exit(f"--sides must be NAME@DEFAULTS with a name of {names} and defaults of {kinds}, but got {text}.")
    return side, defaults


def compare(
    problems: Sequence[Problem], found: dict[tuple[str, str], list[Row]], side: str, against: str
) -> Iterator[Figures]:
    """Yield the measures of `side` for each group of tables. `found` has rows by table and side.

    `against` "best peer" is the side of each table, among the others, with the lowest geometric mean of final regrets.
    """
    for family, chosen in group_tables(problems).items():
        pairs = [_pair(problem, found, side, against) for problem in chosen]
        row: Figures = {"side": side, "against": against, "tables": family, "of": len(pairs)}
        for name in ("single_ratio", "time"):
            interval = bootstrap(MEASURES[name], pairs)
            ends = ("", "_seeds_low", "_seeds_high", "_both_low", "_both_high")
            values = (interval.value, *interval.seeds, *interval.both)
            row |= dict(zip((f"{name}{end}" for end in ends), values, strict=True))
        by_best = [_pair(problem, found, side, against, by_best=True) for problem in chosen]
        row["by_best"] = math.exp(fmean(math.log(get_single_ratio(pair)) for pair in by_best))
        counts = np.sum([count_wins(pair) for pair in pairs], axis=0).tolist()
        row |= dict(zip(("lower", "equal", "higher"), counts, strict=True))
        yield row | {"ends_lower_on": sum(bool(get_single_ratio(pair) < 1) for pair in pairs)}


def list_comparisons(sides: Sequence[str], peers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield which side is compared with which peer: each hyperband with all, and no other peer with a peer.

    Only a hyperband is compared with "best peer", which is chosen among the other sides.
    """
    for against in peers:
        for side in sides:
            is_ours = side.startswith("hyperband") or (side not in peers and against != "best peer")
            if is_ours and side != against:
                yield side, against


def group_tables(problems: Sequence[Problem]) -> dict[str, list[Problem]]:
    """Return the tables of each family, of the families that are left out in whole, and all of them, by group.

    Half of LCBench was chosen on, so its other half says less about new families than these do.
    """
    families: dict[str, list[Problem]] = {}
    for problem in problems:
        families.setdefault(problem.name.split("_")[0], []).append(problem)
    left_out = [p for name, those in families.items() if name != HALVED for p in those if p.held_out]
    whole = {"families left out": left_out} if 0 < len(left_out) < len(problems) else {}
    return {**families, **whole, "all": list(problems)}


def _pair(
    problem: Problem, found: dict[tuple[str, str], list[Row]], side: str, against: str, by_best: bool = False
) -> Pair:
    """Return the regrets of both, at all times, or at the end if all are judged by their best reports."""

    def regrets(name: str) -> Any:
        rows = found[problem.name, name]
        known = [[row.by_best_report] if by_best else row.regrets for row in rows]
        return np.array(known, float) / (problem.worst - problem.best)

    if against == "best peer":
        peers = [name for of, name in found if of == problem.name and not name.startswith("hyperband")]
        against = min(peers, key=lambda name: float(get_single_ratio(Pair(regrets(name), np.ones_like(regrets(name))))))
    return Pair(regrets(side), regrets(against))


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--problems-from", type=Path, metavar="FOLDER", help="the folder of the tables")
    parser.add_argument("--problems", default="all", help="all, development, held-out, or names separated by commas")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--budgets", default="8,32", help=f"full trainings, of {', '.join(map(str, GANGS_OF))}")
    parser.add_argument("--sides", default="hyperband,hyperband@none", help="NAME@DEFAULTS, separated by commas")
    parser.add_argument(
        "--against", default="", help="sides to compare with, and best peer; the second side by default"
    )
    parser.add_argument("--runs", type=Path, required=True, help="the Parquet file that the searches are kept in")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    folder = given.problems_from
    problems = list_problems() if folder is None else [*map(build_from_table, list_tables(folder).values())]
    if given.problems in ("development", "held-out"):
        problems = [problem for problem in problems if problem.held_out == (given.problems == "held-out")]
    elif given.problems != "all":
        problems = [problem for problem in problems if problem.name in given.problems.split(",")]
    if not problems:
        sys.exit(
            f"--problems-from must have the tables of --problems, but {folder or 'this project'} has none of them."
        )
    sides = {text: parse_side(text) for text in given.sides.split(",")}
    budgets = [int(budget) for budget in given.budgets.split(",")]
    if unknown := set(budgets) - GANGS_OF.keys():
        sys.exit(f"--budgets must be among {', '.join(map(str, GANGS_OF))}, but got {', '.join(map(str, unknown))}.")
    require_hash_seed([side for side, _ in sides.values()])
    names = [problem.name for problem in problems]
    keys = [
        Key(name, side, seed, budget, defaults)
        for seed in range(given.seeds)
        for budget in budgets
        for name in names
        for side, defaults in sides.values()
    ]
    search = partial(run_search, folder=folder)
    rows = {row.key: row for row in add_rows(given.runs, keys, given.processes, search=search, say=print_progress)}
    figures: dict[str, Any] = {"revisions": sorted({row.revision for row in rows.values()}), "measures": []}
    figures["revisions"] = [{"revision": each} for each in figures["revisions"]]
    for budget in budgets:
        found = {
            (name, text): [rows[Key(name, side, seed, budget, defaults)] for seed in range(given.seeds)]
            for name in names
            for text, (side, defaults) in sides.items()
        }
        peers = given.against.split(",") if given.against else list(sides)[1:2]
        for side, against in list_comparisons(list(sides), peers):
            figures["measures"] += [{"budget": budget} | row for row in compare(problems, found, side, against)]
    print_result(figures, {}, ABOUT)


if __name__ == "__main__":
    main()
