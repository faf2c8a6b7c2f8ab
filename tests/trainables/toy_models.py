"""Small things to train, for the tests of this folder."""

import copy
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from pydantic import Field
from torch import Tensor, nn

from searchlight.trainables.context import rng
from searchlight.trainables.task import Task, TaskConfig, searchable
from searchlight.trainables.training.trainer import TrialTrainer
from searchlight.trainables.update import Ema, Updater, UpdateReport, windows

PRECISIONS = ["fp32", "bf16", "fp16"]
every_precision = pytest.mark.parametrize("precision", PRECISIONS)
scaled_and_unscaled = pytest.mark.parametrize("precision", ["fp32", "fp16"])  # where no more than that can differ
# ||g - reference|| / ||reference|| of the gradient of one window.
TOLERANCE = {"fp32": 5e-6, "bf16": 2e-2, "fp16": 5e-3}
IGNORED = -100

# Everything that has state at once: dropout, batch norm, a schedule, averages, a moving loss scale, a ragged tail.
FULL = {"dropout": 0.3, "accumulation": 2, "ema_decay": 0.9, "epochs": 4, "loss_scale_growth": 3}

Tokens = tuple[Tensor, Tensor]


def slope(**options: Any) -> tuple[nn.Parameter, Updater]:
    """The model w * x from w = 0 under plain SGD of rate 1: a window moves w by minus the mean of its x."""
    weight = nn.Parameter(torch.zeros(1))
    return weight, Updater({"sgd": torch.optim.SGD([weight], lr=1.0)}, **options)


def slopes(names: str, precision: str = "fp32", **options: Any) -> tuple[dict[str, nn.Parameter], Updater]:
    """Weights of 0, each with an optimizer of its own, under one update."""
    weights = {name: nn.Parameter(torch.zeros(1)) for name in names}
    return weights, Updater({name: torch.optim.SGD([w], lr=1.0) for name, w in weights.items()}, precision, **options)


def complete_updater(model: nn.Module, precision: str = "fp32", **options: Any) -> Updater:
    """An update with moments, weight decay, a schedule and averages."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    ema = Ema(dict(model.named_parameters()), 0.9)
    return Updater({"adam": optimizer}, precision, schedulers=[schedule], ema=ema, modules={"net": model}, **options)


def snapshot(model: nn.Module, updater: Updater) -> list[Any]:
    return copy.deepcopy([dict(model.state_dict()), updater.state_dict()])


def slope_loss(weight: nn.Parameter) -> Callable[[Tensor], tuple[Tensor, int]]:
    def loss(x: Tensor) -> tuple[Tensor, int]:
        return (weight * x).mean(), x.numel()

    return loss


def epoch(weight: nn.Parameter, updater: Updater, batches: Any, size: int) -> list[UpdateReport]:
    return [updater.update(window, slope_loss(weight)) for window in windows(batches, size)]


def samples(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def classifier() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def tokens(sizes: Sequence[int], seed: int = 0, ignored: bool = True) -> list[Tokens]:
    """A micro-batch of inputs and labels per size; about a third of the labels are ignored."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for size in sizes:
        labels = torch.randint(3, (size,), generator=generator, device="cpu")
        if ignored:
            labels[torch.rand(size, generator=generator, device="cpu") < 0.3] = IGNORED
        inputs = torch.randn(size, 5, generator=generator, device="cpu")
        batches.append((inputs.to(torch.get_default_device()), labels.to(torch.get_default_device())))
    return batches


def token_loss(model: nn.Module) -> Callable[[Tokens], tuple[Tensor, Tensor]]:
    """The mean over the labels that count: NaN where none does."""

    def loss(batch: Tokens) -> tuple[Tensor, Tensor]:
        inputs, labels = batch
        return nn.functional.cross_entropy(model(inputs), labels, ignore_index=IGNORED), (labels != IGNORED).sum()

    return loss


def full_batch(model: nn.Module, batches: Sequence[Tokens]) -> tuple[float, list[Tensor]]:
    """Loss and gradients of one fp64 backward over all of `batches` together."""
    model = copy.deepcopy(model).double()
    inputs = torch.cat([batch[0] for batch in batches]).double()
    labels = torch.cat([batch[1] for batch in batches])
    loss, _ = token_loss(model)((inputs, labels))
    return loss.item(), list(torch.autograd.grad(loss, list(model.parameters())))


def recorded_gradients(optimizer: torch.optim.Optimizer) -> list[list[Tensor]]:
    """A list that grows by the gradients that each step of `optimizer` is given."""
    seen: list[list[Tensor]] = []

    def record(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        seen.append([p.grad.clone() for p in parameters if p.grad is not None])

    optimizer.register_step_pre_hook(record)
    return seen


def distance(got: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """||got - expected||, in fp64."""
    return sum((a.double() - b.double()).square().sum().item() for a, b in zip(got, expected, strict=True)) ** 0.5


def norm(tensors: Sequence[Tensor]) -> float:
    return distance(tensors, [torch.zeros_like(tensor) for tensor in tensors])


def identical(first: Any, second: Any) -> bool:
    """Whether two nested states are equal, tensors bit for bit and NaN equal to NaN."""
    if isinstance(first, Tensor) and first.layout != torch.strided:
        return second.layout == first.layout and identical(first.to_dense(), second.to_dense())
    if isinstance(first, Tensor):
        same_kind = isinstance(second, Tensor) and first.dtype == second.dtype and first.shape == second.shape
        # On a GPU, the counter of an optimizer's steps may be on either side.
        return same_kind and torch.equal(first.cpu().nan_to_num(nan=12345.0), second.cpu().nan_to_num(nan=12345.0))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(identical(value, second[key]) for key, value in first.items())
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(identical(a, b) for a, b in zip(first, second, strict=True))
    return bool(first == second or (first != first and second != second))


def scramble() -> None:
    """What may have happened in the process in the meantime."""
    random.seed(1234)
    np.random.seed(1234)
    torch.manual_seed(1234)


def state(training: TrialTrainer) -> dict[str, Any]:
    """All that a trial is at this moment."""
    task = training.task
    return copy.deepcopy(
        {
            "modules": {name: dict(module.state_dict()) for name, module in task.modules.items()},
            "updaters": {name: updater.state_dict() for name, updater in task.updaters.items()},
            "task": task.state_dict(),
            "buffers": [buffer for module in task.modules.values() for buffer in module.buffers()],
            "generators": rng.get_state(task.context.generator, task.context.device),
            "epoch": training.epoch,
            "windows": training.windows,
        }
    )


def timeless(report: dict[str, float]) -> dict[str, float]:
    """`report` without the clock, and what the machine says."""
    return {name: value for name, value in report.items() if not name.startswith(("time/", "sys/"))}


class RegressionConfig(TaskConfig):
    lr: float = searchable(1e-2, low=1e-4, high=1e-1, log=True)
    dropout: float = 0.0
    batch_size: int = 4
    size: int = 22
    width: int = 8
    epochs: int = Field(3, ge=1)
    fault: str = Field("", description="what goes wrong in this trial")


class Regression(Task[RegressionConfig]):
    """A small network on noisy sines, with everything that a checkpoint has to hold."""

    objective, mode = "val/loss", "min"

    def build(self) -> None:
        if self.config.fault:
            misbehave(self.config.fault)
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(self.config.size, 3, generator=generator, device="cpu")
        noise = torch.randn(self.config.size, generator=generator, device="cpu")
        self.inputs = inputs.to(self.context.device)
        self.targets = (inputs.sum(1).sin() + 0.1 * noise).to(self.context.device)
        model = nn.Sequential(
            nn.Linear(3, self.config.width),
            nn.BatchNorm1d(self.config.width),
            nn.Tanh(),
            nn.Dropout(self.config.dropout),
            nn.Linear(self.config.width, 1),
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.config.lr)
        self.modules = {"model": model}
        self.optimizers = {"adam": optimizer}
        self.schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.7)]
        self.seen = 0.0

    def train_batches(self, epoch: int) -> Iterator[Any]:
        yield from self.context.shard((self.inputs, self.targets), self.config.batch_size)

    def loss(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        inputs, targets = batch
        outputs = self.predict(inputs).float()
        if self.config.fault == "nan loss":
            outputs = outputs * float("nan")
        return nn.functional.mse_loss(outputs, targets), len(targets)

    def predict(self, inputs: Tensor) -> Tensor:
        return self.modules["model"](inputs).squeeze(1)

    def evaluate(self) -> dict[str, Any]:
        if self.config.fault == "raises in evaluate":
            raise KeyError("no such puzzle\nsecond line")
        outputs = self.predict(self.inputs)
        loss = nn.functional.mse_loss(outputs, self.targets).item()
        if self.config.fault.startswith("lost: ") and self.seen > self.config.size:  # in its second epoch
            loss = float(self.config.fault.removeprefix("lost: "))
        draw = random.random() + float(np.random.rand()) + torch.rand(1).item()
        return {"val/loss": loss, "val/draw": draw, "val/seen": self.seen}

    def after_update(self, report: Any) -> None:
        self.seen += report.weight

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class Collecting(Regression):
    """A loss with a collective of its own, as a contrastive loss over all ranks has."""

    def loss(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        loss, weight = super().loss(batch)
        weights: list[int] = [0] * dist.get_world_size()
        dist.all_gather_object(weights, weight)
        return loss, weight


def misbehave(fault: str) -> None:
    if fault == "raises in build":
        raise RuntimeError("the data is gone")
    if fault == "too large for torch":
        torch.empty(2**50)
    if fault == "too large for numpy":
        np.empty(2**50)


class Compiled(Regression):
    """Counts how often its model is compiled."""

    compilations = 0

    def build(self) -> None:
        super().build()
        self.predict = torch.compile(super().predict, backend=self._compile)

    @classmethod
    def _compile(cls, graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        cls.compilations += 1
        return graph.forward


class Endless(Regression):
    """A stream without an end; an epoch of it is ten samples."""

    epoch_samples = 10

    def train_batches(self, epoch: int) -> Iterator[Any]:
        self.handed_out = 0
        for index in itertools.count():
            chosen = torch.arange(4) + 4 * index
            self.handed_out += 1
            yield self.inputs[chosen % self.config.size], self.targets[chosen % self.config.size]


class Adversaries(Task[TaskConfig]):
    """A generator and a discriminator, each with its own update per window."""

    objective = "val/gap"

    def build(self) -> None:
        self.modules = {"generator": nn.Linear(2, 2), "discriminator": nn.Linear(2, 1)}
        self.optimizers = {
            "g": torch.optim.AdamW(self.modules["generator"].parameters(), lr=1e-2),
            "d": torch.optim.AdamW(self.modules["discriminator"].parameters(), lr=1e-2),
        }
        self.updates = {"generator": ["g"], "discriminator": ["d"]}
        self.trace: list[tuple[str, dict[str, bool]]] = []
        self.left_over: list[str] = []
        self.before = self.weights()

    def weights(self) -> dict[str, list[Tensor]]:
        return {
            key: [p.detach().to("cpu", copy=True) for p in module.parameters()] for key, module in self.modules.items()
        }

    def train_batches(self, epoch: int) -> Iterator[Tensor]:
        yield from self.context.shard(torch.randn(12, 2, generator=self.context.generator, device="cpu"), 4)

    def update(self, window: Sequence[Any]) -> None:
        self.updaters["generator"].update(window, self.generator_loss)
        self._note("generator")
        self.updaters["discriminator"].update(window, self.discriminator_loss)
        self._note("discriminator")

    def _note(self, name: str) -> None:
        after = self.weights()
        self.trace.append((name, {key: not identical(self.before[key], after[key]) for key in after}))
        self.before = after
        named = nn.ModuleDict(self.modules).named_parameters()
        self.left_over += [key for key, parameter in named if parameter.grad is not None]

    def loss(self, batch: Tensor) -> tuple[Tensor, int]:
        raise AssertionError("this task has a loss for each of its updates")

    def generator_loss(self, batch: Tensor) -> tuple[Tensor, int]:
        fooled = self.modules["discriminator"](self.modules["generator"](batch))
        return nn.functional.softplus(-fooled).mean(), len(batch)

    def discriminator_loss(self, batch: Tensor) -> tuple[Tensor, int]:
        real = self.modules["discriminator"](batch)
        fake = self.modules["discriminator"](self.modules["generator"](batch))  # not detached, as it happens
        return (nn.functional.softplus(-real) + nn.functional.softplus(fake)).mean(), len(batch)

    def evaluate(self) -> dict[str, float]:
        return {"val/gap": 0.5}


class Augmented(Regression):
    """Draws from every generator, for its batches and in its loss; begins an epoch from its own state; notes terms."""

    def build(self) -> None:
        super().build()
        self.drawn = 0.0

    def train_batches(self, epoch: int) -> Iterator[Any]:
        shift = 1e-3 * self.seen
        for inputs, targets in super().train_batches(epoch):
            offset = (
                random.random()
                + float(np.random.rand())
                + torch.rand((), generator=self.context.generator, device="cpu")
            )
            self.drawn += 1
            yield inputs + 0.1 * torch.randn_like(inputs) + 0.1 * offset + shift, targets

    def loss(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        factor = (
            random.random() + float(np.random.rand()) + torch.rand((), generator=self.context.generator, device="cpu")
        )
        loss, weight = super().loss((batch[0] + 0.1 * factor, batch[1]))
        self.log("input", batch[0].mean(), weight)
        self.log("micro_batches", 1.0)
        return loss, weight

    def evaluate(self) -> dict[str, Any]:
        draws = {} if self.context.world_size == 1 else {"val/draw": 0.0}  # each rank draws its own
        return {**super().evaluate(), "val/drawn": self.drawn, **draws}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.drawn = state["drawn"]
        torch.rand(3)  # nor does this change what is drawn afterwards


class Sharded(Regression):
    """Reports what does not differ between ranks."""

    def evaluate(self) -> dict[str, Any]:
        return {**super().evaluate(), "val/draw": 0.0}


class Cycled(Sharded):
    """Its learning rate goes up and down once in the whole trial."""

    def build(self) -> None:
        super().build()
        updates = self.config.total_updates(self.context.micro_batches(self.config.size, self.config.batch_size))
        optimizer = self.optimizers["adam"]
        self.cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=updates)
        self.schedulers = [self.cycle]
        self.rates: list[float] = []
        optimizer.register_step_pre_hook(lambda optimizer, *_: self.rates.append(optimizer.param_groups[0]["lr"]))

    def followed(self) -> dict[str, float]:
        group, updater = self.optimizers["adam"].param_groups[0], self.updaters["train"]
        return {
            "length": self.cycle.total_steps,
            "steps": self.cycle.last_epoch,
            "updates": updater.steps,
            "skipped": updater.skipped,
            "start": group["initial_lr"],
            "end": group["min_lr"],
            "first_rate": self.rates[0],
            "last_rate": self.rates[-1],
        }
