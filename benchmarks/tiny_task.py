"""The trial that both sides of a benchmark run: three epochs of four updates of a linear model."""

from collections.abc import Iterator

import torch
from torch import Tensor

from trainables.task import Task, TaskConfig, searchable

EPOCHS = 3


def data() -> tuple[Tensor, Tensor]:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    return x, x.sum(1, keepdim=True)


class TinyConfig(TaskConfig):
    lr: float = searchable(1e-2, low=1e-4, high=1e-1, log=True)
    epochs: int = EPOCHS


class Tiny(Task[TinyConfig]):
    objective, mode = "val/loss", "min"

    def build(self) -> None:
        self.x, self.y = data()
        self.modules = {"model": torch.nn.Linear(4, 1)}
        self.optimizers = {"model": torch.optim.SGD(self.modules["model"].parameters(), lr=self.config.lr)}

    def train_batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        return self.context.shard((self.x, self.y), batch_size=16)

    def loss(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, float]:
        x, y = batch
        return torch.nn.functional.mse_loss(self.modules["model"](x), y), len(x)

    def evaluate(self) -> dict[str, float]:
        return {"val/loss": torch.nn.functional.mse_loss(self.modules["model"](self.x), self.y).item()}
