"""Learning-rate schedules follow the updates that were applied, or the objective."""

import warnings
from typing import Any

import pytest
import torch

from tests.trainables.toy_models import (
    PRECISIONS,
    Cycled,
    Regression,
    RegressionConfig,
    identical,
    slope,
    state,
    timeless,
)
from trainables.context import Context
from trainables.precision import Diverged
from trainables.task import TaskConfig
from trainables.training.trainer import TrialTrainer, train
from trainables.update import Updater

# Over the whole trial


def cycle(**settings: Any) -> dict[str, float]:
    task = Cycled(RegressionConfig(**settings))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as of a schedule that is stepped before its optimizer
        list(train(task))
    return task.followed()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("accumulation", "length"), [(1, 18), (2, 9), (4, 6), (6, 3), (50, 3)])
def test_a_schedule_over_the_whole_trial_reaches_its_end(precision, accumulation, length):  # F59, F60
    followed = cycle(precision=precision, accumulation=accumulation, loss_scale=16.0)
    assert followed["length"] == followed["steps"] == followed["updates"] == length
    assert followed["last_rate"] == pytest.approx(followed["end"])


@pytest.mark.parametrize("accumulation", [1, 4])
def test_a_schedule_over_the_whole_trial_is_not_overrun_and_waits_for_skipped_windows(accumulation):  # F59, F60
    followed = cycle(precision="fp16", accumulation=accumulation, loss_scale=2.0**24, epochs=9)
    assert 0 < followed["skipped"] < followed["length"]
    assert followed["steps"] == followed["updates"] == followed["length"] - followed["skipped"]
    assert followed["first_rate"] == pytest.approx(followed["start"])


@pytest.mark.parametrize(
    ("world_size", "samples", "batch_size"), [(1, 22, 4), (1, 24, 4), (2, 22, 4), (2, 23, 4), (2, 3, 8), (3, 1, 1)]
)
def test_micro_batches_are_those_of_the_rank_that_has_most(world_size, samples, batch_size):  # F60
    contexts = [Context(rank=rank, world_size=world_size) for rank in range(world_size)]
    counts = [len(list(context.shard(torch.arange(samples), batch_size))) for context in contexts]
    assert {context.micro_batches(samples, batch_size) for context in contexts} == {max(counts)}


def test_the_updates_of_a_trial_count_the_shorter_window_at_the_end_of_each_epoch():  # F60
    assert TaskConfig(epochs=5, accumulation=4).total_updates(micro_batches=9) == 15
    assert TaskConfig(epochs=5, accumulation=4).total_updates(micro_batches=8) == 10
    assert TaskConfig(epochs=5, accumulation=4).total_updates(micro_batches=1) == 5


# By the objective


class Plateau(Regression):
    """An objective that improves as `losses` says, and a learning rate that is cut where it does not."""

    losses = (3.0, 2.0, 2.0, 2.0, 1.0)

    def build(self) -> None:
        super().build()
        optimizer = self.optimizers["adam"]
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        self.schedulers = [self.plateau]
        self.epoch = 0

    def train_batches(self, epoch: int) -> Any:
        self.epoch = epoch
        yield from super().train_batches(epoch)

    def evaluate(self) -> dict[str, Any]:
        rate = self.optimizers["adam"].param_groups[0]["lr"]
        return {**super().evaluate(), "val/loss": self.losses[self.epoch], "val/rate": rate}


CONFIG = RegressionConfig(epochs=5, lr=0.08)


def test_a_plateau_is_judged_once_per_epoch_by_the_objective():  # F61
    task = Plateau(CONFIG)
    rates = [report["val/rate"] for report in train(task)]
    assert rates == [0.08, 0.08, 0.08, 0.04, 0.02]  # cut after the third and the fourth epoch
    assert task.plateau.last_epoch == 5
    assert task.plateau.best == 1.0


def test_a_plateau_is_not_judged_by_an_objective_that_is_not_finite():  # F61
    class Lost(Plateau):
        losses = (3.0, float("nan"))

    task = Lost(CONFIG)
    training = TrialTrainer(task)
    training.run_epoch()
    with pytest.raises(Diverged):
        training.run_epoch()
    assert (task.plateau.last_epoch, task.plateau.best, task.plateau.num_bad_epochs) == (1, 3.0, 0)


@pytest.mark.parametrize("epochs", [1, 2, 3, 4])
@pytest.mark.parametrize("windows", [0, 2])
def test_a_plateau_goes_on_from_a_checkpoint(tmp_path, epochs, windows):  # F61
    straight = TrialTrainer(Plateau(CONFIG))
    expected = [timeless(straight.run_epoch()) for _ in range(5)]
    at_the_end = state(straight)
    first = TrialTrainer(Plateau(CONFIG))
    for _ in range(epochs):
        first.run_epoch()
    if windows:
        assert first.run_epoch(lambda: first.windows == windows) is None
    first.save(tmp_path / "state.pt")
    second = TrialTrainer(Plateau(CONFIG))
    second.load(tmp_path / "state.pt")
    assert second.task.plateau.state_dict() == first.task.plateau.state_dict()
    assert identical([timeless(second.run_epoch()) for _ in range(5 - epochs)], expected[epochs:])
    assert identical(state(second), at_the_end)
    assert second.task.plateau.state_dict() == straight.task.plateau.state_dict()


def test_an_update_does_not_step_a_plateau():  # F61
    weight, _ = slope()
    optimizer = torch.optim.SGD([weight], lr=1.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(ValueError, match=r"schedulers must step once per update, but got ReduceLROnPlateau\. Step it"):
        Updater({"sgd": optimizer}, schedulers=[plateau])
