"""The trial that all sides of a benchmark run: a few epochs of four updates of a linear model."""

import math
import os
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from searchlight.trainables.task import Task, TaskConfig, searchable
from searchlight.trainables.update import UpdateReport

EPOCHS = int(os.environ.get("BENCH_EPOCHS", "3"))


def note(event: str, rank: int = 0) -> None:
    """Append the event and its time to the file BENCH_LOG, if that is set."""
    if rank == 0 and "BENCH_LOG" in os.environ:
        with open(os.environ["BENCH_LOG"], "a") as log:
            log.write(f"{event} {time.time()}\n")


def build_data() -> tuple[Tensor, Tensor]:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    return x, x.sum(1, keepdim=True)


def train_plainly(
    lr: float,
    report: Callable[[float], object],
    rank: int = 0,
    ranks: int = 1,
    prepare: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> float:
    """Train as a user of plain PyTorch does. Call `report` with the loss of each epoch, and return the last one."""
    model = prepare(nn.Linear(4, 1))
    x, y = (part.to(next(model.parameters()).device) for part in build_data())
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    loss = math.nan
    for epoch in range(EPOCHS):
        for step, part in enumerate(torch.randperm(len(x))[rank::ranks].split(16)):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[part]), y[part]).backward()
            optimizer.step()
            if epoch == step == 0:
                note("first-update", rank)
        with torch.no_grad():
            loss = nn.functional.mse_loss(model(x), y).item()
        note("end" if epoch + 1 == EPOCHS else "report", rank)
        report(loss)
    return loss


class TinyConfig(TaskConfig):
    lr: float = searchable(1e-2, low=1e-4, high=1e-1, log=True)
    epochs: int = EPOCHS


class Tiny(Task[TinyConfig]):
    objective, mode = "val/loss", "min"

    def build(self) -> None:
        self.x, self.y = (part.to(self.context.device) for part in build_data())
        self.updates_done = self.evaluated = 0
        self.modules = {"model": nn.Linear(4, 1)}
        self.optimizers = {"model": torch.optim.SGD(self.modules["model"].parameters(), lr=self.config.lr)}

    def train_batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        return self.context.shard((self.x, self.y), batch_size=16)

    def loss(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, float]:
        x, y = batch
        return nn.functional.mse_loss(self.modules["model"](x), y), len(x)

    def after_update(self, report: UpdateReport) -> None:
        self.updates_done += 1
        if self.updates_done == 1:
            note("first-update", self.context.rank)

    def evaluate(self) -> dict[str, float]:
        loss = nn.functional.mse_loss(self.modules["model"](self.x), self.y).item()
        self.evaluated += 1
        note("end" if self.evaluated == self.config.epochs else "report", self.context.rank)
        return {"val/loss": loss}
