"""Checks of what a task's `build` created, and of the gradients of the first updates."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.nn import Parameter

from searchlight.trainables.task import Task
from searchlight.trainables.update import Updater, UpdateReport
from searchlight.trainables.update.parameters import get_named_parameters, get_parameters

logger = logging.getLogger(__name__)
FIRST_UPDATES = 8  # after which a module must have had a gradient,
FEWEST_UPDATES = 2  # or after so many, if the epoch ends with them: the layers below weights of zero have one then


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
    if not isinstance(task.schedulers, Iterable):
        raise ValueError(
            f"{name}.build must make self.schedulers a list, but got {type(task.schedulers).__name__}: write [...]."
        )
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


class GradientCheck:
    """Checks in the first updates of a trial that every module gets a gradient.

    One update is not enough: a batch may be of one of several heads, and a head that starts at zero gives the layers
    below a gradient from the second update on. A single parameter without gradient is only logged, since it may be
    intended. A whole module without gradient means a disconnected graph: a detach(), an unused head, a cached prompt.
    """

    def __init__(self, task: Task[Any], update: str) -> None:
        self._task = task
        self._update = update
        self._updates = 0
        self._largest: dict[str, float] = {}  # the largest norm of each parameter's gradients so far
        self._is_over = task.config.gradient_check == "skip"

    def state_dict(self) -> dict[str, Any]:
        """Return what the check has seen, so that a trial that pauses after one update is judged by the next ones."""
        return {"updates": self._updates, "largest": dict(self._largest), "is_over": self._is_over}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Continue after `state`, or check nothing if it is None, as in checkpoints of earlier versions."""
        if state is None:
            self._is_over = True
        else:
            self._updates, self._largest = state["updates"], dict(state["largest"])
            self._is_over |= state["is_over"]

    def add(self, updater: Updater, report: UpdateReport) -> None:
        """Check the gradients of a window. After the first 8 applied updates, nothing is left to check.

        Raises:
            ValueError: A module has no gradient, or with `gradient_check` "parameter" a single parameter has none.
                Also if the first window gives no parameter a gradient.
        """
        if self._is_over:
            return
        if report.reason == "no gradient" and not updater.steps:
            raise ValueError(
                f"the loss of update {self._update!r} must depend on what "
                f"{', '.join(sorted(self._task.updates[self._update]))} trains, but none of their parameters got a "
                "gradient."
            )
        if report.outcome != "applied":
            return
        self._updates += 1
        for name, norm in updater.gradient_norms().items():
            self._largest[name] = max(norm, self._largest.get(name, 0.0))
        idle, missing = self._find_idle_modules(updater), self._find_missing_parameters(updater)
        if not idle and not missing:
            self._is_over = True
        elif self._updates == FIRST_UPDATES:
            self._judge(updater)

    def finish_epoch(self, updater: Updater) -> None:
        """Decide at the end of an epoch, which has each kind of batch. Raise as `add` does."""
        if not self._is_over and self._updates >= FEWEST_UPDATES:
            self._judge(updater)

    def _judge(self, updater: Updater) -> None:
        self._is_over = True
        when = f"in the first {self._updates} updates"
        for key, kind in self._find_idle_modules(updater).items():
            raise ValueError(
                f"module {key!r} must have a gradient {when}, but its gradient {kind}: "
                "it would not learn. If that is meant, set gradient_check=skip."
            )
        missing = self._find_missing_parameters(updater)
        if not missing:
            return
        listed = f"{len(missing)} of {len(updater.trainable_names())} parameters got no gradient {when}: "
        listed += ", ".join(missing)
        if self._task.config.gradient_check == "parameter":
            raise ValueError(f"with gradient_check=parameter all parameters must get a gradient, but {listed}.")
        logger.warning("update %r: %s", self._update, listed)

    def _find_idle_modules(self, updater: Updater) -> dict[str, str]:
        """Return what is wrong with the gradient of each module that had none, or only zeros."""
        names, idle = updater.trainable_names(), dict[str, str]()
        for key in self._task.modules:
            parts = [name for name in names if name.startswith(f"{key}.")]
            if parts and not any(self._largest.get(name) for name in parts):
                idle[key] = "is zero" if any(name in self._largest for name in parts) else "is none"
        return idle

    def _find_missing_parameters(self, updater: Updater) -> list[str]:
        return [name for name in updater.trainable_names() if name not in self._largest]
