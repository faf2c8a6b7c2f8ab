"""A source of data as a stream of tasks that are learned one after another."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from searchlight.models.data import Domain, Kind, Samples, Source
from searchlight.models.liquid.continual import Scenario, convert_labels, count_outputs, find_allowed, group_classes


@dataclass(frozen=True)
class Stream:
    """Tasks in the order in which they are learned.

    Attributes:
        kind: The kind of targets, see `searchlight.models.data.Source`.
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

    def count_sequences(self, task: int) -> int:
        """Return the number of a task's training sequences."""
        return self.bounds[task + 1] - self.bounds[task]

    def select_rows(self, tasks: Tensor | int, indices: Tensor) -> Samples:
        """Return training samples, by task and index within it."""
        starts = torch.tensor(self.bounds)[tasks]
        return self.samples.select_rows(starts + indices)


def build_stream(source: Source, tasks: int, scenario: Scenario) -> Stream:
    """Cut `source` into tasks: by classes for labels, else by domains.

    Raises:
        ValueError: There are too few classes or domains.
    """
    if source.kind == "labels":
        return _cut_classes(source, tasks, scenario)
    groups = group_classes(len(source.domains), tasks, "domains")
    parts = [[source.domains[place] for place in group] for group in groups]
    return Stream(
        kind=source.kind,
        names=tuple(" + ".join(domain.name for domain in part) for part in parts),
        samples=Samples.join([domain.train for part in parts for domain in part]),
        bounds=_compute_bounds([sum(domain.train.size for domain in part) for part in parts]),
        tests=tuple({domain.name: domain.test for domain in part} for part in parts),
        allowed=torch.ones(tasks, source.outputs, dtype=torch.bool),
        features=source.features,
    )


def _cut_classes(source: Source, tasks: int, scenario: Scenario) -> Stream:
    groups = group_classes(source.classes, tasks)
    width = count_outputs(scenario, groups)
    (whole,) = source.domains
    parts = [
        Domain(
            _format_name(group),
            *(_select_classes(group, samples, scenario, groups) for samples in (whole.train, whole.test)),
        )
        for group in groups
    ]
    return Stream(
        kind=source.kind,
        names=tuple(part.name for part in parts),
        samples=Samples.join([part.train for part in parts]),
        bounds=_compute_bounds([part.train.size for part in parts]),
        tests=tuple({part.name: part.test} for part in parts),
        allowed=torch.stack([find_allowed(scenario, groups, task) for task in range(tasks)]).view(tasks, width),
        features=source.features,
    )


def _select_classes(
    group: Sequence[int], samples: Samples, scenario: Scenario, groups: Sequence[Sequence[int]]
) -> Samples:
    rows = samples.select_rows(torch.isin(samples.targets, torch.tensor(group)).nonzero().flatten())
    return rows._replace(targets=convert_labels(scenario, groups, rows.targets))


def _compute_bounds(sizes: Sequence[int]) -> tuple[int, ...]:
    return (0, *torch.tensor(sizes).cumsum(0).tolist())


def _format_name(group: Sequence[int]) -> str:
    return f"{group[0]}-{group[-1]}" if len(group) > 2 else ", ".join(map(str, group))
