"""How a source of data is cut into tasks, and which outputs count in each."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from searchlight.models.data import Kind
from searchlight.models.liquid.continual import (
    Scenario,
    group_classes,
    mask_logits,
)
from searchlight.models.liquid.task_stream import Stream, build_stream
from tests.models.liquid.nets import continued, labeled

bounded = settings(max_examples=40)


@bounded
@given(st.integers(1, 60), st.data())
def test_every_class_is_dealt_once_in_order_and_evenly(classes: int, data: st.DataObject) -> None:
    groups = group_classes(classes, data.draw(st.integers(1, classes)))
    assert [label for group in groups for label in group] == list(range(classes))
    sizes = [len(group) for group in groups]
    assert max(sizes) - min(sizes) <= 1
    for tasks in (0, classes + 1):
        with pytest.raises(ValueError, match=f"between 1 and the {classes} classes, but got {tasks}"):
            group_classes(classes, tasks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_masked_outputs_have_no_probability_and_no_gradient(dtype: torch.dtype) -> None:
    logits = torch.tensor([[2.0, 1.0, 30.0, 0.0], [0.0, 50.0, 3.0, 1.0]], dtype=dtype, requires_grad=True)
    rows = torch.tensor([[True, True, False, False], [False, False, True, True]])
    masked = mask_logits(logits, rows)
    assert masked.dtype == dtype
    assert masked.argmax(-1).tolist() == [0, 2]
    loss = F.cross_entropy(masked.float(), torch.tensor([0, 2]))
    loss.backward()
    alone = torch.stack([logits.detach()[0, :2], logits.detach()[1, 2:]]).float()
    torch.testing.assert_close(loss.detach(), F.cross_entropy(alone, torch.tensor([0, 0])))
    assert (logits.grad[~rows] == 0).all()
    assert (logits.grad[rows] != 0).all()
    assert F.cross_entropy(masked.detach(), torch.tensor([0, 2])).isfinite()


def rows(made: Stream, task: int) -> torch.Tensor:
    return made.select_rows(task, torch.arange(made.count_sequences(task))).targets


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
    made = build_stream(labeled(each=6, tested=3), 2, scenario)
    assert (made.tasks, made.outputs, made.length, made.features) == (2, outputs, 5, 3)
    assert made.names == ("0, 1", "2, 3")
    assert made.bounds == (0, 12, 24)
    assert [set(rows(made, task).tolist()) for task in (0, 1)] == targets
    assert [set(made.tests[task][made.names[task]].targets.tolist()) for task in (0, 1)] == targets
    assert [made.tests[task][made.names[task]].size for task in (0, 1)] == [6, 6]
    assert made.allowed.int().tolist() == allowed


@pytest.mark.parametrize(
    ("scenario", "outputs", "targets"), [("task", 5, [{0, 1, 2}, {3, 4}]), ("domain", 3, [{0, 1, 2}, {0, 1}])]
)
def test_uneven_tasks_have_outputs_for_the_largest(scenario: Scenario, outputs: int, targets: list[set[int]]) -> None:
    made = build_stream(labeled(classes=5), 2, scenario)
    assert (made.outputs, made.names) == (outputs, ("0-2", "3, 4"))
    assert [set(rows(made, task).tolist()) for task in (0, 1)] == targets
    assert made.allowed.sum(1).tolist() == ([3, 2] if scenario == "task" else [3, 3])


@pytest.mark.parametrize("scenario", ["class", "task", "domain"])
def test_a_single_task_has_all_classes(scenario: Scenario) -> None:
    made = build_stream(labeled(), 1, scenario)
    assert (made.names, made.outputs, made.samples.size) == (("0-3",), 4, 24)
    assert made.allowed.all()


@pytest.mark.parametrize("kind", ["bytes", "values"])
def test_domains_are_dealt_out_to_tasks_and_tested_alone(kind: Kind) -> None:
    source = continued(kind, domains=3, trained=6)
    made = build_stream(source, 2, "class")
    assert made.names == ("d0 + d1", "d2")
    assert made.bounds == (0, 13, 21)
    assert [list(tests) for tests in made.tests] == [["d0", "d1"], ["d2"]]
    assert made.outputs == source.outputs
    assert made.allowed.all()
    for number, (task, first) in enumerate([(0, 0), (0, 6), (1, 0)]):
        train = source.domains[number].train
        for part, whole in zip(made.select_rows(task, first + torch.arange(train.size)), train, strict=True):
            assert (part is None) == (whole is None)
            assert part is None or torch.equal(part, whole)


@pytest.mark.parametrize(
    ("kind", "tasks", "scenario", "told"),
    [
        ("labels", 5, "class", "tasks must be between 1 and the 4 classes, but got 5"),
        ("labels", 3, "task", 'a task must have at least 2 classes in the "task" scenario, but got 1'),
        ("labels", 3, "domain", 'a task must have at least 2 classes in the "domain" scenario, but got 1'),
        ("bytes", 5, "class", "tasks must be between 1 and the 4 domains, but got 5"),
        ("values", 0, "class", "tasks must be between 1 and the 4 domains, but got 0"),
    ],
)
def test_what_cannot_be_cut_is_refused(kind: Kind, tasks: int, scenario: Scenario, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        build_stream(labeled() if kind == "labels" else continued(kind), tasks, scenario)
