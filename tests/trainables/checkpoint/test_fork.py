"""A copy goes on with the weights, moments and counters of another trial, and with its own hyperparameters."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainables.toy_models import PRECISIONS, Cycled, Regression, RegressionConfig, identical, state, timeless
from tests.trainables.worker.local_worker import metrics, workers
from trainables import checkpoint
from trainables.training.trainer import TrialTrainer

STEPS = 4  # of the schedule of Regression: times 0.7 each


def trained(tmp_path: Any, epochs: int = 2, task: type = Regression, **settings: Any) -> dict[str, Any]:
    """The checkpoint of a trial after some epochs."""
    training = TrialTrainer(task(RegressionConfig(**{"epochs": 9, **settings})))
    for _ in range(epochs):
        training.run_epoch()
    training.save(tmp_path / "winner.pt")
    return checkpoint.load(tmp_path / "winner.pt")


def copied(saved: dict[str, Any], task: type = Regression, **settings: Any) -> TrialTrainer:
    training = TrialTrainer(task(RegressionConfig(**{"epochs": 9, **settings})))
    training.restore(deepcopy(saved), of_another=True)  # what was taken up is trained in place
    return training


def group(training: TrialTrainer) -> dict[str, Any]:
    return training.task.optimizers["adam"].param_groups[0]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_copy_with_the_same_hyperparameters_is_the_trial_that_it_copies(tmp_path, precision):
    settings = {"precision": precision, "ema_decay": 0.9, "dropout": 0.3, "accumulation": 2, "loss_scale_growth": 3}
    saved = trained(tmp_path, **settings)
    going_on = TrialTrainer(Regression(RegressionConfig(epochs=9, **settings)))
    going_on.restore(deepcopy(saved))
    copy = copied(saved, **settings)
    for _ in range(2):
        first, second = going_on.run_epoch(), copy.run_epoch()
        assert first is not None
        assert second is not None
        assert identical(timeless(first), timeless(second))
    assert identical(state(copy), state(going_on))


def test_weights_moments_and_counters_come_from_the_other_trial(tmp_path):
    saved = trained(tmp_path, lr=1e-2)
    copy = copied(saved, lr=3e-2)
    updater = saved["updaters"]["train"]
    assert identical(copy.task.modules["model"].state_dict(), saved["modules"]["model"])
    assert identical(copy.task.optimizers["adam"].state_dict()["state"], updater["optimizers"]["adam"]["state"])
    assert (copy.epoch, copy.task.updaters["train"].steps) == (2, updater["steps"])
    assert copy.task.schedulers[0].last_epoch == updater["steps"]


def test_the_learning_rate_is_its_own_as_far_down_as_the_schedule_had_come(tmp_path):
    saved = trained(tmp_path, lr=1e-2)
    steps = saved["updaters"]["train"]["steps"]
    reached = 0.7 ** (steps // STEPS)
    assert reached < 0.5
    copy = copied(saved, lr=3e-2)
    assert group(copy)["lr"] == pytest.approx(3e-2 * reached)
    assert copy.task.schedulers[0].base_lrs == [3e-2]
    assert copy.task.schedulers[0].get_last_lr() == pytest.approx([3e-2 * reached])
    copy.run_epoch()
    steps = copy.task.updaters["train"].steps
    assert group(copy)["lr"] == pytest.approx(3e-2 * 0.7 ** (steps // STEPS))


def test_a_copy_of_a_copy_scales_from_the_rate_that_the_copy_was_built_with(tmp_path):
    first = copied(trained(tmp_path, lr=1e-2), lr=3e-2)
    first.run_epoch()
    first.save(tmp_path / "second.pt")
    second = copied(checkpoint.load(tmp_path / "second.pt"), lr=5e-3)
    steps = second.task.updaters["train"].steps
    assert group(second)["lr"] == pytest.approx(5e-3 * 0.7 ** (steps // STEPS))


class Decayed(Regression):
    """The decay of the weights, and the length and the factor of the schedule, follow from what can be searched."""

    def build(self) -> None:
        super().build()
        optimizer = self.optimizers["adam"]
        optimizer.param_groups[0]["weight_decay"] = self.config.dropout
        self.schedulers = [
            torch.optim.lr_scheduler.StepLR(optimizer, step_size=self.config.batch_size, gamma=self.config.dropout)
        ]


def test_options_of_the_optimizer_and_of_the_schedule_are_its_own(tmp_path):
    copy = copied(trained(tmp_path, task=Decayed, dropout=0.5), Decayed, dropout=0.9, batch_size=8)
    assert group(copy)["weight_decay"] == 0.9
    assert (copy.task.schedulers[0].gamma, copy.task.schedulers[0].step_size) == (0.9, 8)
    assert copy.task.schedulers[0].last_epoch > 0


class Warmed(Regression):
    """Schedules within a schedule, and one that follows the objective."""

    def build(self) -> None:
        super().build()
        optimizer, schedule = self.optimizers["adam"], torch.optim.lr_scheduler
        warmup = schedule.LinearLR(optimizer, start_factor=0.1, total_iters=3)
        cosine = schedule.CosineAnnealingLR(optimizer, T_max=10 * self.config.accumulation)
        plateau = schedule.ReduceLROnPlateau(optimizer, factor=0.5, patience=self.config.batch_size)
        self.schedulers = [schedule.SequentialLR(optimizer, [warmup, cosine], milestones=[3]), plateau]


def test_schedules_within_a_schedule_keep_their_place_and_their_own_settings(tmp_path):
    saved = trained(tmp_path, task=Warmed, lr=1e-2)
    copy = copied(saved, Warmed, lr=2e-2, accumulation=2, batch_size=4)
    sequence, plateau = copy.task.schedulers
    cosine = sequence._schedulers[1]
    assert (cosine.T_max, cosine.base_lrs) == (20, [2e-2])
    assert sequence.last_epoch == saved["updaters"]["train"]["steps"]
    assert group(copy)["lr"] == pytest.approx(
        2 * saved["updaters"]["train"]["optimizers"]["adam"]["param_groups"][0]["lr"]
    )
    assert plateau.best == saved["plateaus"][0]["best"]
    assert copied(saved, Warmed, batch_size=8).task.schedulers[1].patience == 8
    copy.run_epoch()


def test_a_schedule_over_the_whole_trial_goes_on_to_its_end(tmp_path):
    copy = copied(trained(tmp_path, task=Cycled, lr=1e-2), Cycled, lr=2e-2)
    while copy.epoch < 9:
        copy.run_epoch()
    followed = copy.task.followed()
    assert followed["steps"] == followed["length"]
    assert followed["last_rate"] == pytest.approx(followed["end"])


@pytest.mark.parametrize("theirs", PRECISIONS)
@pytest.mark.parametrize("own", PRECISIONS)
def test_another_precision_trains_on(tmp_path, theirs, own):
    saved = trained(tmp_path, precision=theirs, loss_scale=256.0, loss_scale_growth=3)
    copy = copied(saved, precision=own, loss_scale=1024.0, loss_scale_growth=5)
    scale = copy.task.updaters["train"].loss_scale
    if own == "fp16":
        kept = theirs == "fp16"  # what it had grown to; else it begins with its own
        assert scale.value == (saved["updaters"]["train"]["loss_scale"]["scale"] if kept else 1024.0)
        assert scale.value != 256.0
        assert scale.growth_interval == 5
    else:
        assert scale is None
    before = copy.task.updaters["train"].steps
    report = copy.run_epoch()
    assert report is not None
    assert report["train/updates"] > before


def test_averages_go_on_with_their_own_decay_and_begin_where_there_were_none(tmp_path):
    saved = trained(tmp_path, ema_decay=0.9)
    ema = copied(saved, ema_decay=0.5).task.updaters["train"].ema
    assert ema.decay == 0.5
    assert identical(ema.state_dict(), saved["updaters"]["train"]["ema"])
    without = trained(tmp_path)
    fresh = copied(without, ema_decay=0.5).task.updaters["train"].ema
    assert fresh.updates == 0
    assert torch.equal(fresh.state_dict()["shadow"]["model.0.weight"], without["modules"]["model"]["0.weight"])
    assert copied(saved).task.updaters["train"].ema is None


class Chosen(Regression):
    """Which optimizer and which schedule it has is a hyperparameter."""

    def build(self) -> None:
        super().build()
        if self.config.dropout:
            parameters = self.modules["model"].parameters()
            optimizer = torch.optim.SGD(parameters, lr=self.config.lr, momentum=0.9)
            self.optimizers = {"adam": optimizer}
            self.schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def test_an_optimizer_or_a_schedule_of_another_kind_starts_anew(tmp_path):
    saved = trained(tmp_path, task=Chosen)
    copy = copied(saved, Chosen, dropout=0.1, lr=2e-2)
    assert copy.task.optimizers["adam"].state_dict()["state"] == {}
    assert (group(copy)["lr"], copy.task.schedulers[0].last_epoch) == (2e-2, 0)
    assert identical(copy.task.modules["model"].state_dict(), saved["modules"]["model"])
    copy.run_epoch()


def test_weights_of_another_shape_are_refused_with_what_to_do(tmp_path):
    saved = trained(tmp_path)
    with pytest.raises(
        ValueError, match=r"^model\.0\.weight of a copy must have the shape .*\(8, 3\), but got \(16, 3\)"
    ) as caught:
        copied(saved, width=16)
    assert "Fix the parameter that changes it with --set." in str(caught.value)


# In a worker


def test_a_copy_goes_on_from_the_trial_that_it_copies_with_its_own_hyperparameters(stretch):
    worker = workers()
    winner = list(worker.run(stretch(until=2)))[-1].checkpoint
    copy = replace(stretch(trial=1, epoch=2, until=3, start=winner, lr=5e-2, precision="bf16"), copied=winner)
    reports = list(worker.run(copy))
    assert [report.epoch for report in reports] == [3], reports
    state = checkpoint.load(Path(reports[0].checkpoint))
    (group,) = state["updaters"]["train"]["optimizers"]["adam"]["param_groups"]
    assert group["initial_lr"] == 5e-2
    assert state["config"]["precision"] == "bf16"
    assert state["updaters"]["train"]["loss_scale"] is None


@pytest.mark.parametrize("way", ["in memory", "from its checkpoint"])
def test_a_copy_that_has_trained_goes_on_as_any_trial(stretch, way):
    worker = workers()
    winner = list(worker.run(stretch(until=1)))[-1].checkpoint
    whole, halves = (replace(stretch(trial=n, epoch=1, until=4, start=winner, lr=5e-2), copied=winner) for n in (1, 2))
    expected = metrics(list(workers().run(whole)))
    first = list(worker.run(replace(halves, until=2)))
    if way == "from its checkpoint":
        worker = workers()
    second = list(worker.run(replace(halves, epoch=2, checkpoints=(first[-1].checkpoint, winner, None))))
    assert identical(metrics(first + second), expected)


def test_a_copy_whose_own_checkpoint_is_broken_begins_again_as_it_began(stretch):
    winner = list(workers().run(stretch(until=1)))[-1].checkpoint
    copy = replace(stretch(trial=1, epoch=1, until=2, start=winner, lr=5e-2), copied=winner)
    expected = list(workers().run(copy))
    own = Path(expected[-1].checkpoint)
    own.write_bytes(b"torn")
    again = list(workers().run(replace(copy, epoch=2, until=3, checkpoints=(str(own), winner, None))))
    assert [report.epoch for report in again] == [2, 3]
    assert identical(metrics(again[:1]), metrics(expected))


def test_a_copy_whose_weights_have_another_shape_fails_with_what_to_do(stretch):
    winner = list(workers().run(stretch(until=1)))[-1].checkpoint
    (report,) = workers().run(replace(stretch(trial=1, epoch=1, until=2, start=winner, width=16), copied=winner))
    assert report.outcome == "failed"
    assert report.reason.endswith("Fix the parameter that changes it with --set.")
