"""Step learning-rate schedules by applied updates, or by the objective."""

import math
import warnings
from typing import Any

import pytest
import torch

from searchlight.trainables.precision import Diverged
from searchlight.trainables.task import TaskConfig
from searchlight.trainables.update import Updater
from tests.trainables.toy_models import Cycled, Regression, slope, state
from tests.trainables.training.trials import assert_continues, load_trial, make_trial, run_epochs


def run_cycle(**settings: Any) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as of a schedule that is stepped before its optimizer
        training = make_trial(Cycled, **settings)
        run_epochs(training, training.task.config.epochs)
    return training.task.followed()


@pytest.mark.parametrize(
    ("precision", "accumulation", "length"), [("fp32", 1, 18), ("bf16", 4, 6), ("fp16", 6, 3), ("fp32", 50, 3)]
)
def test_schedule_of_a_whole_trial_reaches_its_end(precision, accumulation, length):  # F59, F60
    followed = run_cycle(precision=precision, accumulation=accumulation, loss_scale=16.0)
    assert followed["length"] == followed["steps"] == followed["updates"] == length
    assert followed["last_rate"] == pytest.approx(followed["end"])


@pytest.mark.parametrize("accumulation", [1, 4])
def test_schedule_waits_for_skipped_windows(accumulation):
    followed = run_cycle(precision="fp16", accumulation=accumulation, loss_scale=2.0**24, epochs=9)
    assert 0 < followed["skipped"] < followed["length"]
    assert followed["steps"] == followed["updates"] == followed["length"] - followed["skipped"]
    assert followed["first_rate"] == pytest.approx(followed["start"])


@pytest.mark.parametrize(("micro_batches", "updates"), [(9, 15), (8, 10), (1, 5)])
def test_total_updates_count_the_short_window_of_each_epoch(micro_batches, updates):
    assert TaskConfig(epochs=5, accumulation=4).total_updates(micro_batches) == updates


class Plateau(Regression):
    """An objective that improves as `losses` says, and a learning rate that is cut where it does not."""

    losses = (3.0, 2.0, 2.0, 2.0, 1.0)

    def build(self) -> None:
        super().build()
        optimizer = self.optimizers["adam"]
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        self.schedulers = [self.plateau]

    def train_batches(self, epoch: int) -> Any:
        self.epoch = epoch
        yield from super().train_batches(epoch)

    def evaluate(self) -> dict[str, Any]:
        rate = self.optimizers["adam"].param_groups[0]["lr"]
        return {**super().evaluate(), "val/loss": self.losses[self.epoch], "val/rate": rate}


def test_plateau_is_judged_once_per_epoch_by_the_objective():  # F61
    training = make_trial(Plateau, lr=0.08)
    rates = [report["val/rate"] for report in run_epochs(training, 5)]
    assert rates == [0.08, 0.08, 0.08, 0.04, 0.02]  # cut after the third and the fourth epoch
    assert training.task.plateau.last_epoch == 5
    assert training.task.plateau.best == 1.0


def test_plateau_ignores_an_objective_that_is_not_finite():
    class Lost(Plateau):
        losses = (3.0, math.nan)

    training = make_trial(Lost)
    training.run_epoch()
    with pytest.raises(Diverged, match="val/loss is nan after epoch 2"):
        training.run_epoch()
    plateau = training.task.plateau
    assert (plateau.last_epoch, plateau.best, plateau.num_bad_epochs) == (1, 3.0, 0)


@pytest.mark.parametrize(("epochs", "windows"), [(1, 0), (3, 2)])
def test_plateau_continues_from_a_checkpoint(tmp_path, epochs, windows):
    straight, first = make_trial(Plateau, lr=0.08), make_trial(Plateau, lr=0.08)
    expected = run_epochs(straight, 5), state(straight)
    run_epochs(first, epochs)
    if windows:
        assert first.run_epoch(lambda: first.windows == windows) is None
    first.save(tmp_path / "state.pt")
    second = load_trial(tmp_path / "state.pt", Plateau, lr=0.08)
    assert second.task.plateau.state_dict() == first.task.plateau.state_dict()
    assert_continues(second, expected)
    assert second.task.plateau.state_dict() == straight.task.plateau.state_dict()


def test_updater_with_a_plateau_raises_value_error():
    weight, _ = slope()
    optimizer = torch.optim.SGD([weight], lr=1.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(ValueError, match=r"schedulers must step once per update, but got ReduceLROnPlateau\. Step it"):
        Updater({"sgd": optimizer}, schedulers=[plateau])
