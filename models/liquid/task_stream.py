"""A source of data as a stream of tasks that are learned one after another."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from searchlight.models.liquid.continual import Scenario, allowed, class_groups, outputs, targets
from searchlight.models.liquid.data import Domain, Kind, Samples, Source


@dataclass(frozen=True)
class Stream:
    """Tasks in the order in which they are learned.

    Attributes:
        kind: The kind of targets, see `searchlight.models.liquid.data.Source`.
        names: Of the tasks.
        samples: The training samples, task after task.
        bounds: The first index of each task in them, and the end.
        tests: The test samples of each task in separately scored parts, by the domain's name.
        allowed: The outputs that count in each task, bool of shape (tasks, outputs).
        features: Numbers in each step of the inputs; 0 for bytes.
    """

    kind: Kind
    names: tuple[str, ...]
    samples: Samples
    bounds: tuple[int, ...]
    tests: tuple[dict[str, Samples], ...]
    allowed: Tensor
    features: int

    @property
    def tasks(self) -> int:
        return len(self.names)

    @property
    def outputs(self) -> int:
        """Numbers of an output."""
        return self.allowed.shape[1]

    @property
    def length(self) -> int:
        """Steps of a sequence."""
        return self.samples.inputs.shape[1]

    def size(self, task: int) -> int:
        """Return the number of a task's training sequences."""
        return self.bounds[task + 1] - self.bounds[task]

    def rows(self, tasks: Tensor | int, indices: Tensor) -> Samples:
        """Return training samples, by task and index within it."""
        starts = torch.tensor(self.bounds)[tasks]
        return self.samples.rows(starts + indices)


def stream(source: Source, tasks: int, scenario: Scenario) -> Stream:
    """Cut `source` into tasks: by classes for labels, else by domains.

    Raises:
        ValueError: There are too few classes or domains.
    """
    if source.kind == "labels":
        return _of_classes(source, tasks, scenario)
    groups = class_groups(len(source.domains), tasks, "domains")
    parts = [[source.domains[place] for place in group] for group in groups]
    return Stream(
        kind=source.kind,
        names=tuple(" + ".join(domain.name for domain in part) for part in parts),
        samples=Samples.joined([domain.train for part in parts for domain in part]),
        bounds=_bounds([sum(domain.train.size for domain in part) for part in parts]),
        tests=tuple({domain.name: domain.test for domain in part} for part in parts),
        allowed=torch.ones(tasks, source.outputs, dtype=torch.bool),
        features=source.features,
    )


def _of_classes(source: Source, tasks: int, scenario: Scenario) -> Stream:
    groups = class_groups(source.classes, tasks)
    width = outputs(scenario, groups)
    (whole,) = source.domains
    parts = [
        Domain(_named(group), *(_of(group, samples, scenario, groups) for samples in (whole.train, whole.test)))
        for group in groups
    ]
    return Stream(
        kind=source.kind,
        names=tuple(part.name for part in parts),
        samples=Samples.joined([part.train for part in parts]),
        bounds=_bounds([part.train.size for part in parts]),
        tests=tuple({part.name: part.test} for part in parts),
        allowed=torch.stack([allowed(scenario, groups, task) for task in range(tasks)]).view(tasks, width),
        features=source.features,
    )


def _of(group: Sequence[int], samples: Samples, scenario: Scenario, groups: Sequence[Sequence[int]]) -> Samples:
    rows = samples.rows(torch.isin(samples.targets, torch.tensor(group)).nonzero().flatten())
    return rows._replace(targets=targets(scenario, groups, rows.targets))


def _bounds(sizes: Sequence[int]) -> tuple[int, ...]:
    return (0, *torch.tensor(sizes).cumsum(0).tolist())


def _named(group: Sequence[int]) -> str:
    return f"{group[0]}-{group[-1]}" if len(group) > 2 else ", ".join(map(str, group))
