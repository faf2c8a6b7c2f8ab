"""The trial of soak.py: short epochs, with all that a checkpoint must restore: dropout, Adam's state and data order."""

import os
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from searchlight.trainables.task import Task, TaskConfig, searchable

WINDOW_S = 0.06  # a pause, so that a trial takes seconds and little CPU time


class SoakConfig(TaskConfig):
    lr: float = searchable(1e-2, low=1e-4, high=1e-1, log=True)
    dropout: float = searchable(0.1, low=0.0, high=0.5)


class Soak(Task[SoakConfig]):
    objective, mode = "val/loss", "min"

    def build(self) -> None:
        self.x = torch.randn(128, 4, generator=torch.Generator().manual_seed(0))
        self.y = self.x.sum(1, keepdim=True).sin()
        model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Dropout(self.config.dropout), nn.Linear(32, 1))
        self.modules = {"model": model}
        self.optimizers = {"model": torch.optim.AdamW(model.parameters(), lr=self.config.lr)}

    def train_batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.context.shard((self.x[:64], self.y[:64]), batch_size=8):
            if "SOAK_LOG" in os.environ:
                time.sleep(WINDOW_S)
            yield batch

    def loss(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, float]:
        x, y = batch
        return nn.functional.mse_loss(self.modules["model"](x), y), len(x)

    def evaluate(self) -> dict[str, float]:
        if "SOAK_LOG" in os.environ:
            with open(os.environ["SOAK_LOG"], "a") as log:
                log.write("epoch\n")
        return {"val/loss": nn.functional.mse_loss(self.modules["model"](self.x[64:]), self.y[64:]).item()}
