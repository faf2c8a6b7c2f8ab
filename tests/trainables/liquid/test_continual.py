"""Show what is replayed and held when one task follows another in a trial, and in which window."""

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from searchlight.models.data import Samples
from searchlight.models.liquid.losses import compute_losses
from searchlight.trainables.training.trainer import TrialTrainer
from tests.trainables.liquid.small_liquid import Watched, liquid, trained
from tests.trainables.toy_models import recorded_gradients


@pytest.mark.parametrize(("fraction", "balanced"), [(0.25, True), (0.5, False), (0.75, True)])
def test_micro_batch_replays_the_configured_share(fraction, balanced):  # C101
    task = liquid(Watched, replay={"fraction": fraction, "balanced": balanced}, epochs=5)
    training = TrialTrainer(task)
    for epoch in range(5):
        training.run_epoch()
        recalled = torch.zeros(5, dtype=torch.long)
        for batch in task.batches:
            new, old = batch.tasks.split([8, batch.recalled])
            assert (new == epoch).all()
            assert (old < epoch).all()
            each = torch.bincount(old, minlength=5)
            recalled += each
            assert abs(batch.recalled - (8 * fraction / (1 - fraction) if epoch else 0)) < 1
            if balanced and epoch:
                assert each[:epoch].max() - each[:epoch].min() <= 1
        if epoch:
            assert abs(recalled.sum() / (32 + recalled.sum()) - fraction) < 0.01
            assert recalled[:epoch].all()
        task.batches.clear()


@pytest.mark.parametrize(("data", "steps", "accumulation"), [("digits", 1, 1), ("digits", 1, 3), ("series", 8, 2)])
def test_replayed_samples_count_in_the_weight_of_a_window(data, steps, accumulation):  # C101
    task = liquid(Watched, data=data, accumulation=accumulation, replay={"fraction": 0.5}, epochs=5)
    trained(task, 2)
    one = [8 * min(accumulation, 4 - start) * steps for start in range(0, 4, accumulation)]
    assert [report.weight for report in task.reports] == [*one, *(2 * weight for weight in one)]


def rows(samples: Samples) -> list[bytes]:
    return [row.numpy().tobytes() for row in samples.inputs]


@pytest.mark.parametrize("balanced", [True, False])
def test_only_training_rows_of_tasks_so_far_are_trained_on(balanced):  # C101
    task = liquid(Watched, samples=24, epochs=10, replay={"size": 60, "balanced": balanced})
    training = TrialTrainer(task)
    stream = task.stream
    own = [set(rows(stream.select_rows(number, torch.arange(stream.count_sequences(number))))) for number in range(5)]
    tested = {row for tests in stream.tests for samples in tests.values() for row in rows(samples)}
    known: list[set[bytes]] = [set() for _ in range(5)]
    for epoch in range(10):
        training.run_epoch()
        for batch in task.batches:
            numbered = list(zip(batch.tasks.tolist(), rows(batch.samples), strict=True))
            replayed = len(numbered) - batch.recalled
            for number, row in numbered[:replayed]:
                assert number == epoch // 2
                assert row in own[number] - tested
                known[number].add(row)
            assert all(number < epoch // 2 and row in known[number] for number, row in numbered[replayed:])
        task.batches.clear()
    assert all(24 < len(each) < 100 for each in known)
    assert [len(each & other) for each in own for other in own if each is not other] == [0] * 20


def test_answers_are_kept_from_when_their_task_was_learned():
    task = liquid(Watched, epochs=5, replay={"logits_weight": 1.0})
    training = TrialTrainer(task)
    assert "train/logits_distance" not in training.run_epoch()
    assert training.run_epoch()["train/logits_distance"] > 0
    assert all(batch.logits is not None for batch in task.batches[4:])
    first = task.batches[4]  # of the second task: nothing has moved since the first one ended
    assert first.logits.shape == (first.recalled, 10)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_penalty_counts_once_in_the_step_of_a_window(accumulation):  # C100
    """The gradient of the step is that of the task and that of the penalty, once, however the window is cut."""
    strong = {"method": "ewc", "ewc_strength": 1e4, "fisher_samples": 40}
    task = liquid(consolidation=strong, epochs=5, accumulation=accumulation, max_grad_norm=None, weight_decay=0.0)
    trained(task)
    window = list(task.train_batches(1))[:accumulation]
    parameters = [p for group in task.optimizers["network"].param_groups for p in group["params"]]
    with torch.no_grad():
        for parameter in parameters:
            parameter += 0.01 * torch.randn_like(parameter)
    whole = Samples.join([batch.samples for batch in window])
    allowed = task.stream.allowed[torch.cat([batch.tasks for batch in window])]
    outputs = task.network(whole.inputs).outputs
    own = torch.autograd.grad(compute_losses("labels", outputs, whole.targets, allowed).mean(), parameters)
    held = torch.autograd.grad(task.past.compute_penalty(), parameters)
    assert parameters_to_vector(held).norm() > 0.1 * parameters_to_vector(own).norm()
    steps = recorded_gradients(task.optimizers["network"])
    task.update(window)
    (given,) = steps
    for got, first, second in zip(given, own, held, strict=True):
        assert torch.allclose(got, first + second, rtol=1e-3, atol=1e-5)


def test_skipped_window_changes_neither_path_nor_schedule():  # C102
    class Spoilt(Watched):
        spoilt = 2

    task = liquid(Spoilt, consolidation={"method": "si"}, warmup=1.0, epochs=5, lr=2e-3)
    training = TrialTrainer(task)
    training.run_epoch(lambda: len(task.reports) == 2)
    path = task.past.hold.state_dict()["path"]
    assert not any(each.any() for each in path.values())
    training.run_epoch()
    assert (task.updaters["train"].steps, task.updaters["train"].skipped) == (2, 2)
    assert any(each.any() for each in task.past.hold.state_dict()["path"].values())
    assert task.schedulers[0].last_epoch == 2
    assert task.optimizers["network"].param_groups[0]["lr"] == pytest.approx(2e-3 * 3 / 20)


@pytest.mark.parametrize(("schedule", "warmup"), [("constant", 0.02), ("constant", 1.0), ("cosine", 0.5)])
def test_learning_rate_is_never_0_and_peaks_after_warmup(schedule, warmup):  # C102
    task = liquid(warmup=warmup, schedule=schedule, epochs=5, accumulation=3, lr=2e-3, samples=40)
    training, rates = TrialTrainer(task), []
    optimizer = task.optimizers["network"]
    optimizer.register_step_pre_hook(lambda *_: rates.append([group["lr"] for group in optimizer.param_groups]))
    for _ in range(5):
        training.run_epoch()
    matrices, others = zip(*rates, strict=True)
    assert matrices == others
    assert len(others) == 2 * 5
    assert min(others) > 0
    assert max(others) == pytest.approx(2e-3)
    assert others.index(max(others)) == max(1, round(2 * 5 * warmup)) - 1


@pytest.mark.parametrize(("epochs", "expected"), [(7, [0, 0, 1, 2, 2, 3, 4]), (10, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4])])
def test_each_task_has_as_many_epochs_or_one_more(epochs, expected):
    task = liquid(epochs=epochs, samples=8)
    training = TrialTrainer(task)
    learned = []
    for _ in range(epochs):
        training.run_epoch()
        learned.append((task.learning, len(task.matrix.rows)))
    assert learned == [(number, 2 + number) for number in expected]
    assert all(0 <= score <= 1 for row in task.matrix.rows for score in row)
