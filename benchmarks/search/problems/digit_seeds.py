"""A table of a small real task under many seeds, from which searches and confirming runs are drawn.

    python benchmarks/search/problems/digit_seeds.py       record the table again, some minutes on one core

The task is that of benchmarks/search/problems/digits.py, with a typical search space and number of epochs.
"""

import csv
import math
import sys
from pathlib import Path

import numpy as np
import optuna
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # a clone need not be installed

from benchmarks.search.problems.digits import DigitsConfig, train
from searchlight.search.space.search_space import resolve_space
from searchlight.trainables.context import Context

CONFIGS = 60
SEEDS = 20
EPOCHS = 8
SPACE = {"lr": "3e-3..0.3:log", "momentum": "0..0.98", "hidden": "16..256:log"}
TABLE = Path(__file__).resolve().parents[2] / "results" / "digit_seeds.csv"


def load_values() -> NDArray[np.float64]:
    """Return the best val/loss of each training, (configs, seeds). The first config is the defaults."""
    with open(TABLE, newline="") as file:
        _, *rows = csv.reader(file)
    return np.array([[float(value) for value in row[len(SPACE) :]] for row in rows])


def record() -> None:
    """Train the defaults and configs that cover the space evenly, each under all seeds, and write the table."""
    torch.set_num_threads(1)
    fixed = {"precision": "fp32", "loss_weight": 1.0, "epochs": EPOCHS}
    space = resolve_space(DigitsConfig, fixed, SPACE)
    study = optuna.create_study(
        sampler=optuna.samplers.QMCSampler(seed=0, scramble=True, warn_independent_sampling=False)
    )
    context = Context()
    with open(TABLE, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*SPACE, *(f"seed {seed}" for seed in range(SEEDS))])
        for row in range(CONFIGS):
            chosen = space.suggest(study.ask()) if row else {name: space.get_defaults()[name] for name in SPACE}
            values = []
            for seed in range(SEEDS):
                config = space.build_config(chosen).model_copy(update={"seed": seed})
                assert isinstance(config, DigitsConfig)
                curve, _ = train(config, context)
                values.append(math.inf if math.isnan(curve[-1]) else min(curve))
            table.writerow([*(f"{chosen[name]:.4g}" for name in SPACE), *(f"{value:.5g}" for value in values)])
            print(f"\r{row + 1} of {CONFIGS}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    record()
