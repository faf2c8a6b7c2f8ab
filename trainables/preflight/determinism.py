"""The check that a trial gives the same result again, also after another trial in the same process."""

import re
import warnings
from collections.abc import Callable
from typing import Any

import torch

from searchlight.trainables.context import Context
from searchlight.trainables.isolation.determinism import exact_arithmetic
from searchlight.trainables.preflight.findings import Finding, Kind, declare_kinds, make_finding
from searchlight.trainables.preflight.observation import UNLIMITED
from searchlight.trainables.task import Task, TaskConfig
from searchlight.trainables.training.trainer import TrialTrainer

Weights = dict[str, torch.Tensor]
NO_ALGORITHM = re.compile(r"(\w+) does not have a deterministic implementation")  # torch's warning


declare_kinds(
    "Determinism and data",
    Kind("not-reproducible", "warning", "Draw random numbers from torch, numpy or self.context.generator only."),
    Kind("depends-on-earlier-trial", "warning", "Keep no state in modules or classes: make it in build."),
)


def find_irreproducible(
    task_class: Callable[[], type[Task[Any]]],
    config: TaskConfig,
    context: Context,
    windows: int,
    reset: Callable[[], object] = lambda: None,
    is_over: Callable[[], bool] = lambda: False,
) -> list[Finding]:
    """Train `windows` windows three times with one seed. Before the third time, train with another seed.

    Args:
        task_class: A function that returns the class, which `reset` may have imported again.
        reset: A function that does what a worker does between two trials.
    """
    config = config.model_copy(update=UNLIMITED)
    other = config.model_copy(update={"seed": config.seed + 1})
    first, lacking = _train(task_class(), config, context, windows)
    reset()
    second, _ = _train(task_class(), config, context, windows)
    if (difference := _describe_difference(first, second)) is not None:
        name, figure = difference
        if lacking:
            figure += f"; no deterministic algorithm for {', '.join(lacking)}"
        return [make_finding("not-reproducible", name, figure)]
    if is_over():
        return []
    reset()
    _train(task_class(), other, context, windows)
    reset()
    third, _ = _train(task_class(), config, context, windows)
    if (difference := _describe_difference(first, third)) is not None:
        return [make_finding("depends-on-earlier-trial", *difference)]
    return []


def _train(
    task_class: type[Task[Any]], config: TaskConfig, context: Context, windows: int
) -> tuple[Weights, list[str]]:
    """Return the weights after training, and the operations that torch has no deterministic algorithm for."""
    task = task_class(config, context.for_next_trial())
    # Here, since `reset` restores the settings of the process.
    with exact_arithmetic(context.device), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trainer = TrialTrainer(task)
        trainer.run_epoch(lambda: trainer.windows >= windows)
    weights = {
        f"{key}.{name}": value.detach().clone()
        for key, module in task.modules.items()
        for name, value in module.state_dict().items()
        if isinstance(value, torch.Tensor)
    }
    trainer.close()
    lacking = dict.fromkeys(found[1] for warning in told if (found := NO_ALGORITHM.match(str(warning.message))))
    return weights, list(lacking)


def _describe_difference(first: Weights, second: Weights) -> tuple[str, str] | None:
    """Return the parameter that differs most between two trials, and by how much, or None if they are identical."""
    worst, largest = None, 0.0
    for name, value in first.items():
        other = second.get(name)
        if other is None or other.shape != value.shape:
            return name, "another shape in the second trial"
        if torch.equal(value.nan_to_num(), other.nan_to_num()):
            continue
        distance = float((value.double() - other.double()).abs().max())
        if worst is None or distance > largest:
            worst, largest = name, distance
    return None if worst is None else (worst, f"{largest:.2g} apart after the same windows with the same seed")
