"""One task after another in one trial: what is replayed, what is held, and in which window."""

from typing import Any

import pytest
import torch
from torch import Tensor

from models.liquid.data import Samples
from models.liquid.losses import losses
from tests.trainables.liquid.small_liquid import drawn, liquid
from tests.trainables.toy_models import recorded_gradients
from trainables.liquid import LiquidTask
from trainables.liquid.task import Batch
from trainables.training.trainer import TrialTrainer
from trainables.update import UpdateReport


class Watched(LiquidTask):
    """Notes its reports and its batches."""

    def build(self) -> None:
        super().build()
        self.reports: list[UpdateReport] = []
        self.batches: list[Batch] = []

    def loss(self, batch: Batch) -> Any:
        self.batches.append(batch)
        return super().loss(batch)

    def after_update(self, report: UpdateReport) -> None:
        super().after_update(report)
        self.reports.append(report)


# Replay


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.75])
def test_a_micro_batch_has_the_share_that_was_asked_for_of_earlier_tasks(fraction: float, balanced: bool) -> None:
    task = liquid(Watched, replay={"fraction": fraction, "balanced": balanced}, epochs=5)  # C101
    training = TrialTrainer(task)
    for epoch in range(5):
        training.run_epoch()
        recalled = torch.zeros(5, dtype=torch.long)
        for batch in task.batches:
            new = batch.tasks[: len(batch.tasks) - batch.recalled]
            old = batch.tasks[len(new) :]
            assert len(new) == 8
            assert (new == epoch).all()
            assert (old < epoch).all()
            each = torch.bincount(old, minlength=5)
            recalled += each
            if epoch == 0:
                assert batch.recalled == 0
            else:
                assert abs(batch.recalled - 8 * fraction / (1 - fraction)) < 1
                if balanced:
                    assert each[:epoch].max() - each[:epoch].min() <= 1
        if epoch:
            assert abs(recalled.sum() / (32 + recalled.sum()) - fraction) < 0.01
            assert recalled[:epoch].all()
        task.batches.clear()


def test_so_little_that_a_micro_batch_has_none_of_it_is_replayed_in_every_other_one() -> None:  # C101
    task = liquid(batch_size=1, samples=30, replay={"fraction": 0.25}, epochs=5)
    training = TrialTrainer(task)
    training.run_epoch()
    assert sum(batch.recalled for batch in drawn(training, 1)) == 10


@pytest.mark.parametrize("data", ["digits", "series"])
@pytest.mark.parametrize("accumulation", [1, 2, 3])
def test_what_is_replayed_has_its_part_in_the_weight_of_a_window(data: str, accumulation: int) -> None:  # C101
    task = liquid(Watched, data=data, accumulation=accumulation, replay={"fraction": 0.5}, epochs=5)
    training = TrialTrainer(task)
    training.run_epoch()
    training.run_epoch()
    steps = {"digits": 1, "series": 8}[data]
    weights = [report.weight for report in task.reports]
    one = [8 * min(accumulation, 4 - start) * steps for start in range(0, 4, accumulation)]
    assert weights == [*one, *(2 * weight for weight in one)]


def rows(samples: Samples) -> set[bytes]:
    return {row.numpy().tobytes() for row in samples.inputs}


def test_nothing_of_tests_or_of_later_tasks_is_ever_trained_on() -> None:  # C101
    task = liquid(Watched, samples=200, epochs=5, replay={"size": 60})
    training = TrialTrainer(task)
    stream = task.stream
    own = [rows(stream.rows(number, torch.arange(stream.size(number)))) for number in range(5)]
    tested = set().union(*(rows(samples) for tests in stream.tests for samples in tests.values()))
    for epoch in range(5):
        training.run_epoch()
        for batch in task.batches:
            known = set().union(*own[: epoch + 1])
            assert rows(batch.samples) <= known - tested
            for number, row in zip(batch.tasks.tolist(), batch.samples.inputs, strict=True):
                assert row.numpy().tobytes() in own[number]
        task.batches.clear()
    assert [len(each & other) for each in own for other in own if each is not other] == [0] * 20


@pytest.mark.parametrize("balanced", [True, False])
def test_nothing_is_kept_of_a_task_that_it_was_not_trained_on(balanced: bool) -> None:
    task = liquid(Watched, samples=24, epochs=10, replay={"size": 60, "balanced": balanced})
    training = TrialTrainer(task)
    trained: list[set[bytes]] = [set() for _ in range(5)]
    for _ in range(10):
        training.run_epoch()
        for batch in task.batches:
            for place, (number, row) in enumerate(zip(batch.tasks.tolist(), batch.samples.inputs, strict=True)):
                known = row.numpy().tobytes()
                if place < len(batch.tasks) - batch.recalled:
                    trained[number].add(known)
                else:
                    assert known in trained[number]
        task.batches.clear()
    assert all(24 < len(each) < 100 for each in trained)


def test_answers_are_remembered_from_when_their_task_had_been_learned() -> None:
    task = liquid(Watched, epochs=5, replay={"logits_weight": 1.0})
    training = TrialTrainer(task)
    reports = [training.run_epoch() for _ in range(2)]
    assert reports[0] is not None
    assert reports[1] is not None
    assert "train/logits_distance" not in reports[0]
    assert reports[1]["train/logits_distance"] > 0
    assert all(batch.logits is not None for batch in task.batches[4:])
    first = task.batches[4]  # of the second task: nothing has moved since the first one ended
    assert first.logits is not None
    assert first.logits.shape == (first.recalled, 10)


# Consolidation


def fisher(task: LiquidTask) -> Tensor:
    assert task.past.hold is not None
    return torch.cat([values.flatten() for values in task.past.hold.state_dict()["fisher"].values()])


def test_each_task_has_a_fisher_of_its_own() -> None:  # C100
    task = liquid(consolidation={"method": "ewc", "fisher_samples": 40, "decay": 0.0}, epochs=5)
    TrialTrainer(task)
    found = []
    for number in (0, 1, 2):
        task.trained_on = torch.ones(task.stream.size(number), dtype=torch.bool)
        task._consolidate(number)
        found.append(fisher(task))
    for first in range(3):
        assert found[first].count_nonzero() > 100
        for second in range(first):
            assert (found[first] - found[second]).norm() > 0.1 * found[first].norm()


@pytest.mark.parametrize("method", ["ewc", "si"])
def test_what_holds_weights_is_nothing_until_they_leave_where_a_task_ended(method: str) -> None:  # C100
    task = liquid(Watched, consolidation={"method": method}, epochs=5)
    training = TrialTrainer(task)
    training.run_epoch()
    drawn(training, 1)  # which is when the first task is kept
    penalty = task.past.penalty()
    assert penalty is not None
    assert penalty == 0
    with torch.no_grad():
        for parameter in task.network.parameters():
            parameter += 0.01
    penalty = task.past.penalty()
    assert penalty is not None
    assert penalty > 0


@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_a_hold_is_part_of_the_one_step_of_a_window(accumulation: int) -> None:  # C100
    """The gradient of the step is that of the task and that of the penalty, once, however the window is cut."""
    strong = {"method": "ewc", "ewc_strength": 1e4, "fisher_samples": 40}
    task = liquid(consolidation=strong, epochs=5, accumulation=accumulation, max_grad_norm=None, weight_decay=0.0)
    training = TrialTrainer(task)
    training.run_epoch()
    window = drawn(training, 1)[:accumulation]
    parameters = [p for group in task.optimizers["network"].param_groups for p in group["params"]]
    with torch.no_grad():
        for parameter in parameters:
            parameter += 0.01 * torch.randn_like(parameter)
    whole = Samples.joined([batch.samples for batch in window])
    tasks = torch.cat([batch.tasks for batch in window])
    outputs = task.network(whole.inputs).outputs
    own = torch.autograd.grad(losses("labels", outputs, whole.targets, task.stream.allowed[tasks]).mean(), parameters)
    penalty = task.past.penalty()
    assert penalty is not None
    held = torch.autograd.grad(penalty, parameters)
    assert sum(float(part.norm()) for part in held) > 0.1 * sum(float(part.norm()) for part in own)

    steps = recorded_gradients(task.optimizers["network"])
    before = task.updaters["train"].steps
    task.update(window)
    assert task.updaters["train"].steps == before + 1
    (given,) = steps
    for got, first, second in zip(given, own, held, strict=True):
        assert torch.allclose(got, first + second, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("method", ["ewc", "si"])
def test_a_stronger_hold_moves_weights_less(method: str, precision: str) -> None:
    ways = []
    for strength in (0.0, 1e6):
        parts = {"method": method, f"{method}_strength": strength, "fisher_samples": 40}
        task = liquid(consolidation=parts, continual={"tasks": 2}, epochs=2, precision=precision, lr=1e-3, samples=64)
        training = TrialTrainer(task)
        training.run_epoch()
        start = torch.cat([p.detach().flatten() for p in task.network.parameters()])
        report = training.run_epoch()
        assert report is not None
        assert (report["train/penalty"] > 0) == (strength > 0)
        ways.append(float((torch.cat([p.detach().flatten() for p in task.network.parameters()]) - start).norm()))
    assert ways[1] < 0.8 * ways[0]


def test_a_window_that_is_skipped_leaves_synaptic_intelligence_as_it_was() -> None:
    class Spoilt(LiquidTask):
        def loss(self, batch: Batch) -> Any:
            loss, weight = super().loss(batch)
            return loss * torch.inf, weight

    task = liquid(Spoilt, consolidation={"method": "si"}, continual={"tasks": 1})
    training = TrialTrainer(task)
    training.run_epoch()
    assert task.past.hold is not None
    assert not any(path.any() for path in task.past.hold.state_dict()["path"].values())


# Learning rate


@pytest.mark.parametrize("warmup", [0.0, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_no_update_has_a_learning_rate_of_0(warmup: float, schedule: str) -> None:  # C102
    epochs = 5  # as many as there are tasks
    task = liquid(warmup=warmup, schedule=schedule, epochs=epochs, accumulation=3, lr=2e-3, samples=40)
    training = TrialTrainer(task)
    rates: list[float] = []
    optimizer = task.optimizers["network"]
    optimizer.register_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    for _ in range(epochs):
        training.run_epoch()
    assert len(rates) == 2 * epochs
    assert min(rates) > 0
    assert max(rates) == pytest.approx(2e-3)
    assert rates.index(max(rates)) == max(1, round(2 * epochs * warmup)) - 1
    assert [group["lr"] for group in optimizer.param_groups] == [optimizer.param_groups[0]["lr"]] * 2


def test_a_window_that_is_skipped_does_not_advance_the_schedule() -> None:  # C102
    class Spoilt(LiquidTask):
        def loss(self, batch: Batch) -> Any:
            loss, weight = super().loss(batch)
            return loss * (torch.inf if self.updaters["train"].skipped < 2 else 1.0), weight

    task = liquid(Spoilt, warmup=1.0, epochs=5, lr=2e-3)
    training = TrialTrainer(task)
    training.run_epoch()
    assert (task.updaters["train"].steps, task.updaters["train"].skipped) == (2, 2)
    (scheduler,) = task.schedulers
    assert scheduler.optimizer is task.optimizers["network"]
    assert scheduler.last_epoch == 2
    assert task.optimizers["network"].param_groups[0]["lr"] == pytest.approx(2e-3 * 3 / 20)


# Epochs and tasks


@pytest.mark.parametrize(
    ("epochs", "expected"), [(5, [0, 1, 2, 3, 4]), (7, [0, 0, 1, 2, 2, 3, 4]), (10, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4])]
)
def test_each_task_has_as_many_epochs_or_one_more(epochs: int, expected: list[int]) -> None:
    task = liquid(Watched, epochs=epochs, samples=8)
    training = TrialTrainer(task)
    learned, rows = [], []
    for _ in range(epochs):
        training.run_epoch()
        learned.append(task.learning)
        rows.append(len(task.matrix.rows))
    assert learned == expected
    assert rows == [2 + number for number in expected]
    assert all(0 <= score <= 1 for row in task.matrix.rows for score in row)
