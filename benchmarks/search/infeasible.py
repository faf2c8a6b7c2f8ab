"""Simulate searches in which 40 % of the space runs out of memory, by what the sampler is told of such trials.

    python benchmarks/search/infeasible.py > benchmarks/results/infeasible.json

A trial fits into memory if its width times its batch size is small enough. In the problem `inside`, the best config of
the whole space fits. In `edge`, larger is better, so that the best config that fits lies at the limit. Each search has
60 trials on 4 gangs, with the default scheduler. A trial that does not fit ends in its first epoch.
"""

import math
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

import numpy as np

from benchmarks.recording import create_parser, print_progress, print_result
from benchmarks.search.problems import curves
from benchmarks.search.problems.problems import Problem, build_closed_form
from benchmarks.search.simulator import Job, Run, simulate
from benchmarks.search.strategies import Searchlight
from searchlight.trainables.task import TaskConfig, searchable
from searchlight.trainables.worker.messages import Infeasibility, SegmentEnd

GANGS, TRIALS, SEEDS, RESAMPLES = 4, 60, 20, 2000
OCTAVES = 5  # of the range of the width, and of that of the batch size
FITTING = 2 * OCTAVES - math.sqrt(0.4 * 2 * OCTAVES**2)  # octaves above the smallest config: 40 % lie beyond
CAPACITY = 24.0  # GiB, which a config at the limit needs
TOLD = ("failed", "infeasible")  # what the sampler is told of a trial that does not fit; it ignores failed trials
SAMPLERS = ("tpe", "gp", "nsga2", "cmaes")
UNITS = {"lost": "% of trials", "lost_low": "%", "lost_high": "%"}


class MemoryConfig(TaskConfig):
    """The searched parameters of both problems."""

    lr: float = searchable(1e-2, low=1e-4, high=1.0, log=True)
    width: float = searchable(32.0, low=16.0, high=16.0 * 2**OCTAVES, log=True)
    batch: float = searchable(16.0, low=8.0, high=8.0 * 2**OCTAVES, log=True)
    dropout: float = searchable(0.1, low=0.0, high=0.5)


def count_octaves(values: curves.Values) -> float:
    """Return the octaves between the memory that a config needs and that of the smallest config."""
    return math.log2(values["width"] / 16.0) + math.log2(values["batch"] / 8.0)


class Inside(curves.Form):
    """A problem whose best config of the whole space fits into memory. `ideal` has its width and batch in octaves."""

    config, best, worst = MemoryConfig, 0.2, 2.0
    ideal: ClassVar[tuple[float, float]] = (2.5, 1.5)

    @classmethod
    def train(cls, v: curves.Values) -> tuple[list[float], float, int]:
        width, batch = math.log2(v["width"] / 16.0) - cls.ideal[0], math.log2(v["batch"] / 8.0) - cls.ideal[1]
        floor = 0.2 + 0.15 * (math.log10(v["lr"]) + 2.5) ** 2 + 0.03 * (width**2 + batch**2)
        floor += 0.5 * (v["dropout"] - 0.15) ** 2
        values = curves.compute_falling(min(floor, 1.8), 2.0, 1.0, 1.0, cls.epochs)
        return values, cls.seconds, 1 if count_octaves(v) > FITTING else curves.NEVER


class Edge(Inside):
    """A problem whose best config that fits into memory lies at the limit: the nearest one to `ideal` on that line."""

    ideal = (5.0, 3.0)
    best = 0.2 + 0.03 * (sum(ideal) - FITTING) ** 2 / 2


class MemorySide(Searchlight):
    """A search that is told of a lack of memory as `told` says."""

    def __init__(self, problem: Problem, seed: int, sampler: str, told: str) -> None:
        super().__init__(problem, seed, TRIALS, sampler=sampler)
        self._is_told = told == "infeasible"

    def build_end(self, job: Job, epoch: int) -> SegmentEnd:
        missing = CAPACITY * (2 ** (count_octaves(job.values) - FITTING) - 1)
        found = Infeasibility("memory", missing) if self._is_told else None
        return SegmentEnd("failed", "out of memory", infeasibility=found)


PROBLEMS = {form.__name__.lower(): build_closed_form(form, held_out=False) for form in (Inside, Edge)}
Search = tuple[str, str, str, int]  # problem, sampler, told, seed


def run(search: Search) -> Run:
    """Run one search to the end of its trials."""
    problem, sampler, told, seed = search
    return simulate(MemorySide(PROBLEMS[problem], seed, sampler, told), PROBLEMS[problem], GANGS, math.inf, seed)


def describe(problem: str, sampler: str, told: str, runs: Sequence[Run], untold: Sequence[Run]) -> dict[str, Any]:
    """Return the share of lost trials and the final regret, with bootstrap intervals over seeds.

    Args:
        runs, untold: The searches of the seeds in order, and those in which lost trials fail.
    """
    lost = np.array([100 * run.diverged / run.trials for run in runs])
    regrets = np.array([run.regrets[-1][1] for run in runs])
    others = np.array([run.regrets[-1][1] for run in untold])
    drawn = np.random.default_rng(0).integers(len(runs), size=(RESAMPLES, len(runs)))
    row: dict[str, Any] = {"problem": problem, "sampler": sampler, "told": told, "seeds": len(runs)}
    for name, values in (
        ("lost", lost[drawn].mean(axis=1)),
        ("regret", np.median(regrets[drawn], axis=1)),
        ("ratio", np.median(regrets[drawn], axis=1) / np.median(others[drawn], axis=1)),
    ):
        row[f"{name}_low"], row[f"{name}_high"] = np.percentile(values, (2.5, 97.5)).tolist()
    row |= {"lost": float(lost.mean()), "regret": float(np.median(regrets))}
    row |= {"ratio": float(np.median(regrets) / np.median(others)), "lower": int((regrets < others).sum())}
    return row


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--samplers", default="tpe", help=f"of {', '.join(SAMPLERS)}")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    samplers = given.samplers.split(",")
    if unknown := set(samplers) - set(SAMPLERS):
        sys.exit(f"--samplers must be among {', '.join(SAMPLERS)}, but got {', '.join(unknown)}.")
    rows = []
    with ProcessPoolExecutor(given.processes) as pool:
        for problem in PROBLEMS:
            for sampler in samplers:
                untold: list[Run] = []
                for told in TOLD:
                    runs = list(pool.map(run, [(problem, sampler, told, seed) for seed in range(given.seeds)]))
                    untold = untold or runs
                    rows.append(describe(problem, sampler, told, runs, untold))
                    print_progress(f"{problem}, {sampler}, {told}: {rows[-1]}")
    about = (
        f"{TRIALS} trials, {GANGS} gangs, 40 % of the space does not fit. lost: mean share of trials that ran out of "
        "memory. regret: median at the end. ratio: of medians, to the same sampler that is not told. lower: seeds that "
        "end lower than it. Intervals: 95 %, by bootstrap over seeds"
    )
    print_result({"searches": rows}, UNITS, about, digits=3)


if __name__ == "__main__":
    main()
