"""The trial that all sides of time_to_target.py run: a small convolutional network on scikit-learn's digits."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from searchlight.trainables.task import Task, TaskConfig, searchable

EPOCHS, BATCH, TRAINED = 27, 32, 900
SPACE = {  # each parameter with its bounds; all but dropout are searched by their logarithm
    "lr": (1e-4, 1e-1),
    "weight_decay": (1e-4, 1.0),
    "width": (4, 32),
    "dropout": (0.0, 0.6),
    "noise": (0.01, 1.0),
}
DEFAULTS = {"lr": 1e-3, "weight_decay": 1e-2, "width": 8, "dropout": 0.1, "noise": 0.1}


def note_report(config: Mapping[str, Any], seed: int, epoch: int, loss: float) -> None:
    """Append a report and its time to the file BENCH_LOG, if that is set."""
    if "BENCH_LOG" in os.environ:
        chosen = {name: config[name] for name in SPACE}
        line = json.dumps({"at": time.time(), "config": chosen, "seed": seed, "epoch": epoch, "loss": loss})
        with open(os.environ["BENCH_LOG"], "a") as log:
            log.write(line + "\n")


def load() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)


def build_network(width: int, dropout: float) -> nn.Module:
    """Build a network for images of shape (batch, 1, 8, 8), with a logit for each of ten digits."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(32 * width, 10),
    )


def train_plainly(config: Mapping[str, Any], seed: int, report: Callable[[int, float], None]) -> None:
    """Train as a user of plain PyTorch does, and call `report` with each epoch and its validation loss."""
    torch.manual_seed(seed)
    x, y = load()
    model = build_network(int(config["width"]), config["dropout"])
    optimizer = torch.optim.AdamW(model.parameters(), config["lr"], weight_decay=config["weight_decay"])
    for epoch in range(1, EPOCHS + 1):
        model.train()
        for part in torch.randperm(TRAINED).split(BATCH):
            optimizer.zero_grad()
            noisy = x[part] + config["noise"] * torch.randn_like(x[part])
            nn.functional.cross_entropy(model(noisy), y[part]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            loss = nn.functional.cross_entropy(model(x[TRAINED:]), y[TRAINED:]).item()
        note_report(config, seed, epoch, loss)
        report(epoch, loss)


class TargetConfig(TaskConfig):
    lr: float = searchable(DEFAULTS["lr"], low=SPACE["lr"][0], high=SPACE["lr"][1], log=True)
    weight_decay: float = searchable(
        DEFAULTS["weight_decay"], low=SPACE["weight_decay"][0], high=SPACE["weight_decay"][1], log=True
    )
    width: int = searchable(DEFAULTS["width"], low=SPACE["width"][0], high=SPACE["width"][1], log=True)
    dropout: float = searchable(DEFAULTS["dropout"], low=SPACE["dropout"][0], high=SPACE["dropout"][1])
    noise: float = searchable(DEFAULTS["noise"], low=SPACE["noise"][0], high=SPACE["noise"][1], log=True)
    epochs: int = EPOCHS
    max_grad_norm: float | None = None


class Target(Task[TargetConfig]):
    objective, mode = "val/loss", "min"

    def build(self) -> None:
        device = self.context.device
        self.x, self.y = self.context.cache(f"digits on {device}", lambda: [part.to(device) for part in load()])
        model = build_network(self.config.width, self.config.dropout)
        self.modules = {"model": model}
        self.optimizers = {
            "model": torch.optim.AdamW(model.parameters(), self.config.lr, weight_decay=self.config.weight_decay)
        }
        self.trained = 0

    def train_batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        self.trained = epoch + 1  # a trial that goes on from a checkpoint is built anew
        return self.context.shard((self.x[:TRAINED], self.y[:TRAINED]), batch_size=BATCH)

    def loss(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, float]:
        x, y = batch
        noisy = x + self.config.noise * torch.randn_like(x)
        return nn.functional.cross_entropy(self.modules["model"](noisy), y), len(x)

    def evaluate(self) -> dict[str, float]:
        loss = nn.functional.cross_entropy(self.modules["model"](self.x[TRAINED:]), self.y[TRAINED:]).item()
        note_report(self.config.model_dump(), self.config.seed, self.trained, loss)
        return {"val/loss": loss}
