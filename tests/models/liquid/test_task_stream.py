"""How a source of data is cut into tasks: nothing is lost, nothing is in two of them."""

import pytest
import torch

from models.liquid.continual import Scenario
from models.liquid.data import Kind
from models.liquid.task_stream import Stream, stream
from tests.models.liquid.nets import continued, labelled


def rows(made: Stream, task: int) -> torch.Tensor:
    return made.rows(task, torch.arange(made.size(task))).targets


@pytest.mark.parametrize(
    ("scenario", "outputs", "targets", "allowed"),
    [
        ("class", 4, [{0, 1}, {2, 3}], [[1, 1, 1, 1], [1, 1, 1, 1]]),
        ("task", 4, [{0, 1}, {2, 3}], [[1, 1, 0, 0], [0, 0, 1, 1]]),
        ("domain", 2, [{0, 1}, {0, 1}], [[1, 1], [1, 1]]),
    ],
)
def test_classes_are_dealt_out_to_tasks(
    scenario: Scenario, outputs: int, targets: list[set[int]], allowed: list[list[int]]
) -> None:
    made = stream(labelled(each=6, tested=3), 2, scenario)
    assert (made.tasks, made.outputs, made.length, made.features) == (2, outputs, 5, 3)
    assert made.names == ("0, 1", "2, 3")
    assert made.bounds == (0, 12, 24)
    assert [set(rows(made, task).tolist()) for task in (0, 1)] == targets
    assert [set(made.tests[task][made.names[task]].targets.tolist()) for task in (0, 1)] == targets
    assert [made.tests[task][made.names[task]].size for task in (0, 1)] == [6, 6]
    assert made.allowed.int().tolist() == allowed


@pytest.mark.parametrize("scenario", ["class", "task", "domain"])
def test_a_single_task_has_all_classes(scenario: Scenario) -> None:
    made = stream(labelled(), 1, scenario)
    assert made.names == ("0-3",)
    assert made.outputs == 4
    assert made.allowed.all()
    assert made.samples.size == 24


@pytest.mark.parametrize("kind", ["bytes", "values"])
def test_domains_are_dealt_out_to_tasks_and_each_is_tested_by_itself(kind: Kind) -> None:
    source = continued(kind, domains=3, trained=6)
    made = stream(source, 2, "class")
    assert made.names == ("d0 + d1", "d2")
    assert made.bounds == (0, 13, 21)
    assert [list(tests) for tests in made.tests] == [["d0", "d1"], ["d2"]]
    assert made.outputs == source.outputs
    assert made.allowed.all()
    for number, (task, first) in enumerate([(0, 0), (0, 6), (1, 0)]):
        train = source.domains[number].train
        taken = made.rows(task, first + torch.arange(train.size))
        assert torch.equal(taken.inputs, train.inputs)
        assert torch.equal(taken.targets, train.targets)
        assert (taken.dt is None) == (kind == "bytes")
        if taken.dt is not None and train.dt is not None:
            assert torch.equal(taken.dt, train.dt)


def test_sequences_of_several_tasks_are_taken_at_once() -> None:
    made = stream(continued("values", domains=3), 3, "class")
    tasks, indices = torch.tensor([2, 0, 1, 2]), torch.tensor([0, 3, 1, 7])
    together = made.rows(tasks, indices)
    for place, (task, index) in enumerate(zip(tasks.tolist(), indices.tolist(), strict=True)):
        assert torch.equal(together.inputs[place], made.rows(task, torch.tensor([index])).inputs[0])


@pytest.mark.parametrize(
    ("kind", "tasks", "scenario", "told"),
    [
        ("labels", 5, "class", "tasks must be between 1 and the 4 classes, but got 5"),
        ("labels", 3, "domain", 'a task must have at least 2 classes in the "domain" scenario, but got 1'),
        ("labels", 4, "task", 'a task must have at least 2 classes in the "task" scenario, but got 1'),
        ("bytes", 5, "class", "tasks must be between 1 and the 4 domains, but got 5"),
        ("values", 0, "class", "tasks must be between 1 and the 4 domains, but got 0"),
    ],
)
def test_what_cannot_be_cut_is_refused(kind: Kind, tasks: int, scenario: Scenario, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        stream(labelled() if kind == "labels" else continued(kind), tasks, scenario)
