"""Problems whose trials are trained for real, of the kinds whose trainings are recorded as well; see recorded.py."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor, nn

from benchmarks.search.problems.problems import Curve, Problem, Values
from benchmarks.search.problems.recorded import RECORDINGS, build_replayed
from benchmarks.search.problems.recorded_configs import SmallConfig
from searchlight.trainables.precision import Diverged
from searchlight.trainables.task import Task
from searchlight.trainables.training.trainer import train
from searchlight.trainables.update.lr_schedules import warmup_cosine

Data = tuple[Tensor, Tensor]


class Small(Task[SmallConfig]):
    """A task of one model with a cosine schedule. The loss is cross-entropy for classes, else mean squared error.

    Searches see the metrics on validation data. A checkpoint is judged on test data that no search sees.
    """

    objective, mode = "val/loss", "min"

    def build(self) -> None:
        config = self.config
        load, self.trained, self.validated = DATA[config.data]
        self.x, self.y = load()
        if config.model == "autoencoder":
            self.y = self.x
        self.classes = int(self.y.max()) + 1 if self.y.dtype == torch.int64 else 0
        model = build_model(config, self.x.shape[1], self.classes or self.y[0].numel())
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


def build_model(config: SmallConfig, inputs: int, outputs: int) -> nn.Module:
    width = config.width
    if config.model == "linear":
        return nn.Linear(inputs, outputs)
    if config.model == "autoencoder":
        encoder = nn.Dropout(config.dropout), nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, width // 2)
        return nn.Sequential(*encoder, nn.Linear(width // 2, 64), nn.ReLU(), nn.Linear(64, outputs))
    hidden: list[nn.Module] = []
    for before in (inputs, *[width] * (config.depth - 1)):
        hidden += [nn.Linear(before, width), nn.ReLU(), nn.Dropout(config.dropout)]
    return nn.Sequential(*hidden, nn.Linear(width, outputs))


@cache
def load_digits() -> Data:
    digits = datasets.load_digits()
    return torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)


@cache
def load_noisy_digits() -> Data:
    """Return the digits. 30 % of the first 500 labels are random."""
    x, y = load_digits()
    draw = np.random.default_rng(0)
    wrong = torch.tensor(draw.random(len(y)) < 0.3) & (torch.arange(len(y)) < 500)
    return x, torch.where(wrong, torch.tensor(draw.integers(10, size=len(y))), y)


@cache
def load_standardized(name: str) -> Data:
    """Return data in a random order, with inputs and numbers to predict scaled to a deviation of 1."""
    x, y = {
        "cancer": partial(datasets.load_breast_cancer, return_X_y=True),
        "diabetes": partial(datasets.load_diabetes, return_X_y=True),
        "friedman": partial(datasets.make_friedman1, 1500, noise=1.0, random_state=0),
    }[name]()
    order = np.random.default_rng(0).permutation(len(x))
    inputs = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)[order]
    if np.issubdtype(y.dtype, np.integer):
        return inputs, torch.tensor(y[order], dtype=torch.int64)
    return inputs, torch.tensor((y - y.mean()) / y.std(), dtype=torch.float32)[order]


# The loader, and the last rows of training and validation. The other rows are the test.
DATA: dict[str, tuple[Callable[[], Data], int, int]] = {
    "digits": (load_digits, 500, 800),
    "noisy-digits": (load_noisy_digits, 500, 800),
    "cancer": (partial(load_standardized, "cancer"), 250, 400),
    "diabetes": (partial(load_standardized, "diabetes"), 200, 320),
    "friedman": (partial(load_standardized, "friedman"), 300, 500),
}
TRAINED = ("noisy", "linear", "friedman", "autoencoder", "diabetes")


def build_trained(name: str) -> Problem:
    """Return the problem `name`, one of TRAINED, whose trials are trained. Epochs take the recorded time."""
    recording, replayed = RECORDINGS[name], build_replayed(name)

    def curve(values: Values, draw: np.random.Generator) -> Curve:
        seconds = replayed.curve(values, draw).seconds
        config = replayed.space.build_config({**values, "seed": int(draw.integers(2**31))})
        assert isinstance(config, SmallConfig)
        reports: list[dict[str, float]] = []
        try:
            for report in train(Small(config)):
                reports.append(report)  # one by one, so that those before a divergence are kept
        except Diverged:
            reports += [{recording.metric: math.nan, recording.quality: math.nan}] * (config.epochs - len(reports))
        told, clean = ([report[metric] for report in reports] for metric in (recording.metric, recording.quality))
        return Curve(told, clean, seconds, math.inf if math.isnan(clean[-1]) else clean[-1])

    return replace(replayed, curve=curve)
