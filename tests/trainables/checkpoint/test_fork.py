"""Continue with weights, moments and counters of another trial, and one's own hyperparameters."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from searchlight.trainables import checkpoint
from searchlight.trainables.training.trainer import TrialTrainer
from tests.trainables.toy_models import Regression, identical, state
from tests.trainables.training.trials import make_trial, run_epochs
from tests.trainables.worker.local_worker import metrics, workers

STEPS = 4  # of the schedule of Regression: times 0.7 each


@pytest.fixture
def train(tmp_path):
    """Makes the checkpoint of a trial after two epochs."""

    def train(task: type = Regression, **settings: Any) -> dict[str, Any]:
        training = make_trial(task, **{"epochs": 9, **settings})
        run_epochs(training, 2)
        training.save(tmp_path / "winner.pt")
        return checkpoint.load(tmp_path / "winner.pt")

    return train


def copy_trial(saved: dict[str, Any], task: type = Regression, **settings: Any) -> TrialTrainer:
    training = make_trial(task, **{"epochs": 9, **settings})
    training.restore(deepcopy(saved), of_another=True)  # what was taken up is trained in place
    return training


def group(training: TrialTrainer) -> dict[str, Any]:
    return training.task.optimizers["adam"].param_groups[0]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_copy_with_equal_hyperparameters_is_its_original(train, precision):
    settings = {"precision": precision, "ema_decay": 0.9, "dropout": 0.3, "accumulation": 2, "loss_scale_growth": 3}
    saved = train(**settings)
    original, copy = make_trial(Regression, **settings), copy_trial(saved, **settings)
    original.restore(deepcopy(saved))
    for _ in range(2):
        assert identical(run_epochs(copy, 1), run_epochs(original, 1))
    assert identical(state(copy), state(original))


def test_copy_has_its_own_learning_rate_scaled_by_the_schedule(train, tmp_path):
    saved = train(lr=1e-2)
    updater = saved["updaters"]["train"]
    assert (reached := 0.7 ** (updater["steps"] // STEPS)) < 0.5
    copy = copy_trial(saved, lr=3e-2)
    schedule = copy.task.schedulers[0]
    assert identical(copy.task.modules["model"].state_dict(), saved["modules"]["model"])
    assert identical(copy.task.optimizers["adam"].state_dict()["state"], updater["optimizers"]["adam"]["state"])
    assert (copy.epoch, copy.task.updaters["train"].steps) == (2, updater["steps"])
    assert (schedule.last_epoch, schedule.base_lrs) == (updater["steps"], [3e-2])
    assert schedule.get_last_lr() == pytest.approx([3e-2 * reached])
    assert group(copy)["lr"] == pytest.approx(3e-2 * reached)
    copy.run_epoch()
    reached = 0.7 ** (copy.task.updaters["train"].steps // STEPS)
    assert group(copy)["lr"] == pytest.approx(3e-2 * reached)
    copy.save(tmp_path / "second.pt")
    second = copy_trial(checkpoint.load(tmp_path / "second.pt"), lr=5e-3)
    assert group(second)["lr"] == pytest.approx(5e-3 * reached), "a copy of a copy scales from the copy's own rate"


class Warmed(Regression):
    """Schedules within a schedule, one that follows the objective, and a decay of the weights that can be searched."""

    def build(self) -> None:
        super().build()
        optimizer, schedule = self.optimizers["adam"], torch.optim.lr_scheduler
        warmup = schedule.LinearLR(optimizer, start_factor=0.1, total_iters=3)
        cosine = schedule.CosineAnnealingLR(optimizer, T_max=10 * self.config.accumulation)
        plateau = schedule.ReduceLROnPlateau(optimizer, factor=0.5, patience=self.config.batch_size)
        optimizer.param_groups[0]["weight_decay"] = self.config.dropout
        self.schedulers = [schedule.SequentialLR(optimizer, [warmup, cosine], milestones=[3]), plateau]


def test_nested_schedules_keep_their_place_and_own_settings(train):
    saved = train(Warmed, lr=1e-2)
    copy = copy_trial(saved, Warmed, lr=2e-2, accumulation=2, batch_size=4, dropout=0.9)
    sequence, plateau = copy.task.schedulers
    cosine = sequence._schedulers[1]
    updater = saved["updaters"]["train"]
    assert (cosine.T_max, cosine.base_lrs) == (20, [2e-2])
    assert group(copy)["weight_decay"] == 0.9
    assert sequence.last_epoch == updater["steps"]
    assert group(copy)["lr"] == pytest.approx(2 * updater["optimizers"]["adam"]["param_groups"][0]["lr"])
    assert plateau.best == saved["plateaus"][0]["best"]
    assert copy_trial(saved, Warmed, batch_size=8).task.schedulers[1].patience == 8
    copy.run_epoch()


class Unfreezing(Regression):
    """Trains its first layer, too, from the second epoch on. It has a schedule if it accumulates."""

    def build(self) -> None:
        super().build()
        layers = self.modules["model"]
        settings = {"lr": self.config.lr, "weight_decay": self.config.dropout}
        self.optimizers["adam"] = torch.optim.AdamW(layers[1:].parameters(), **settings)
        schedule = torch.optim.lr_scheduler.StepLR(self.optimizers["adam"], step_size=1000)
        self.schedulers = [schedule] * (self.config.accumulation > 1)
        self.added = {"params": [*layers[0].parameters()], **settings, "lr": 0.1 * self.config.lr}
        layers[0].requires_grad_(False)

    def unfreeze(self) -> None:
        self.modules["model"][0].requires_grad_(True)
        if len(self.optimizers["adam"].param_groups) == 1:
            self.optimizers["adam"].add_param_group(self.added)

    def train_batches(self, epoch: int) -> Iterator[Any]:
        if epoch:
            self.unfreeze()
        return super().train_batches(epoch)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.unfreeze()  # it was saved after two epochs
        super().load_state_dict(state)


@pytest.mark.parametrize("accumulation", [1, 2], ids=["constant", "schedule"])
def test_group_that_training_added_is_copied_with_own_settings(train, accumulation):
    saved = train(Unfreezing, lr=1e-2, dropout=0.1, accumulation=accumulation)
    copy = copy_trial(saved, Unfreezing, lr=3e-2, dropout=0.2, accumulation=accumulation)
    groups = copy.task.optimizers["adam"].param_groups
    assert [each["lr"] for each in groups] == pytest.approx([3e-2, 3e-3])
    assert [each["weight_decay"] for each in groups] == [0.2, 0.2]
    assert identical(
        copy.task.optimizers["adam"].state_dict()["state"], saved["updaters"]["train"]["optimizers"]["adam"]["state"]
    )
    for schedule in copy.task.schedulers:
        assert schedule.get_last_lr() == pytest.approx([3e-2, 3e-3])
    copy.run_epoch()


@pytest.mark.parametrize(
    ("theirs", "own"), [("fp16", "fp16"), ("fp32", "fp16"), ("fp16", "bf16"), ("bf16", "fp32"), ("bf16", "fp16")]
)
def test_copy_trains_on_in_another_precision(train, theirs, own):
    saved = train(precision=theirs, loss_scale=256.0, loss_scale_growth=3)
    copy = copy_trial(saved, precision=own, loss_scale=1024.0, loss_scale_growth=5)
    scale = copy.task.updaters["train"].loss_scale
    if own == "fp16":
        kept = theirs == "fp16"  # what it had grown to; else it begins with its own
        assert scale.value == (saved["updaters"]["train"]["loss_scale"]["scale"] if kept else 1024.0)
        assert scale.value != 256.0
        assert scale.growth_interval == 5
    else:
        assert scale is None
    before = copy.task.updaters["train"].steps
    assert copy.run_epoch()["train/updates"] > before


class Chosen(Regression):  # which optimizer and which schedule it has is a hyperparameter
    def build(self) -> None:
        super().build()
        if self.config.dropout:
            optimizer = torch.optim.SGD(self.modules["model"].parameters(), lr=self.config.lr, momentum=0.9)
            self.optimizers = {"adam": optimizer}
            self.schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def test_optimizer_or_schedule_of_another_kind_starts_anew(train):
    saved = train(Chosen)
    copy = copy_trial(saved, Chosen, dropout=0.1, lr=2e-2)
    assert copy.task.optimizers["adam"].state_dict()["state"] == {}
    assert (group(copy)["lr"], copy.task.schedulers[0].last_epoch) == (2e-2, 0)
    assert identical(copy.task.modules["model"].state_dict(), saved["modules"]["model"])
    copy.run_epoch()


@pytest.fixture
def copy_of(stretch):
    """Makes segments of copies of a trial that was trained for an epoch."""
    winner = list(workers().run(stretch(until=1)))[-1].checkpoint

    def make(trial: int = 1, until: int = 4, **settings: Any) -> Any:
        settings = {"trial": trial, "epoch": 1, "until": until, "start": winner, "lr": 5e-2, **settings}
        return replace(stretch(**settings), copied=winner)

    return make


def test_worker_copies_a_trial_with_its_own_hyperparameters(copy_of):
    (report,) = workers().run(copy_of(until=2, precision="bf16"))
    assert report.epoch == 2
    state = checkpoint.load(Path(report.checkpoint))
    (group,) = state["updaters"]["train"]["optimizers"]["adam"]["param_groups"]
    assert group["initial_lr"] == 5e-2
    assert state["config"]["precision"] == "bf16"
    assert state["updaters"]["train"]["loss_scale"] is None


@pytest.mark.parametrize("way", ["in memory", "from its checkpoint", "broken checkpoint"])
def test_copy_that_has_trained_continues_exactly(copy_of, way):
    expected = metrics(list(workers().run(copy_of(2))))
    worker, segment = workers(), copy_of()
    first = list(worker.run(replace(segment, until=2)))
    if way != "in memory":
        worker = workers()
    if way == "broken checkpoint":  # it begins again as it began
        Path(first.pop().checkpoint).write_bytes(b"torn")
    own = segment.folder + "/epoch-2-a.pt"
    second = list(worker.run(replace(segment, epoch=2, checkpoints=(own, *segment.checkpoints, None))))
    assert identical(metrics(first + second), expected)


def test_copy_with_weights_of_another_shape_fails_its_trial(copy_of):
    (report,) = workers().run(copy_of(until=2, width=16))
    assert report.outcome == "failed"
    message = "ValueError: model.0.weight of a copy must have the shape that it has in the trial that is copied, (8, 3)"
    assert report.reason.startswith(f"{message}, but got (16, 3)")
    assert report.reason.endswith("Fix the parameter that changes it with --set.")
