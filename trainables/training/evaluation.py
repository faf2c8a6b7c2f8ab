"""Evaluation of a trial, and the images that it renders."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from searchlight.trainables.checkpoint.images import Picture, check_images
from searchlight.trainables.context import Context
from searchlight.trainables.task import Task
from searchlight.trainables.update.buffers import Buffers


def evaluate(task: Task[Any], buffers: Buffers) -> dict[str, float]:
    """Return the metrics of `task.evaluate`, reduced over ranks. Restore buffers and logged terms afterwards.

    Raises:
        ValueError: The result is no dict, or a metric is neither a number nor (mean, weight).
    """
    buffers.broadcast(task.context)
    with _prepare_evaluation(task, buffers):
        return _reduce_metrics(task.evaluate(), task.context)


def render_images(task: Task[Any], buffers: Buffers) -> dict[str, Picture]:
    """Return the images of `task.pictures` on rank 0, and an empty dict on other ranks. Call it after `evaluate`.

    Raises:
        ValueError: A picture has the wrong type or shape.
    """
    if type(task).pictures is Task.pictures:
        return {}
    with _prepare_evaluation(task, buffers):  # on all ranks: weights that are sharded are gathered from them
        return check_images(task.pictures()) if task.context.rank == 0 else {}


@contextlib.contextmanager
def _prepare_evaluation(task: Task[Any], buffers: Buffers) -> Iterator[None]:
    """Set evaluation mode and averaged weights. Restore modes, weights and buffers afterwards."""
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
    """Reduce (mean, weight) over all ranks. Take floats from rank 0."""
    if not isinstance(metrics, Mapping):
        raise ValueError(f"evaluate must return a dict of metrics by name, but got {type(metrics).__name__}.")
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
    # All ranks must see the same values: if one alone found a NaN and raised, the others would wait for it.
    return {**context.broadcast_object(plain), **context.weighted_means(weighted)}


@contextlib.contextmanager
def _set_evaluation_mode(modules: Mapping[str, torch.nn.Module]) -> Iterator[None]:
    """Set all modules to evaluation mode. Restore the mode of each afterwards."""
    modes = [(part, part.training) for module in modules.values() for part in module.modules()]
    for module in modules.values():
        module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
