"""A small real task in fp32, bf16 and fp16, and the table of its runs that simulated searches use.

    python benchmarks/search/problems/digits.py            record the table again, a quarter of an hour on one core

The task is scikit-learn's handwritten digits with a network of two layers. A high learning rate overflows fp16 first.
"""

import csv
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import optuna
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # a clone need not be installed

from searchlight.search.space.search_space import resolve_space
from searchlight.trainables.context import Context
from searchlight.trainables.precision import Diverged
from searchlight.trainables.task import Task, TaskConfig, searchable
from searchlight.trainables.training.trainer import TrialTrainer

EPOCHS = 27
ROWS = 900
TABLE = Path(__file__).resolve().parents[2] / "results" / "digits_runs.csv"


class DigitsConfig(TaskConfig):
    lr: float = searchable(0.03, low=1e-3, high=10.0, log=True)
    momentum: float = searchable(0.9, low=0.0, high=0.98)
    loss_weight: float = searchable(1.0, low=0.1, high=30.0, log=True)
    hidden: int = searchable(64, low=16, high=256, log=True)
    epochs: int = EPOCHS
    max_grad_norm: float | None = None


class Digits(Task[DigitsConfig]):
    objective, mode = "val/loss", "min"

    def build(self) -> None:
        self.x, self.y = self.context.cache("digits", load)
        hidden = self.config.hidden
        layers = (nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10))
        self.modules = {"model": nn.Sequential(*layers)}
        self.optimizers = {
            "model": torch.optim.SGD(
                self.modules["model"].parameters(), lr=self.config.lr, momentum=self.config.momentum
            )
        }

    def train_batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        return self.context.shard((self.x[:1200], self.y[:1200]), batch_size=64)

    def loss(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, float]:
        x, y = batch
        loss = nn.functional.cross_entropy(self.modules["model"](x), y)
        return self.config.loss_weight * loss, len(x)

    def evaluate(self) -> dict[str, float]:
        """Return the unweighted loss, since an objective must not depend on a weight of the loss."""
        return {"val/loss": nn.functional.cross_entropy(self.modules["model"](self.x[1200:]), self.y[1200:]).item()}


def load() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)


def train(config: DigitsConfig, context: Context) -> tuple[list[float], float]:
    """Train a config. Return the objective after each epoch (NaN from divergence on) and the seconds of an epoch."""
    values: list[float] = []
    start = time.perf_counter()
    training = TrialTrainer(Digits(config, context.for_next_trial()))
    try:
        for _ in range(config.epochs):
            report = training.run_epoch()
            assert report is not None
            values.append(report["val/loss"])
    except Diverged:
        pass
    seconds = (time.perf_counter() - start) / (len(values) + (len(values) < config.epochs))
    return values + [math.nan] * (config.epochs - len(values)), seconds


def record(rows: int) -> None:
    """Train `rows` configs that cover the space evenly, and write the table."""
    torch.set_num_threads(1)
    space = resolve_space(DigitsConfig, {}, {})
    context = Context()
    sampler = optuna.samplers.QMCSampler(seed=0, scramble=True, warn_independent_sampling=False)
    study = optuna.create_study(sampler=sampler)
    with open(TABLE, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*(p.name for p in space.parameters), "seconds", *range(1, EPOCHS + 1)])
        for row in range(rows):
            trial = study.ask()
            chosen = space.suggest(trial)
            # In turn, since a sequence that covers numbers evenly would draw choices at random.
            config = space.build_config({**chosen, "precision": ("fp32", "bf16", "fp16")[row % 3]})
            assert isinstance(config, DigitsConfig)
            values, seconds = train(config, context)
            told = [f"{v:.4g}" if isinstance(v, float) else v for v in (getattr(config, n) for n in chosen)]
            table.writerow([*told, f"{seconds:.4f}", *(f"{value:.4g}" for value in values)])
            study.tell(trial, 0.0)
            print(f"\r{row + 1} of {rows}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    record(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)
