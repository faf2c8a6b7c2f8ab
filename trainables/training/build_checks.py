"""Checks of what a task's `build` created, and of the gradients of the first update."""

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import Parameter

from searchlight.trainables.task import Task
from searchlight.trainables.update import Updater, UpdateReport
from searchlight.trainables.update.parameters import get_named_parameters, get_parameters

logger = logging.getLogger(__name__)


def check_build(task: Task[Any]) -> dict[str, Parameter]:
    """Return the task's parameters by name, each once.

    Raises:
        ValueError: The task's `build` omitted something or named something that it did not create.
    """
    name = type(task).__name__
    if not hasattr(task, "objective"):
        raise ValueError(f"{name} must name its objective, a metric of evaluate, but does not.")
    for key, value in ("modules", task.modules), ("optimizers", task.optimizers):
        if not hasattr(value, "items"):
            raise ValueError(f"{name}.build must make self.{key} a dict by name, but got {type(value).__name__}.")
    if not task.modules or not task.optimizers:
        raise ValueError(f"{name}.build must fill self.modules and self.optimizers, but left one of them empty.")
    task.updates = task.updates or {"train": list(task.optimizers)}
    used = [key for keys in task.updates.values() for key in keys]
    if sorted(used) != sorted(task.optimizers):
        raise ValueError(f"{name}.updates must name each of {sorted(task.optimizers)} once, but got {sorted(used)}.")
    if not task.transforms.keys() <= task.updates.keys():
        raise ValueError(
            f"{name}.transforms must be for updates among {sorted(task.updates)}, but got {sorted(task.transforms)}."
        )
    optimizers = list(task.optimizers.values())
    for scheduler in task.schedulers:
        if getattr(scheduler, "optimizer", None) not in optimizers:
            raise ValueError(
                f"{name}.schedulers must each have an `optimizer` of self.optimizers, "
                f"but {type(scheduler).__name__} has not."
            )
    if not task.unshard_to_evaluate and type(task).pictures is not Task.pictures:
        raise ValueError(
            f"{name}.pictures must have whole weights on rank 0, but unshard_to_evaluate is off. Leave one of them out."
        )
    named = get_named_parameters(task.modules)
    owned = get_parameter_ids(optimizers)
    loose = [key for key, parameter in named.items() if parameter.requires_grad and id(parameter) not in owned]
    if loose:
        raise ValueError(
            f"{name}.build must give each trainable parameter to an optimizer, but {', '.join(loose[:5])} has none. "
            "Add it, or set requires_grad=False."
        )
    return named


def get_parameter_ids(optimizers: Iterable[torch.optim.Optimizer]) -> set[int]:
    return {id(parameter) for optimizer in optimizers for parameter in get_parameters(optimizer)}


def check_gradients(task: Task[Any], update: str, updater: Updater, report: UpdateReport) -> None:
    """Check in the first update of a trial that every module gets a gradient.

    A single parameter without gradient is only logged, since it may be intended. A whole module without gradient means
    a disconnected graph: a detach(), an unused head, a cached prompt.

    Raises:
        ValueError: A module has no gradient, or with `gradient_check` "parameter" a single parameter has none.
    """
    mode = task.config.gradient_check
    if mode == "skip" or updater.steps > 1 or (updater.steps and report.outcome != "applied"):
        return
    if report.reason == "no gradient":
        raise ValueError(
            f"the loss of update {update!r} must depend on what {', '.join(sorted(task.updates[update]))} trains, "
            "but none of their parameters got a gradient."
        )
    if report.outcome != "applied":
        return
    norms = updater.gradient_norms()
    names = updater.trainable_names()
    for key in task.modules:
        parts = [name for name in names if name.startswith(f"{key}.")]
        if parts and not any(norms.get(name) for name in parts):
            kind = "is zero" if any(name in norms for name in parts) else "is none"
            raise ValueError(
                f"module {key!r} must have a gradient in the first update, but its gradient {kind}: "
                "it would not learn. If that is meant, set gradient_check=skip."
            )
    missing = [name for name in names if name not in norms]
    if missing:
        listed = f"{len(missing)} of {len(names)} parameters got no gradient in the first update: {', '.join(missing)}"
        if mode == "parameter":
            raise ValueError(f"with gradient_check=parameter all parameters must get a gradient, but {listed}.")
        logger.warning("update %r: %s", update, listed)
