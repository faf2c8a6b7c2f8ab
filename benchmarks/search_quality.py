"""How well a search searches: our default against Ray's documented recipe, random search and TPE, at equal time.

Time is simulated: gangs train curves that are known in closed form or were recorded, and the real searchers and
schedulers say what to train. A regret is that of the trial which a side takes for its best, trained in full and
evaluated without noise. Reported are medians over seeds, the time that each side takes to reach the final median of
Ray's recipe (as a share of the time that the recipe took for it), and Wilcoxon's signed-rank test over seeds.

    python benchmarks/search_quality.py [--seeds 20] [--problems cliff,digits] [--sides ray,grace-3]
"""

import argparse
import csv
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from quality.problems import Problem, all_problems
from quality.simulator import Run, simulate
from quality.strategies import SIDES
from quality.variants import VARIANTS
from scipy.stats import wilcoxon

PEER = "ray"
GANGS = 8
TRAININGS = 4  # full ones that the budget has time for in each gang
POINTS = 200  # of a regret curve
TOLD = (0.1, 0.25, 0.5, 1.0)  # shares of the budget


@dataclass
class Outcome:
    """What one side made of one problem: a run and a row of `regrets`, (seeds, POINTS), per seed."""

    runs: list[Run]
    regrets: NDArray[np.float64]

    def at(self, share: float) -> NDArray[np.float64]:
        return self.regrets[:, round(share * POINTS) - 1]

    @property
    def median(self) -> NDArray[np.float64]:
        curve: NDArray[np.float64] = np.median(self.regrets, axis=0)
        return curve

    def reaches(self, regret: float) -> float:
        """The share of the budget after which the median is that low and stays so, infinite if never."""
        above = np.flatnonzero(self.median > regret)
        first = above[-1] + 1 if len(above) else 0
        return (first + 1) / POINTS if first < POINTS else float("inf")


def search(problem: Problem, side: str, seeds: int) -> Outcome:
    budget, make = TRAININGS * problem.seconds, {**SIDES, **VARIANTS}[side]
    runs = [simulate(make(problem, seed), problem, GANGS, budget, seed) for seed in range(seeds)]
    moments = [budget * (point + 1) / POINTS for point in range(POINTS)]
    nothing = problem.worst - problem.best
    return Outcome(runs, np.array([[run.regret_at(moment, nothing) for moment in moments] for run in runs]))


def compare(problem: Problem, sides: list[str], seeds: int) -> dict[str, Outcome]:
    """Search `problem` with each of `sides`, and print what came of it."""
    kind = "held out" if problem.held_out else "tuned on"
    print(f"{problem.name} ({kind}), regret: median, quartiles", flush=True)
    told = "".join(f"{f'{share:.0%}':>23}" for share in TOLD)
    print(f"  {'':>11}{told} {'time':>5} {'p':>6} {'trials':>6} {'whole':>5} {'diverged':>8} {'lost':>5} {'ask':>6}")
    found = {side: search(problem, side, seeds) for side in sides}
    for side, outcome in found.items():
        quartiles = [np.percentile(outcome.at(share), (50, 25, 75)) for share in TOLD]
        cells = "".join(f"{f'{middle:.4f} {low:.3f}-{high:.3f}':>23}" for middle, low, high in quartiles)
        runs = outcome.runs
        asked = sum(run.decisions for run in runs) / sum(run.suggestions for run in runs)
        print(
            f"  {side:>11}{cells} {speed(outcome, found[PEER]):>5.2f} {p_value(outcome, found[PEER]):>6.3f} "
            f"{statistics.fmean(run.trials for run in runs):>6.0f} {statistics.fmean(run.whole for run in runs):>5.0f} "
            f"{sum(run.diverged for run in runs) / sum(run.trials for run in runs):>8.0%} "
            f"{sum(run.lost for run in runs) / sum(run.spent for run in runs):>5.0%} {1000 * asked:>3.0f} ms",
            flush=True,
        )
    print(flush=True)
    return found


def speed(outcome: Outcome, peer: Outcome) -> float:
    """The time to the peer's final median, as a share of the peer's own; infinite if it is never reached."""
    target = float(peer.median[-1])
    return outcome.reaches(target) / peer.reaches(target)


def p_value(outcome: Outcome, peer: Outcome) -> float:
    """Of no difference in the final regret, paired by seed: Wilcoxon's signed-rank test, two-sided."""
    ours, theirs = outcome.at(1.0), peer.at(1.0)
    return float(wilcoxon(ours, theirs).pvalue) if (ours != theirs).any() else 1.0


def summarize(found: dict[str, dict[str, Outcome]], sides: list[str], problems: list[Problem]) -> None:
    print(
        f"time to the final median of {PEER}, as a share of its own: median over problems (inf: not within the budget)"
    )
    for side in sides:
        told = []
        for kind, of_kind in (("tuned on", False), ("held out", True), ("all", None)):
            chosen = [p.name for p in problems if of_kind is None or p.held_out is of_kind]
            if chosen:
                speeds = [speed(found[name][side], found[name][PEER]) for name in chosen]
                better = sum(s < 1 for s in speeds)
                told.append(f"{kind} {statistics.median(speeds):.2f} (sooner on {better} of {len(chosen)})")
        print(f"  {side:>11}: {', '.join(told)}")


def write(path: Path, found: dict[str, dict[str, Outcome]]) -> None:
    """A row per problem, side and seed: the regret at twenty moments, and what was spent."""
    every = POINTS // 20
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        shares = [f"{(point + 1) / POINTS:g}" for point in range(every - 1, POINTS, every)]
        table.writerow(["problem", "side", "seed", "trials", "whole", "diverged", "lost", *shares])
        for problem, outcomes in found.items():
            for side, outcome in outcomes.items():
                for seed, (run, regrets) in enumerate(zip(outcome.runs, outcome.regrets, strict=True)):
                    numbers = [run.trials, run.whole, run.diverged, f"{run.lost / run.spent:.3f}"]
                    table.writerow([problem, side, seed, *numbers, *(f"{r:.4g}" for r in regrets[every - 1 :: every])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--problems", default="", help="names, separated by commas; all by default")
    parser.add_argument("--sides", default=",".join(SIDES), help=f"and of what was tried: {', '.join(VARIANTS)}")
    parser.add_argument("--csv", type=Path, help="write every seed's regret curve there")
    parser.add_argument("--quick", action="store_true", help="two problems, two seeds: does it run")
    given = parser.parse_args()
    problems = all_problems()
    names = given.problems.split(",") if given.problems else [problem.name for problem in problems]
    if given.quick:
        names, given.seeds = ["hartmann3-terrible", "cliff"], 2
    if unknown := set(names) - {problem.name for problem in problems}:
        sys.exit(f"--problems must be among {', '.join(p.name for p in problems)}, but got {', '.join(unknown)}.")
    sides = [PEER, *(side for side in given.sides.split(",") if side != PEER)]
    if unknown := set(sides) - {*SIDES, *VARIANTS}:
        sys.exit(f"--sides must be among {', '.join([*SIDES, *VARIANTS])}, but got {', '.join(unknown)}.")
    problems = [problem for problem in problems if problem.name in names]
    print(f"{given.seeds} seeds, {GANGS} gangs, time for {TRAININGS} full trainings in each")
    found = {problem.name: compare(problem, sides, given.seeds) for problem in problems}
    summarize(found, sides, problems)
    if given.csv:
        write(given.csv, found)


if __name__ == "__main__":
    main()
