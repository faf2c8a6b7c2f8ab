"""Measure the spread of true values of ARC agent configs relative to the noise of one trial.

The script trains random configs of the default space under several seeds, with the settings of `make search`. The true
value of a config is the mean of its seeds. The error of one trial is the deviation between the seeds of a config,
pooled over configs. Configs that diverge have no value, as in a search, and are counted.

    python benchmarks/arc_spread.py [--configs 8] [--seeds 5] [--set NAME=VALUE]
"""

import argparse
import statistics
import time

import numpy as np
import optuna
import torch

from searchlight.search.config.search_space import resolve_space
from searchlight.trainables.arc import ArcTask
from searchlight.trainables.arc.config import ArcConfig
from searchlight.trainables.context import Context
from searchlight.trainables.precision import Diverged
from searchlight.trainables.training.trainer import train

SETTINGS = {"epochs": "3", "views": "1", "max_side": "10"}  # those of `make search`
SEARCHED = {"precision": "fp32,bf16"}  # a search on a CPU leaves fp16 out


class Learner(ArcTask):
    """A task that evaluates no baselines, since a search does so only once."""

    baselines = {}  # noqa: RUF012


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE of the task's config")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = resolve_space(ArcConfig, SETTINGS | dict(part.split("=", 1) for part in arguments.set), SEARCHED)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    points = [space.suggest(study.ask()) for _ in range(arguments.configs)]
    values: list[list[float]] = [[] for _ in points]
    context, seconds = Context(), []
    for seed in range(arguments.seeds):
        for point, found in zip(points, values, strict=True):
            start = time.process_time()
            config = ArcConfig.model_validate(space.build_config({**point, "seed": seed}))
            task = Learner(config, context.for_next_trial())
            try:
                found.append(max(report[task.objective] for report in train(task)))
            except Diverged:
                continue
            seconds.append(time.process_time() - start)
        if seed:
            show(points, values, seconds)


def show(points: list[dict[str, object]], values: list[list[float]], seconds: list[float]) -> None:
    """Print a row for each config and a summary of all."""
    print(f"{'agent_lr':>10}{'mean':>10}{'deviation':>12}{'seeds':>8}")
    for point, found in sorted(zip(points, values, strict=True), key=lambda row: float(str(row[0]["agent_lr"]))):
        spread = statistics.stdev(found) if len(found) > 1 else float("nan")
        mean = statistics.fmean(found) if found else float("nan")
        print(f"{point['agent_lr']:>10.2g}{mean:10.4f}{spread:12.4f}{len(found):8}")
    known = [found for found in values if len(found) > 1]
    between = statistics.stdev(statistics.fmean(found) for found in known)
    error = float(np.sqrt(np.mean([statistics.variance(found) for found in known])))
    print(f"true values: deviation {between:.4f}; error of one trial {error:.4f}; ratio {between / error:.1f}")
    print(f"one trial: {statistics.median(seconds):.1f} CPU-s (median)", flush=True)


if __name__ == "__main__":
    main()
