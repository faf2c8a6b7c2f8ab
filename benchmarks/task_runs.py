"""Trainings of a task in parallel with one thread each, shared by the benchmarks of tasks."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing import get_context
from typing import Any, Literal, TypeVar

import torch

from searchlight.trainables.task import Task
from searchlight.trainables.training.trainer import train

Report = dict[str, float]
Which = Literal["best", "last"]
Run = tuple[type[Task[Any]], Mapping[str, Any], Which]
Item = TypeVar("Item")
Result = TypeVar("Result")


def train_all(
    task: type[Task[Any]],
    configs: Sequence[Mapping[str, Any]],
    seeds: int,
    processes: int,
    *,
    first_seed: int = 0,
    which: Which = "best",
) -> list[list[Report]]:
    """Train each config under each seed and return a report of each training, by config.

    The report is that of the best objective, or the last one. "seconds" is the CPU time of the training, which does not
    depend on other load.
    """
    runs = [
        (task, {**config, "seed": seed}, which) for seed in range(first_seed, first_seed + seeds) for config in configs
    ]
    reports = in_processes(_train, runs, processes)
    return [reports[index :: len(configs)] for index in range(len(configs))]


def in_processes(function: Callable[[Item], Result], items: Iterable[Item], processes: int) -> list[Result]:
    """Apply `function` to each item, in `processes` processes of one thread each."""
    # A process that is forked after torch was used may wait forever for torch's threads.
    with get_context("spawn").Pool(processes, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return pool.map(function, items, chunksize=1)


def mean(reports: Sequence[Report], metric: str) -> float:
    return statistics.fmean(report[metric] for report in reports)


def deviation(reports: Sequence[Report], metric: str) -> float:
    """Compute the standard deviation between seeds, which is 0 for one seed."""
    return statistics.stdev(report[metric] for report in reports) if len(reports) > 1 else 0.0


def difference(reports: Sequence[Report], base: Sequence[Report], metric: str) -> str:
    """Format the mean difference from `base` under the same seeds, +- its standard error."""
    pairs = [report[metric] - other[metric] for report, other in zip(reports, base, strict=True)]
    error = statistics.stdev(pairs) / len(pairs) ** 0.5 if len(pairs) > 1 else 0.0
    return f"{statistics.fmean(pairs):+.4f} +- {error:.4f}"


def _train(run: Run) -> Report:
    task, config, which = run
    start = time.process_time()
    reports = list(train(task(task.config_class().model_validate(config))))
    choose = max if task.mode == "max" else min
    report = reports[-1] if which == "last" else choose(reports, key=lambda report: report[task.objective])
    return report | {"seconds": time.process_time() - start}
