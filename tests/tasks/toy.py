"""A task of a user: a tiny regression, with every way in which a trial can end."""

import time
from pathlib import Path

import numpy as np
import torch

from searchlight import Task, TaskConfig, searchable


class ToyConfig(TaskConfig):
    lr: float = searchable(1e-2, low=1e-4, high=1e-1, log=True)
    how: str = "fine"
    rank_that_fails: int = 0
    pause_s: float = 0.0
    marker: str = ""


class Toy(Task[ToyConfig]):
    objective, mode = "val/loss", "min"

    def build(self):
        from beside import data  # imported late, as users do

        self.x, self.y = (part.to(self.context.device) for part in data())
        self.dataset("plane", [self.x[:64], self.y[:64]], source="beside.py")
        self.dataset("plane", [self.x[64:], self.y[64:]], source="beside.py", use="evaluation")
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.modules = {"model": model}
        self.optimizers = {"model": torch.optim.AdamW(model.parameters(), lr=self.config.lr)}

    def train_batches(self, epoch):
        if self.config.how == "stuck":
            Path(self.config.marker).touch()
            time.sleep(1000)
        if self.config.how == "held" and epoch > 1:
            while not Path(self.config.marker).exists():
                time.sleep(0.05)
        for batch in self.context.shard((self.x[:64], self.y[:64]), batch_size=16):
            time.sleep(self.config.pause_s)
            yield batch

    def loss(self, batch):
        x, y = batch
        if self.config.how == "raise" and self.context.rank == self.config.rank_that_fails:
            raise RuntimeError("the loss is broken")
        return torch.nn.functional.mse_loss(self.modules["model"](x), y), len(x)

    def evaluate(self):
        if self.config.how == "nan":
            return {"val/loss": float("nan")}
        mine = slice(64 + self.context.rank, None, self.context.world_size)
        x, y = self.x[mine], self.y[mine]
        return {"val/loss": (torch.nn.functional.mse_loss(self.modules["model"](x), y).item(), len(x))}

    def pictures(self):
        steps = self.updaters["train"].steps
        return {"steps": np.full((3, 4, 3), steps, dtype=np.uint8)}
