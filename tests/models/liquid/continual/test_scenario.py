"""A labelled set as a stream of tasks: which classes each has, and which outputs count in it."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from models.liquid.continual import allowed, class_groups, masked_logits, outputs, targets

bounded = settings(deadline=None, derandomize=True, max_examples=40)
PAIRS = class_groups(10, 5)


def test_ten_classes_make_five_tasks_of_two() -> None:
    assert PAIRS == ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))


@bounded
@given(st.integers(1, 60), st.data())
def test_every_class_is_dealt_once_in_order_and_evenly(classes: int, data: st.DataObject) -> None:
    groups = class_groups(classes, data.draw(st.integers(1, classes)))
    assert [label for group in groups for label in group] == list(range(classes))
    sizes = [len(group) for group in groups]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("tasks", [0, 11])
def test_there_cannot_be_more_tasks_than_classes(tasks: int) -> None:
    with pytest.raises(ValueError, match=f"between 1 and the 10 classes, but got {tasks}"):
        class_groups(10, tasks)


@pytest.mark.parametrize(("scenario", "width"), [("task", 10), ("class", 10), ("domain", 4)])
def test_how_many_outputs_there_are(scenario: str, width: int) -> None:
    assert outputs(scenario, class_groups(10, 3)) == width


@pytest.mark.parametrize("scenario", ["task", "domain"])
def test_a_task_of_one_class_has_nothing_to_learn_unless_it_is_told_from_the_others(scenario: str) -> None:
    single = class_groups(5, 4)
    assert outputs("class", single) == 5
    with pytest.raises(ValueError, match="at least 2 classes"):
        outputs(scenario, single)


def test_domains_share_their_outputs_and_the_others_do_not() -> None:
    labels = torch.tensor([[0, 3], [9, 4]], dtype=torch.uint8)
    assert targets("domain", PAIRS, labels).tolist() == [[0, 1], [1, 0]]
    for scenario in ("task", "class"):
        assert targets(scenario, PAIRS, labels).tolist() == labels.tolist()
        assert targets(scenario, PAIRS, labels).dtype == torch.int64


def test_a_label_of_no_task_is_told() -> None:
    with pytest.raises(ValueError, match="a class of a task, but got 10"):
        targets("class", PAIRS, torch.tensor([3, 10]))


@pytest.mark.parametrize("scenario", ["task", "domain", "class"])
def test_the_right_output_always_counts(scenario: str) -> None:
    for groups in (PAIRS, class_groups(7, 3)):
        for task, group in enumerate(groups):
            assert allowed(scenario, groups, task)[targets(scenario, groups, torch.tensor(group))].all()


def test_only_the_tasks_own_classes_count_where_the_task_is_known() -> None:
    assert allowed("task", PAIRS, 1).nonzero().flatten().tolist() == [2, 3]
    assert allowed("class", PAIRS, 1).tolist() == [True] * 10
    assert allowed("domain", PAIRS, 1).tolist() == [True] * 2


def test_tasks_that_share_a_label_have_masks_of_their_own() -> None:
    groups = ((0, 1), (1, 2))
    masks = [allowed("task", groups, task)[:3].tolist() for task in range(2)]
    assert masks == [[True, True, False], [False, True, True]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_an_output_that_does_not_count_has_no_probability_and_no_gradient(dtype: torch.dtype) -> None:
    logits = torch.tensor([[2.0, 1.0, 30.0, 0.0], [0.0, 50.0, 3.0, 1.0]], dtype=dtype, requires_grad=True)
    rows = torch.tensor([[True, True, False, False], [False, False, True, True]])
    masked = masked_logits(logits, rows)
    assert masked.dtype == dtype
    assert masked.argmax(-1).tolist() == [0, 2]
    loss = F.cross_entropy(masked.float(), torch.tensor([0, 2]))
    loss.backward()
    alone = torch.stack([logits.detach()[0, :2], logits.detach()[1, 2:]]).float()
    torch.testing.assert_close(loss.detach(), F.cross_entropy(alone, torch.tensor([0, 0])))
    assert logits.grad is not None
    assert (logits.grad[~rows] == 0).all()
    assert (logits.grad[rows] != 0).all()
    assert F.cross_entropy(masked.detach(), torch.tensor([0, 2])).isfinite()
