"""Measure which families of generated puzzles the ARC agent solves, before and after training with the defaults.

python benchmarks/arc_families.py [--data generated] [--epochs 27] [--seeds 3] [--processes 2]
"""

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from benchmarks.task_runs import in_processes
from models.arc.generators.families import EASY
from trainables.arc import ArcTask
from trainables.arc.config import ArcConfig
from trainables.training.trainer import TrialTrainer

SOLVED = 0.9  # of a family's tests, within two attempts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="generated-easy")
    parser.add_argument("--epochs", type=int, default=27)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE of the task's config")
    arguments = parser.parse_args()
    fixed = dict(part.split("=", 1) for part in arguments.set) | {"data": arguments.data, "epochs": arguments.epochs}
    configs = [{**fixed, "seed": seed} for seed in range(arguments.seeds)]
    runs = in_processes(solve, configs, arguments.processes)
    print(f"{arguments.data}, {arguments.epochs} epochs, {arguments.seeds} seeds: share of tests met in two attempts")
    print(f"{'':14}{'untrained':>10}{'trained':>10}")
    for family in runs[0][0]:
        before, after = (fmean(run[when][family] for run in runs) for when in (0, 1))
        print(f"{family:14}{before:10.2f}{after:10.2f}{'  easy' if family in EASY else ''}")
    for names, told in ((tuple(runs[0][0]), "all"), (EASY, "easy")):
        there = [name for name in names if name in runs[0][0]]
        solved = sum(fmean(run[1][name] for run in runs) >= SOLVED for name in there)
        print(f"solved ({SOLVED:.0%} of a family's tests): {solved} of {len(there)} families, {told}")


def solve(config: Mapping[str, object]) -> tuple[dict[str, float], dict[str, float]]:
    """Train an agent. Return the shares of solved tests by family, before and after training."""
    task = ArcTask(ArcConfig.model_validate(config))
    training = TrialTrainer(task)
    training.evaluate()
    before = by_family(task)
    while training.epoch < task.config.epochs:
        training.run_epoch()
    return before, by_family(task)


def by_family(task: ArcTask) -> dict[str, float]:
    """Return the share of tests that the last evaluation solved, by family."""
    hits: dict[str, list[bool]] = defaultdict(list)
    attempts = iter(task.attempts)
    for puzzle in task.puzzles:
        hits[puzzle.id.split("-")[0]] += [_met(target, next(attempts)) for _, target in puzzle.tests]
    return {family: fmean(met) for family, met in sorted(hits.items())}


def _met(target: np.ndarray, attempts: Sequence[np.ndarray]) -> bool:
    return any(np.array_equal(attempt, target) for attempt in attempts)


if __name__ == "__main__":
    main()
