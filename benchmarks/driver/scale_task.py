"""The task of scale.py: 15 parameters, three of them categorical or conditional, and almost no training."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from searchlight.trainables.task import Task, TaskConfig, searchable


class ScaleConfig(TaskConfig):
    lr: float = searchable(1e-3, low=1e-5, high=1e-1, log=True)
    decay: float = searchable(1e-2, low=1e-4, high=1.0, log=True)
    momentum: float = searchable(0.9, low=0.5, high=0.99)
    dropout: float = searchable(0.1, low=0.0, high=0.5)
    smoothing: float = searchable(0.1, low=0.0, high=0.3)
    warmup: float = searchable(0.1, low=0.0, high=0.5)
    noise: float = searchable(0.1, low=1e-3, high=1.0, log=True)
    clip: float = searchable(1.0, low=0.1, high=10.0, log=True)
    reward_scale: float = searchable(1.0, low=0.1, high=10.0, log=True)
    entropy: float = searchable(1e-2, low=1e-4, high=1.0, log=True)
    depth: int = searchable(4, low=1, high=12)
    width: int = searchable(128, low=16, high=512, log=True)
    curriculum: str = searchable("linear", choices=["linear", "cosine", "none"])
    optimizer: str = searchable("adamw", choices=["adamw", "sgd"])
    beta: float = searchable(0.99, low=0.9, high=0.999, when={"optimizer": "adamw"})


def compute_loss(config: ScaleConfig, epoch: int) -> float:
    """Compute the loss after `epoch`. It falls to a level that depends on several parameters."""
    level = abs(math.log10(config.lr) + 3) + abs(math.log10(config.entropy) + 2) + config.dropout + config.smoothing
    return level + abs(config.depth - 6) / 6 + 0.1 * (config.curriculum == "none") + 1 / (1 + epoch)


class Scale(Task[ScaleConfig]):
    objective, mode = "val/loss", "min"

    def build(self) -> None:
        self.epoch = 0
        self.modules = {"model": torch.nn.Linear(1, 1)}
        self.optimizers = {"model": torch.optim.SGD(self.modules["model"].parameters(), lr=self.config.lr)}

    def train_batches(self, epoch: int) -> Iterator[Tensor]:
        self.epoch = epoch
        yield torch.ones(1, 1)

    def loss(self, batch: Tensor) -> tuple[Tensor, float]:
        return self.modules["model"](batch).square().mean(), len(batch)

    def evaluate(self) -> dict[str, float]:
        return {"val/loss": compute_loss(self.config, self.epoch)}
