"""Trainings of the ARC task, several at a time, one thread each: what the benchmarks of that task share."""

import statistics
import time
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from typing import Any

import torch

from trainables.arc import ArcTask
from trainables.arc_config import ArcConfig
from trainables.loop import train

Run = tuple[Mapping[str, Any], int]
Report = dict[str, float]


def train_all(
    configs: Sequence[Mapping[str, Any]], seeds: int, processes: int, first_seed: int = 0
) -> list[list[Report]]:
    """The best report of each config under each of so many seeds, by config: that is what a trial's value is."""
    runs = [(config, seed) for seed in range(first_seed, first_seed + seeds) for config in configs]
    # A process that was forked from one that has used torch may wait for ever for its threads.
    with get_context("spawn").Pool(processes, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        reports = pool.map(_train, runs, chunksize=1)
    return [reports[index :: len(configs)] for index in range(len(configs))]


def mean(reports: Sequence[Report], metric: str) -> float:
    return statistics.fmean(report[metric] for report in reports)


def error(values: Sequence[float]) -> float:
    """The standard error of the mean; 0 of one value."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def _train(run: Run) -> Report:
    config, seed = run
    start = time.perf_counter()
    reports = train(ArcTask(ArcConfig.model_validate({**config, "seed": seed})))
    best = max(reports, key=lambda report: report[ArcTask.objective])
    return best | {"seconds": time.perf_counter() - start}
