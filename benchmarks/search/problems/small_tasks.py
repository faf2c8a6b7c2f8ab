"""Small real trainings of many kinds, below a second each: six models on the data sets and generators of scikit-learn.

Searches see the metrics on validation data. A checkpoint is judged on test data that no search sees.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor, nn

from benchmarks.search.problems.digits import load
from searchlight.trainables.task import Task, TaskConfig, searchable
from searchlight.trainables.update.lr_schedules import warmup_cosine

KEYS, ANSWERS = 5, 4  # of `recall`
Data = tuple[Tensor, Tensor]


class SmallConfig(TaskConfig):
    data: str = "digits"
    model: Literal["mlp", "linear", "features", "conv", "gru", "attention", "autoencoder"] = "mlp"
    optimizer: Literal["sgd", "adamw"] = "adamw"
    lr: float = searchable(3e-3, low=1e-4, high=0.1, log=True)
    momentum: float = searchable(0.9, low=0.0, high=0.98)
    weight_decay: float = searchable(1e-2, low=1e-5, high=1.0, log=True)
    dropout: float = searchable(0.0, low=0.0, high=0.6)
    smoothing: float = searchable(0.0, low=0.0, high=0.3)
    warmup: float = searchable(0.05, low=0.0, high=0.4)
    width: int = searchable(24, low=8, high=64, log=True)
    depth: int = searchable(1, low=1, high=5)
    gain: float = searchable(1.0, low=0.3, high=3.0, log=True)
    batch: int = searchable(100, choices=[25, 50, 100])
    epochs: int = 27


class Small(Task[SmallConfig]):
    """A task of one model with a cosine schedule. The loss is cross-entropy for classes, else mean squared error."""

    objective, mode = "val/loss", "min"

    def build(self) -> None:
        config = self.config
        load_data, self.trained, self.validated = DATA[config.data]
        self.x, self.y = self.context.cache(config.data, load_data)
        if config.model == "autoencoder":
            self.y = self.x
        self.classes = int(self.y.max()) + 1 if self.y.dtype == torch.int64 else 0
        model = build_model(config, self.x, self.classes or self.y[0].numel())
        for parameter in model.parameters():
            parameter.data *= config.gain
        optimizer: torch.optim.Optimizer
        if config.optimizer == "sgd":
            optimizer = torch.optim.SGD(
                model.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
            )
        else:
            optimizer = torch.optim.AdamW(
                model.parameters(), lr=config.lr, betas=(config.momentum, 0.99), weight_decay=config.weight_decay
            )
        updates = config.epochs * math.ceil(self.trained / config.batch)
        self.modules, self.optimizers = {"model": model}, {"model": optimizer}
        factor = partial(warmup_cosine, updates=updates, warmup=config.warmup)
        self.schedulers = [torch.optim.lr_scheduler.LambdaLR(optimizer, factor)]

    def train_batches(self, epoch: int) -> Iterator[Data]:
        return self.context.shard((self.x[: self.trained], self.y[: self.trained]), batch_size=self.config.batch)

    def loss(self, batch: Data) -> tuple[Tensor, float]:
        x, y = batch
        output = self.modules["model"](x)
        if not self.classes:
            return nn.functional.mse_loss(output, y.view(output.shape)), len(x)
        return nn.functional.cross_entropy(output, y, label_smoothing=self.config.smoothing), len(x)

    def evaluate(self) -> dict[str, float]:
        """Return the loss without smoothing and the share of errors, since objectives must not depend on smoothing."""
        output, y = self.modules["model"](self.x[self.trained :]).float(), self.y[self.trained :]
        if self.classes:
            found = {"loss": nn.functional.cross_entropy(output, y, reduction="none")}
            found["error"] = (output.argmax(1) != y).float()
        else:
            found = {"loss": (output - y.view(output.shape)).square().flatten(1).mean(1)}
        seen = self.validated - self.trained
        parts = {"val": slice(seen), "test": slice(seen, None)}
        return {f"{part}/{name}": each[of].mean().item() for part, of in parts.items() for name, each in found.items()}


class Attention(nn.Module):
    """One attention head over a sequence, with the output at the last position."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(inputs, width) for _ in range(3))
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.query(x[:, -1:]) @ self.key(x).transpose(1, 2)).softmax(-1)
        answer: Tensor = self.head((weights @ self.value(x)).squeeze(1))
        return answer


class Recurrent(nn.Module):
    """A GRU with the output from its last state."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(inputs, width, batch_first=True), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.cell(x)[0][:, -1])
        return answer


class RandomFeatures(nn.Module):
    """A linear model on the cosines of random projections, of which only the scale is a parameter."""

    def __init__(self, inputs: int, width: int, outputs: int, scale: float) -> None:
        super().__init__()
        self.register_buffer("projection", scale * torch.randn(inputs, 4 * width))
        self.register_buffer("phase", 2 * math.pi * torch.rand(4 * width))
        self.head = nn.Linear(4 * width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(torch.cos(x @ self.projection + self.phase))
        return answer


def build_model(config: SmallConfig, x: Tensor, outputs: int) -> nn.Module:
    """Return the model of `config` for inputs like `x`."""
    inputs, width = x.shape[-1], config.width
    if config.model == "linear":
        return nn.Linear(inputs, outputs)
    if config.model == "features":
        return RandomFeatures(inputs, width, outputs, config.gain)
    if config.model == "gru":
        return Recurrent(inputs, width, outputs)
    if config.model == "attention":
        return Attention(inputs, width, outputs)
    if config.model == "conv":
        layers = (nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, width, 3, stride=2), nn.ReLU(), nn.Flatten())
        return nn.Sequential(*layers, nn.Dropout(config.dropout), nn.Linear(9 * width, outputs))
    if config.model == "autoencoder":
        encoder = nn.Dropout(config.dropout), nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, width // 2)
        return nn.Sequential(*encoder, nn.Linear(width // 2, 64), nn.ReLU(), nn.Linear(64, outputs))
    hidden: list[nn.Module] = []
    for before in (inputs, *[width] * (config.depth - 1)):
        hidden += [nn.Linear(before, width), nn.ReLU(), nn.Dropout(config.dropout)]
    return nn.Sequential(*hidden, nn.Linear(width, outputs))


def _load_noisy_digits() -> Data:
    """Return the digits. 30 % of the first 500 labels are random."""
    x, y = load()
    draw = np.random.default_rng(0)
    wrong = torch.tensor(draw.random(len(y)) < 0.3) & (torch.arange(len(y)) < 500)
    return x, torch.where(wrong, torch.tensor(draw.integers(10, size=len(y))), y)


def _standardize(x: np.ndarray, y: np.ndarray) -> Data:
    """Return data in a random order, with inputs and numbers to predict scaled to a deviation of 1."""
    order = np.random.default_rng(0).permutation(len(x))
    inputs = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)[order]
    if np.issubdtype(y.dtype, np.integer):
        return inputs, torch.tensor(y[order], dtype=torch.int64)
    return inputs, torch.tensor((y - y.mean()) / y.std(), dtype=torch.float32)[order]


def _generate_waves() -> Data:
    """Return sequences of 12 noisy samples of sines. The class is one of four frequencies."""
    draw = np.random.default_rng(0)
    y = draw.integers(4, size=1500)
    turns = np.arange(12) * (0.6 + 0.25 * y[:, None]) + 2 * math.pi * draw.random((1500, 1))
    x = np.sin(turns) + 0.4 * draw.standard_normal((1500, 12))
    return torch.tensor(x[..., None], dtype=torch.float32), torch.tensor(y)


def _generate_recall() -> Data:
    """Return sequences of pairs of key and answer with a final key. The class is the answer to that key."""
    draw = np.random.default_rng(0)
    x, y = np.zeros((2000, KEYS + 1, KEYS + ANSWERS)), np.zeros(2000, int)
    for row in range(2000):
        keys, answers, asked = draw.permutation(KEYS), draw.integers(ANSWERS, size=KEYS), draw.integers(KEYS)
        x[row, range(KEYS), keys] = x[row, range(KEYS), KEYS + answers] = 1
        x[row, KEYS, keys[asked]], y[row] = 1, answers[asked]
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


# The loader, and the last rows of training and validation. The other rows are the test.
DATA: dict[str, tuple[Callable[[], Data], int, int]] = {
    "digits": (load, 500, 800),
    "noisy-digits": (_load_noisy_digits, 500, 800),
    "cancer": (lambda: _standardize(*datasets.load_breast_cancer(return_X_y=True)), 250, 400),
    "diabetes": (lambda: _standardize(*datasets.load_diabetes(return_X_y=True)), 200, 320),
    "friedman": (lambda: _standardize(*datasets.make_friedman1(1500, noise=1.0, random_state=0)), 300, 500),
    "moons": (lambda: _standardize(*datasets.make_moons(1500, noise=0.3, random_state=0)), 300, 500),
    "waves": (_generate_waves, 300, 600),
    "recall": (_generate_recall, 300, 600),
}
