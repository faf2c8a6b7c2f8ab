"""Trainings of a task in parallel with one thread each, shared by the benchmarks of tasks."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing import get_context
from typing import Any, TypeVar

import torch

from searchlight.trainables.task import Task
from searchlight.trainables.training.trainer import train

Report = dict[str, float]
Run = tuple[type[Task[Any]], Mapping[str, Any]]
Item = TypeVar("Item")
Result = TypeVar("Result")


def train_all(
    task: type[Task[Any]], configs: Sequence[Mapping[str, Any]], seeds: int, processes: int, first_seed: int = 0
) -> list[list[Report]]:
    """Train each config under each seed and return the last report of each training, by config.

    "seconds" is the CPU time of the training, which does not depend on other load.
    """
    runs = [(task, {**config, "seed": first_seed + seed}) for seed in range(seeds) for config in configs]
    reports = in_processes(_train, runs, processes)
    return [reports[index :: len(configs)] for index in range(len(configs))]


def in_processes(function: Callable[[Item], Result], items: Iterable[Item], processes: int) -> list[Result]:
    """Apply `function` to each item, in `processes` processes of one thread each."""
    # A process that is forked after torch was used may wait forever for torch's threads.
    with get_context("spawn").Pool(processes, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return pool.map(function, items, chunksize=1)


def compute_mean(reports: Sequence[Report], metric: str) -> float:
    return statistics.fmean(report[metric] for report in reports)


def compute_deviation(reports: Sequence[Report], metric: str) -> float:
    """Compute the standard deviation between seeds, which is 0 for one seed."""
    return statistics.stdev(report[metric] for report in reports) if len(reports) > 1 else 0.0


def _train(run: Run) -> Report:
    task, config = run
    start = time.process_time()
    report = list(train(task(task.config_class().model_validate(config))))[-1]
    return report | {"seconds": time.process_time() - start}
