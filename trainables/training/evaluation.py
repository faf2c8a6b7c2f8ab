"""The metrics of a trial as it stands, and what it draws."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from trainables.context import Context
from trainables.task import Task
from trainables.task.images import Picture, check_images
from trainables.update.buffers import Buffers


def evaluate(task: Task[Any], buffers: Buffers) -> dict[str, float]:
    """What `task.evaluate` measures, reduced over ranks. Nothing of it stays: no state of a cell, no term that a loss
    notes.

    Raises:
        ValueError: A metric is neither a number nor (mean, weight).
    """
    buffers.broadcast(task.context)
    with _prepare_evaluation(task, buffers):
        return _reduce_metrics(task.evaluate(), task.context)


def render_images(task: Task[Any], buffers: Buffers) -> dict[str, Picture]:
    """What `task.pictures` draws, right after `evaluated`; nothing on ranks other than 0, which do not wait for it.

    Raises:
        ValueError: It draws something that is no picture.
    """
    if type(task).pictures is Task.pictures:
        return {}
    with _prepare_evaluation(task, buffers):  # on all ranks: weights that are sharded are gathered from them
        return check_images(task.pictures()) if task.context.rank == 0 else {}


@contextlib.contextmanager
def _prepare_evaluation(task: Task[Any], buffers: Buffers) -> Iterator[None]:
    """Set evaluation mode and averaged weights. Afterwards all is as it was before."""
    noting, task.noting = task.noting, {}
    try:
        with isolated_inference(task, buffers), _set_evaluation_mode(task.modules), contextlib.ExitStack() as averages:
            for updater in task.updaters.values():
                if updater.ema is not None:
                    averages.enter_context(updater.ema.applied())
            if task.unshard_to_evaluate:
                for updater in task.updaters.values():
                    averages.enter_context(updater.unsharded())
            yield
    finally:
        task.noting = noting


@contextlib.contextmanager
def isolated_inference(task: Task[Any], buffers: Buffers) -> Iterator[None]:
    """Run in fp32 and without autograd, also from within a loss. Restore the buffers afterwards."""
    before = buffers.copy()
    try:
        with torch.no_grad(), torch.autocast(task.context.device.type, enabled=False):
            yield
    finally:
        buffers.restore(before)


def _reduce_metrics(metrics: Mapping[str, float | tuple[Any, Any]], context: Context) -> dict[str, float]:
    """Means over all ranks of what came as (mean, weight); of floats, those of rank 0."""
    weighted: dict[str, tuple[float, float]] = {}
    plain: dict[str, float] = {}
    for name, value in metrics.items():
        try:
            if isinstance(value, tuple):
                mean, weight = (float(part) for part in value)
                # A rank without data has a mean over nothing, NaN: it must not spread to the others' data.
                weighted[name] = (mean * weight if weight else 0.0, weight)
            else:
                plain[name] = float(value)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"evaluate must return a number or (mean, weight) for {name!r}, but got {value!r}."
            ) from error
    # All ranks must see the same: one that found a NaN by itself would leave the others behind.
    return {**context.broadcast_object(plain), **context.weighted_means(weighted)}


@contextlib.contextmanager
def _set_evaluation_mode(modules: Mapping[str, torch.nn.Module]) -> Iterator[None]:
    """Every module in evaluation mode inside, and in the mode that it was in afterwards."""
    modes = [(part, part.training) for module in modules.values() for part in module.modules()]
    for module in modules.values():
        module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
