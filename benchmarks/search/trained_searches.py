"""Compare searches whose trials are trained for real with searches that replay recorded trainings.

    python benchmarks/search/trained_searches.py [--seeds 6] [--budget 8] [--processes 2]

The searchers and the simulated time are those of benchmarks/search/search_quality.py. Each trial is trained to its end
under a seed of its own, instead of the nearest recorded config being replayed.
"""

import sys
from multiprocessing import Pool
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.recording import Row, create_parser, print_result
from benchmarks.search.comparison import MEASURES, Pair, bootstrap, count_wins, get_single_ratio
from benchmarks.search.problems.recorded import build_replayed
from benchmarks.search.problems.trained import TRAINED, build_trained
from benchmarks.search.runs import GANGS_OF
from benchmarks.search.simulator import simulate
from benchmarks.search.strategies import SIDES

ABOUT = (
    "ratio: geometric mean over seeds of the final regret of hyperband, divided by that of the recipe; below a "
    "thousandth of the range they are equal. Intervals: 95 %, by bootstrap over seeds, and over both seeds and tasks."
)
COMPARED = ("hyperband", "ray")
BUILDERS = {"trained": build_trained, "replayed": build_replayed}


class Search(NamedTuple):
    """A search of a task. `kind` is one of BUILDERS, `budget` is in full trainings."""

    kind: str
    task: str
    side: str
    seed: int
    budget: int


def run_search(search: Search) -> float:
    """Return the final regret, as a share of the range of the task's values."""
    problem, gangs = BUILDERS[search.kind](search.task), GANGS_OF[search.budget]
    budget = search.budget / gangs * build_replayed(search.task).seconds  # the other one would train for it
    run = simulate(SIDES[search.side](problem, search.seed), problem, gangs, budget, search.seed)
    return run.regrets[-1][1] / (problem.worst - problem.best)


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--budget", type=int, default=8, choices=GANGS_OF, help="full trainings")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    searches = [
        Search(kind, task, side, seed, given.budget)
        for seed in range(given.seeds)
        for task in TRAINED
        for side in COMPARED
        for kind in BUILDERS
    ]
    with Pool(given.processes) as pool:
        regrets = dict(zip(searches, pool.imap(run_search, searches), strict=True))

    def pair(kind: str, task: str) -> Pair:
        ours, theirs = (
            np.array([[regrets[Search(kind, task, side, seed, given.budget)]] for seed in range(given.seeds)])
            for side in COMPARED
        )
        return Pair(ours, theirs)

    rows: list[Row] = []
    for task in TRAINED:
        row: Row = {"task": task}
        for kind in BUILDERS:
            found = pair(kind, task)
            row[kind] = float(get_single_ratio(found))
            row[f"{kind}_lower_equal_higher"] = "/".join(map(str, count_wins(found)))
        rows.append(row)
    every: list[Row] = []
    for kind in BUILDERS:
        interval = bootstrap(MEASURES["single_ratio"], [pair(kind, task) for task in TRAINED])
        ends = ("ratio", "seeds_low", "seeds_high", "both_low", "both_high")
        every.append({"kind": kind, **dict(zip(ends, (interval.value, *interval.seeds, *interval.both), strict=True))})
    print_result({"tasks": rows, "all": every}, {}, ABOUT)


if __name__ == "__main__":
    main()
