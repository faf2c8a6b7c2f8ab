"""The task `arc` on the real puzzles, small enough for a fraction of a second."""

from typing import Any

import torch

from trainables.arc import ArcConfig, ArcTask
from trainables.context import Context
from trainables.loop import Training

SMALL: dict[str, Any] = {
    "max_side": 8,
    "views": 1,
    "width": 16,
    "layers": 1,
    "episodes": 40,
    "epochs": 2,
    "ema_decay": None,
    "gradient_check": "parameter",
    "prompt": {"dim": 16},
}
KEPT = Context()  # puzzles and what a language model says of them are prepared once for all tests


def arc(task_class: type[ArcTask] = ArcTask, **config: Any) -> ArcTask:
    """A small task; `prompt` adds to what is small of it."""
    prompt = {**SMALL["prompt"], **config.pop("prompt", {})}
    return task_class(ArcConfig.model_validate({**SMALL, **config, "prompt": prompt}), KEPT.anew())


def weights(training: Training, name: str) -> dict[str, torch.Tensor]:
    """Copies of the parameters of a module."""
    return {key: p.detach().clone() for key, p in training.task.modules[name].named_parameters()}


def moved(training: Training, name: str, before: dict[str, torch.Tensor]) -> set[bool]:
    """Whether the parameters of a module are others than before: {True} if all are, {False} if none is."""
    return {not torch.equal(value, before[key]) for key, value in weights(training, name).items()}


def window(training: Training) -> list[Any]:
    """The first micro-batch of the first epoch, as a window."""
    return [next(iter(training.task.train_batches(0)))]
