"""A trial in memory: epochs of windows, evaluation, the report of an epoch, checkpoints."""

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import Parameter

from trainables import checkpoint
from trainables.ema import Ema
from trainables.precision import Diverged
from trainables.task import Task, loss_scale_of
from trainables.update import Updater, UpdateReport, windows

AnyTask = Task[Any]


class Training:
    """One trial on one rank, from `build` on.

    Everything random is seeded anew for each epoch from (seed, epoch, rank), so a trial that goes on from a
    checkpoint is the trial that was never interrupted.

    Raises:
        ValueError: The task's `build` left something out or named something that it did not make.
    """

    def __init__(self, task: AnyTask) -> None:
        self.task = task
        self.epoch = 0
        # The same on all ranks: what build draws, a split of the data or a fixed projection, must not differ.
        self._seed_epoch(0, rank=0)
        task.build()
        named = _check_build(task)
        for module in task.modules.values():
            module.to(task.context.device)
        task.context.broadcast([*named.values(), *self._buffers()])
        self._tallies = {name: _Tally() for name in task.updates}
        task.updaters = {name: self._updater(name, named) for name in task.updates}

    def run_epoch(self, stopping: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
        """Train and evaluate one epoch.

        Args:
            stopping: Asked before each window; a yes on any rank ends the epoch on all of them.

        Returns:
            The report of the epoch, or None if it was stopped: the trial is then between two windows, and what it
            did since the epoch began is not in any checkpoint.

        Raises:
            Diverged: The trial cannot go on, or its objective is not a finite number.
            ValueError: `evaluate` does not return the objective.
        """
        task, start = self.task, time.perf_counter()
        self._seed_epoch(self.epoch, task.context.rank)
        for tally in self._tallies.values():
            tally.clear()
        task.noted.clear()
        if not self._train(stopping):
            return None
        trained = time.perf_counter() - start
        metrics = {**self.evaluate(), **self._train_metrics(trained)}
        if task.objective not in metrics:
            raise ValueError(
                f"evaluate must return the objective {task.objective!r}, but got {', '.join(sorted(metrics))}."
            )
        self.epoch += 1
        metrics["time/epoch_s"] = time.perf_counter() - start
        if not math.isfinite(metrics[task.objective]):
            raise Diverged(f"{task.objective} is {metrics[task.objective]} after epoch {self.epoch}", metrics)
        return metrics

    def save(self, path: Path) -> None:
        """Write the trial as it stands after its last whole epoch. Called on all ranks, written by rank 0."""
        self.task.context.broadcast(self._buffers())
        if self.task.context.rank == 0:
            checkpoint.save(
                {
                    "epoch": self.epoch,
                    "config": self.task.config.model_dump(mode="json", round_trip=True),
                    "modules": {name: module.state_dict() for name, module in self.task.modules.items()},
                    "updaters": {name: updater.state_dict() for name, updater in self.task.updaters.items()},
                    "task": checkpoint.plain(self.task.state_dict()),
                },
                path,
            )

    def load(self, path: Path) -> None:
        """Take up the trial where `path` was saved."""
        state = checkpoint.load(path)
        for name, module in self.task.modules.items():
            module.load_state_dict(state["modules"][name])
        for name, updater in self.task.updaters.items():
            updater.load_state_dict(state["updaters"][name])
        self.task.load_state_dict(state["task"])
        self.epoch = state["epoch"]

    def _train(self, stopping: Callable[[], bool]) -> bool:
        task = self.task
        remaining = windows(task.train_batches(self.epoch), task.config.accumulation)
        first = self._tallies[next(iter(task.updates))]
        while task.epoch_samples is None or first.weight < task.epoch_samples:
            window = next(remaining, [])
            # Ranks may hold different numbers of windows: all go on until the last of them is done.
            more, stop = task.context.any(bool(window), stopping())
            if stop:
                return False
            if not more:
                break
            task.update(window)
        return True

    def evaluate(self) -> dict[str, float]:
        """The metrics of the trial as it stands, reduced over ranks."""
        task = self.task
        task.context.broadcast(self._buffers())
        with _evaluation_mode(task.modules), contextlib.ExitStack() as averages, torch.no_grad():
            for updater in task.updaters.values():
                if updater.ema is not None:
                    averages.enter_context(updater.ema.applied())
            return self._reduce(task.evaluate())

    def _reduce(self, metrics: Mapping[str, float | tuple[Any, Any]]) -> dict[str, float]:
        """Means over all ranks of what came as (mean, weight); floats as they are."""
        weighted = {name: value for name, value in metrics.items() if isinstance(value, tuple)}
        # A rank without data has a mean over nothing, NaN: it must not spread to the others' data.
        sums = {name: (float(m) * float(w) if w else 0.0, float(w)) for name, (m, w) in weighted.items()}
        plain = {name: float(value) for name, value in metrics.items() if not isinstance(value, tuple)}
        return {**plain, **self.task.context.weighted_means(sums)}

    def _train_metrics(self, seconds: float) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for name, tally in self._tallies.items():
            prefix = "train" if name == "train" else f"train/{name}"
            updater = self.task.updaters[name]
            metrics[f"{prefix}/loss"] = tally.loss
            metrics[f"{prefix}/grad_norm"] = tally.grad_norm
            metrics[f"{prefix}/updates"] = updater.steps
            metrics[f"amp/skipped{prefix.removeprefix('train')}"] = updater.skipped
            if updater.loss_scale is not None:
                metrics[f"amp/loss_scale{prefix.removeprefix('train')}"] = updater.loss_scale.value
        noted = {f"train/{term}": (float(total), float(weight)) for term, (total, weight) in self.task.noted.items()}
        metrics.update(self.task.context.weighted_means(noted))
        metrics["time/samples_per_s"] = next(iter(self._tallies.values())).weight / seconds
        return metrics

    def _seed_epoch(self, epoch: int, rank: int) -> None:
        """Seed what the ranks share, and what must differ between them, as dropout."""
        shared, own = (int(s) for s in np.random.SeedSequence([self.task.config.seed, epoch]).generate_state(2))
        self.task.context.generator.manual_seed(shared)
        random.seed(own + rank)
        np.random.seed((own + rank) % 2**32)
        torch.manual_seed(own + rank)

    def _buffers(self) -> list[torch.Tensor]:
        return [buffer for module in self.task.modules.values() for buffer in module.buffers()]

    def _updater(self, name: str, named: Mapping[str, Parameter]) -> Updater:
        task, config = self.task, self.task.config
        optimizers = {key: task.optimizers[key] for key in task.updates[name]}
        owned = _owned(optimizers.values())
        averaged = {key: p for key, p in named.items() if id(p) in owned and p.requires_grad}

        def on_update(report: UpdateReport) -> None:
            self._tallies[name].add(report)
            task.after_update(report)

        return Updater(
            optimizers,
            precision=config.precision,
            device=task.context.device,
            max_grad_norm=config.max_grad_norm,
            schedulers=[s for s in task.schedulers if getattr(s, "optimizer", None) in optimizers.values()],
            ema=Ema(averaged, config.ema_decay) if config.ema_decay else None,
            loss_scale=loss_scale_of(config),
            max_consecutive_skips=config.max_consecutive_skips,
            on_update=on_update,
            buffers=self._buffers(),
        )


class _Tally:
    """What one updater's windows of an epoch come to."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.weight = self._applied_weight = self._loss = self._norms = 0.0
        self._applied = 0

    def add(self, report: UpdateReport) -> None:
        self.weight += report.weight
        if report.outcome == "applied":
            self._applied += 1
            self._applied_weight += report.weight
            self._loss += report.loss * report.weight
            self._norms += report.grad_norm

    @property
    def loss(self) -> float:
        return self._loss / self._applied_weight if self._applied else math.nan

    @property
    def grad_norm(self) -> float:
        return self._norms / self._applied if self._applied else math.nan


def _check_build(task: AnyTask) -> dict[str, Parameter]:
    """The task's parameters by name, each once.

    Raises:
        ValueError: See `Training`.
    """
    name = type(task).__name__
    if not hasattr(task, "objective"):
        raise ValueError(f"{name} must name its objective, a metric of evaluate, but does not.")
    if not task.modules or not task.optimizers:
        raise ValueError(f"{name}.build must fill self.modules and self.optimizers, but left one of them empty.")
    task.updates = task.updates or {"train": list(task.optimizers)}
    used = [key for keys in task.updates.values() for key in keys]
    if sorted(used) != sorted(task.optimizers):
        raise ValueError(f"{name}.updates must name each of {sorted(task.optimizers)} once, but got {sorted(used)}.")
    optimizers = list(task.optimizers.values())
    for scheduler in task.schedulers:
        if getattr(scheduler, "optimizer", None) not in optimizers:
            raise ValueError(
                f"{name}.schedulers must each have an `optimizer` of self.optimizers, "
                f"but {type(scheduler).__name__} has not."
            )
    # Keyed as one tree, so that a weight that two modules share is listed once.
    named = dict(torch.nn.ModuleDict(task.modules).named_parameters())
    owned = _owned(optimizers)
    loose = [key for key, parameter in named.items() if parameter.requires_grad and id(parameter) not in owned]
    if loose:
        raise ValueError(
            f"{name}.build must give each trainable parameter to an optimizer, but {', '.join(loose[:5])} has none. "
            "Add it, or set requires_grad=False."
        )
    return named


def _owned(optimizers: Iterable[torch.optim.Optimizer]) -> set[int]:
    return {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}


@contextlib.contextmanager
def _evaluation_mode(modules: Mapping[str, torch.nn.Module]) -> Iterator[None]:
    """Every module in evaluation mode inside, and in the mode that it was in afterwards."""
    modes = [(part, part.training) for module in modules.values() for part in module.modules()]
    for module in modules.values():
        module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def train(task: AnyTask, epochs: int | None = None) -> Iterator[dict[str, float]]:
    """Train `task` in this process and yield the report of each epoch: for tests, notebooks and debuggers."""
    training = Training(task)
    while training.epoch < (epochs or task.config.epochs):
        metrics = training.run_epoch()
        if metrics is not None:
            yield metrics
