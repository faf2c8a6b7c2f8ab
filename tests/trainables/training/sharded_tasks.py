"""Tasks whose modules are sharded over two ranks, and their trials."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from searchlight.trainables.context import rng
from searchlight.trainables.training.trainer import TrialTrainer
from tests.trainables.toy_models import FULL, Augmented, Regression, RegressionConfig
from tests.trainables.training.trials import make_trial
from tests.trainables.two_ranks import RANKS

SETTINGS = {**FULL, "size": 45}  # six micro-batches on each rank, three windows


class SplitConfig(RegressionConfig):
    shard: bool = True


class Split(Augmented):
    """Its first layer and the rest are sharded; its evaluation has a ragged number of batches, its noise is shared."""

    @classmethod
    def config_class(cls) -> type[SplitConfig]:
        return SplitConfig

    def build(self) -> None:
        super().build()
        model = self.modules["model"]
        if self.config.shard:
            fully_shard(model[0], mesh=self.context.mesh)
            fully_shard(model, mesh=self.context.mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.config.lr)
        self.optimizers = {"adam": optimizer}
        self.schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.7)]

    def evaluate(self) -> dict[str, Any]:
        parts = [self.part(batch) for batch in self.context.shard((self.inputs, self.targets), 5, shuffle=False)]
        weight = sum(own for _, own in parts)
        return {"val/loss": (sum(mean * own for mean, own in parts) / weight, weight), "val/drawn": self.drawn}

    def part(self, batch: Any) -> tuple[float, int]:
        return nn.functional.mse_loss(self.predict(batch[0]), batch[1]).item(), len(batch[1])

    def pictures(self) -> dict[str, Any]:
        self.predict(self.inputs)  # on rank 0 alone
        return {"black": np.zeros((2, 2, 3), np.uint8)}


class Steady(Split):
    """Trains the same on one rank in batches of 8 as on two in batches of 4: nothing in it mixes samples."""

    def build(self) -> None:
        super().build()
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
        if self.config.shard:
            fully_shard(model, mesh=self.context.mesh)
        self.modules = {"model": model}
        self.optimizers = {"adam": torch.optim.AdamW(model.parameters(), lr=self.config.lr)}
        self.schedulers = []

    def train_batches(self, epoch: int) -> Iterator[Any]:
        yield from self.context.shard((self.inputs, self.targets), self.config.batch_size)

    def loss(self, batch: Any) -> Any:
        self.log("input", batch[0].mean(), len(batch[0]))
        self.log("micro_batches", 1.0)
        return Regression.loss(self, batch)


def local(value: Any) -> Any:
    """Nested states with what this rank has of sharded tensors."""
    if isinstance(value, dict):
        return {key: local(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [local(part) for part in value]
    if isinstance(value, torch.Tensor):
        return (value.to_local() if isinstance(value, DTensor) else value).clone()
    return value


def state(training: TrialTrainer) -> dict[str, Any]:
    task = training.task
    return local(
        {
            "modules": {name: module.state_dict() for name, module in task.modules.items()},
            "updaters": {name: updater.state_dict() for name, updater in task.updaters.items()},
            "task": task.state_dict(),
            "generators": rng.get_state(task.context.generator, task.context.device),
            "place": [training.epoch, training.windows],
        }
    )


def make_split(rank: int, settings: dict[str, Any], task: type[Split] = Split, ranks: int = RANKS) -> TrialTrainer:
    return make_trial(task, rank, ranks, **settings)


def stop_and_save(rank: int, settings: dict[str, Any], window: int | None, path: str) -> Any:
    training = make_split(rank, settings)
    training.run_epoch()
    pictures = list(training.pictures)
    if window is not None:
        asked = itertools.count()
        assert training.run_epoch(lambda: next(asked) == window) is None
    training.save(Path(path))
    return state(training), pictures
