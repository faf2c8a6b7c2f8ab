"""Whether the best trial of a search beats the task's defaults, or was lucky: both trained again, under new seeds.

A search chooses its best by the very score that it reports. Here neither config has been seen with these seeds. What
the search did not vary, as puzzles and epochs, is the same on both sides.

+- is the standard deviation between seeds.

    python benchmarks/arc_best.py runs/NAME [--seeds 5] [--processes 2]
"""

import argparse
import sys
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.arc_runs import train_all
from search.results import find_best
from search.study import read

FIRST_SEED = 1000  # no search draws from there on
METRICS = ("val/score", "val/pass2_output", "val/cell_lift")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    searched = read(arguments.folder)
    best = find_best(searched.trials, searched.objectives[0].mode)
    if best is None:
        sys.exit(f"{arguments.folder} must have a trial that was completed or pruned, but has none.")
    print(f"{searched.name}: {len(searched.trials)} trials, the best is {best.trial_id} with {best.value:.4f}")
    (params,) = (trial.params for trial in searched.trials if trial.number == best.trial_id)
    varied = {name.partition(".")[0] for name in params}
    defaults = {name: value for name, value in best.config.items() if name not in varied}
    sides = {"defaults": defaults, "best": best.config}
    results = train_all(list(sides.values()), arguments.seeds, arguments.processes, first_seed=FIRST_SEED)
    for name, reports in zip(sides, results, strict=True):
        columns = [(metric, [report[metric] for report in reports]) for metric in METRICS]
        print(f"{name:10}" + "".join(f"  {metric} {fmean(them):.4f} +- {stdev(them):.4f}" for metric, them in columns))


if __name__ == "__main__":
    main()
