"""Whether the best trial of a search beats the task's defaults, or was lucky: both trained again, under new seeds.

A search chooses its best by the very score that it reports. Here neither config has been seen with these seeds. What
the search did not vary, as data and epochs, is the same on both sides.

+- is the standard deviation between seeds.

    python benchmarks/search_best.py [runs/NAME] [--seeds 5] [--processes 2]

Without a folder it takes the newest search in runs.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.task_runs import deviation, mean, train_all
from search.analysis.best_trials import find_best
from search.config.task_source import load_task_source
from search.study.record import load_search

FIRST_SEED = 1000  # no search draws from there on
TOLD = ("val/pass2_output", "val/cell_lift", "val/forgetting", "val/bpb", "val/nmse")  # if the task has it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    folder = arguments.folder or newest(Path("runs"))
    if folder is None:  # as in `make bench` on a fresh machine: the other benchmarks need no search
        print("there is no search in runs whose best could be trained again: make search makes one")
        return
    searched = load_search(folder)
    best = find_best(searched.trials, searched.objective)
    if best is None:
        sys.exit(f"{folder} must have a trial that was completed or pruned, but has none.")
    task = load_task_source(searched.about["config"]["task"]).task_class
    if task is None:
        sys.exit(f"{folder} must be a search over a task, but is one over a function.")
    print(f"{searched.name}: {len(searched.trials)} trials, the best is {best.trial_id} with {best.value:.4f}")
    (params,) = (trial.params for trial in searched.trials if trial.number == best.trial_id)
    sides = {"defaults": without(best.config, params), "best": best.config}
    results = train_all(task, list(sides.values()), arguments.seeds, arguments.processes, first_seed=FIRST_SEED)
    objectives = [objective.metric for objective in searched.objectives]
    metrics = objectives + [metric for metric in TOLD if metric in results[0][0] and metric not in objectives]
    for name, reports in zip(sides, results, strict=True):
        row = [f"  {metric} {mean(reports, metric):.4f} +- {deviation(reports, metric):.4f}" for metric in metrics]
        print(f"{name:10}" + "".join(row))


def newest(storage: Path) -> Path | None:
    """The folder of the search that began last."""
    begun = {path.stat().st_mtime: path.parent for path in storage.glob("*/search.yaml")}
    return begun[max(begun)] if begun else None


def without(config: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """`config` less what is named; "part.name" is a parameter within a part."""
    left = dict(config)
    for name in names:
        part, _, rest = name.partition(".")
        if rest:
            left[part] = without(left[part], [rest])
        else:
            del left[part]
    return left


if __name__ == "__main__":
    main()
