"""Conversion of a labeled set into a stream of tasks, and the outputs that each task uses.

The three scenarios of van de Ven, Tuytelaars & Tolias 2022 (Nature Machine Intelligence 4, 1185): in "task", the task
of a sample is known and only its classes are candidates; in "domain", it is unknown and not predicted, and tasks share
the outputs; in "class", it is unknown, and all classes are candidates.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

Scenario = Literal["task", "domain", "class"]
Groups = Sequence[Sequence[int]]

# Its exponential is 0 in every floating format, and it fits in fp16, so that results stay finite.
FILL = -1e4


def group_classes(classes: int, tasks: int, what: str = "classes") -> tuple[tuple[int, ...], ...]:
    """Return the classes of each task, assigned in order. The first tasks get the remainder, one more each.

    Args:
        classes: The number of classes.
        tasks: The number of tasks.
        what: The name of classes in an error.

    Raises:
        ValueError: There is no task, or there are fewer classes than tasks.
    """
    if not 1 <= tasks <= classes:
        raise ValueError(f"tasks must be between 1 and the {classes} {what}, but got {tasks}. Use fewer tasks.")
    share, more = divmod(classes, tasks)
    starts = [task * share + min(task, more) for task in range(tasks + 1)]
    return tuple(tuple(range(start, end)) for start, end in pairwise(starts))


def count_outputs(scenario: Scenario, groups: Groups) -> int:
    """Return the number of outputs that a network needs.

    Raises:
        ValueError: A task has a single class, and the scenario predicts only within tasks.
    """
    if scenario == "class":
        return sum(len(group) for group in groups)
    smallest = min(len(group) for group in groups)
    if smallest < 2:
        raise ValueError(
            f'a task must have at least 2 classes in the "{scenario}" scenario, but got {smallest}. '
            'Use fewer tasks, or the "class" scenario.'
        )
    return max(len(group) for group in groups) if scenario == "domain" else sum(len(group) for group in groups)


def convert_labels(scenario: Scenario, groups: Groups, labels: Tensor) -> Tensor:
    """Return the correct output of each label: its index within its group in "domain", else the label itself.

    Args:
        scenario: One of the three.
        groups: Classes 0..K-1, each in one group.
        labels: Any shape, integers.

    Returns:
        int64, shape of `labels`.
    """
    if scenario != "domain":
        return labels.long()
    places = {label: place for group in groups for place, label in enumerate(group)}
    table = torch.tensor([places[label] for label in range(len(places))], device=labels.device)
    return table[labels.long()]


def find_allowed(scenario: Scenario, groups: Groups, task: int) -> Tensor:
    """Return which outputs count when a sample of `task` is trained on or scored.

    Returns:
        Bool of shape (outputs,): the classes of the task in "task", all in the others.
    """
    width = count_outputs(scenario, groups)
    if scenario != "task":
        return torch.ones(width, dtype=torch.bool)
    counts = torch.zeros(width, dtype=torch.bool)
    counts[list(groups[task])] = True
    return counts


def mask_logits(logits: Tensor, allowed_rows: Tensor) -> Tensor:
    """Mask the logits that do not count: they get no probability and no gradient.

    Args:
        logits: Any floating dtype, shape (..., K).
        allowed_rows: Bool, shape of `logits` or one that broadcasts to it.
    """
    return logits.masked_fill(~allowed_rows, FILL)
