"""A trial that is saved between any two windows and goes on elsewhere is the trial that was never interrupted."""

import itertools
import math
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from tests.trainables.toy_models import (
    FULL,
    Adversaries,
    Augmented,
    Endless,
    RegressionConfig,
    every_precision,
    identical,
    scramble,
    state,
    timeless,
)
from trainables import checkpoint
from trainables.checkpoint import CheckpointError
from trainables.precision import Diverged
from trainables.task import TaskConfig
from trainables.training.trainer import TrialTrainer


class OwnOrder(Augmented):
    """Draws the order of its data from torch's global generator."""

    def train_batches(self, epoch: int) -> Iterator[Any]:
        for indices in torch.randperm(self.config.size).split(self.config.batch_size):
            yield self.inputs[indices] + 0.1 * torch.randn(len(indices), 3), self.targets[indices]


class Noisy(TensorDataset):
    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        inputs, targets = super().__getitem__(index)
        return inputs + 0.1 * torch.randn(3), targets


class Prefetched(Augmented):
    """Its batches come from worker processes that are far ahead of the training."""

    def train_batches(self, epoch: int) -> Iterator[Any]:
        data = Noisy(self.inputs, self.targets)
        yield from DataLoader(data, self.config.batch_size, shuffle=True, num_workers=2, prefetch_factor=4)


class Streamed(Endless, Augmented):
    pass


def config_of(task: type[Any], **settings: Any) -> TaskConfig:
    return RegressionConfig(**{**FULL, **settings}) if task is not Adversaries else TaskConfig(accumulation=1)


def after(training: TrialTrainer, window: int) -> Callable[[], bool]:
    return lambda: training.windows >= window


def stopped(task: type[Any], config: TaskConfig, epoch: int, window: int) -> TrialTrainer:
    """A trial that was stopped after so many windows of the epoch after `epoch`."""
    training = TrialTrainer(task(config))
    for _ in range(epoch):
        training.run_epoch()
    assert training.run_epoch(after(training, window)) is None
    assert (training.epoch, training.windows) == (epoch, window)
    return training


def epochs_of(training: TrialTrainer, count: int) -> list[dict[str, float]]:
    return [timeless(training.run_epoch()) for _ in range(count)]


def uninterrupted(task: type[Any], config: TaskConfig, count: int) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """The reports of the first epochs, and what the trial is afterwards."""
    training = TrialTrainer(task(config))
    return epochs_of(training, count), state(training)


def resume_elsewhere(task: type[Any], path: Path, precision: str, count: int) -> Any:
    """What a process does that knows nothing but the file."""
    torch.set_num_threads(1)
    training = TrialTrainer(task(config_of(task, precision=precision)))
    training.load(path)
    return epochs_of(training, count), state(training)


# Between any two windows


@every_precision
@pytest.mark.parametrize("window", [0, 1, 2, 3])
@pytest.mark.parametrize("epoch", [0, 1])
def test_a_trial_goes_on_bit_for_bit_from_the_middle_of_an_epoch(tmp_path, precision, epoch, window):  # F66, H76, C50
    config = config_of(Augmented, precision=precision)
    expected, at_the_end = uninterrupted(Augmented, config, 3)
    first = stopped(Augmented, config, epoch, window)
    first.save(tmp_path / "midway.pt")
    held = state(first)
    scramble()
    second = TrialTrainer(Augmented(config))
    second.load(tmp_path / "midway.pt")
    assert identical(state(second), held)
    assert identical(epochs_of(second, 3 - epoch), expected[epoch:])
    assert identical(state(second), at_the_end)


@pytest.mark.parametrize("saving", [True, False], ids=["saved", "not-saved"])
def test_a_stopped_trial_goes_on_in_memory_whether_it_was_saved_or_not(tmp_path, saving):  # H76
    config = config_of(Augmented, precision="fp16")
    expected, at_the_end = uninterrupted(Augmented, config, 2)
    training = stopped(Augmented, config, 0, 1)
    if saving:
        before = state(training)
        training.save(tmp_path / "midway.pt")
        assert identical(state(training), before)
    assert training.run_epoch(after(training, 2)) is None  # and is stopped again
    assert identical(epochs_of(training, 2), expected)
    assert identical(state(training), at_the_end)


def test_a_trial_is_saved_resumed_and_saved_again_at_every_window(tmp_path):  # H76
    config = config_of(Augmented, precision="fp16")
    expected, at_the_end = uninterrupted(Augmented, config, 2)
    reports: list[dict[str, float]] = []
    for _ in range(20):
        training = TrialTrainer(Augmented(config))
        if (tmp_path / "midway.pt").exists():
            training.load(tmp_path / "midway.pt")
        report = training.run_epoch(after(training, training.windows + 1))
        reports += [] if report is None else [timeless(report)]
        if len(reports) == 2:
            break
        training.save(tmp_path / "midway.pt")
    assert identical(reports, expected)
    assert identical(state(training), at_the_end)


@every_precision
def test_a_fresh_process_goes_on_bit_for_bit(tmp_path, precision):  # H76
    config = config_of(Augmented, precision=precision)
    expected, at_the_end = uninterrupted(Augmented, config, 3)
    stopped(Augmented, config, 1, 2).save(tmp_path / "midway.pt")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        arguments = (Augmented, tmp_path / "midway.pt", precision, 2)
        reports, reached = pool.apply_async(resume_elsewhere, arguments).get(timeout=120)
    assert identical(reports, expected[1:])
    assert identical(reached, at_the_end)


@pytest.mark.parametrize("window", [0, 1, 2])
@pytest.mark.parametrize("task", [OwnOrder, Prefetched, Streamed, Adversaries])
def test_the_next_window_is_the_next_one_wherever_the_data_come_from(tmp_path, task, window):  # H78
    config = config_of(task)
    expected, at_the_end = uninterrupted(task, config, 2)
    trained = stopped(task, config, 0, window)
    trained.save(tmp_path / "midway.pt")
    trained.close()
    scramble()
    resumed = TrialTrainer(task(config))
    resumed.load(tmp_path / "midway.pt")
    assert identical(epochs_of(resumed, 2), expected)
    assert identical(state(resumed), at_the_end)


@pytest.mark.parametrize("skipped", [1, 2])
def test_the_middle_of_an_epoch_after_skipped_windows_keeps_the_lower_scale(tmp_path, skipped):  # H81
    config = config_of(Augmented, precision="fp16", loss_scale=2.0**26)
    expected, at_the_end = uninterrupted(Augmented, config, 3)
    first = stopped(Augmented, config, 0, skipped)
    updater = first.task.updaters["train"]
    assert (updater.skipped, updater.consecutive_skips, updater.loss_scale.value) == (
        skipped,
        skipped,
        2**26 / 2**skipped,
    )
    first.save(tmp_path / "midway.pt")
    second = TrialTrainer(Augmented(config))
    second.load(tmp_path / "midway.pt")
    loaded = second.task.updaters["train"]
    assert identical(loaded.state_dict(), updater.state_dict())
    assert identical(epochs_of(second, 3), expected)
    assert identical(state(second), at_the_end)


def test_a_task_finds_its_state_of_the_epochs_start_when_batches_are_drawn_again(tmp_path):  # H76
    class Recording(Augmented):
        def train_batches(self, epoch: int) -> Iterator[Any]:
            found.append((epoch, self.seen, self.drawn))
            yield from super().train_batches(epoch)

    found: list[tuple[int, float, float]] = []
    config = config_of(Augmented)
    first = stopped(Recording, config, 1, 2)
    first.save(tmp_path / "midway.pt")
    second = TrialTrainer(Recording(config))
    second.load(tmp_path / "midway.pt")
    second.run_epoch()
    assert found == [(0, 0.0, 0.0), (1, 22.0, 6.0), (1, 22.0, 6.0)]
    assert (second.task.seen, second.task.drawn) == (44.0, 12.0)


def test_a_stop_in_the_middle_of_a_window_acts_after_it(tmp_path):  # H77, C51
    """There is no state between two micro-batches that a checkpoint could hold."""

    class Interrupted(Augmented):
        def loss(self, batch: Any) -> tuple[Tensor, int]:
            stopping.set()
            return super().loss(batch)

    stopping = threading.Event()
    config = config_of(Augmented, accumulation=4)
    expected, at_the_end = uninterrupted(Augmented, config, 1)
    training = TrialTrainer(Interrupted(config))
    assert training.run_epoch(stopping.is_set) is None
    assert (training.windows, training.task.updaters["train"].steps, training.task.seen) == (1, 1, 16)
    assert training.task.drawn == 4, "what is drawn and not trained would be lost"
    assert all(p.grad is None for p in training.task.modules["model"].parameters())
    training.save(tmp_path / "midway.pt")
    second = TrialTrainer(Augmented(config))
    second.load(tmp_path / "midway.pt")
    assert identical(epochs_of(second, 1), expected)
    assert identical(state(second), at_the_end)


# On its own, while training goes on


def test_an_epoch_saves_itself_while_it_goes_on_and_a_trial_goes_on_from_there(tmp_path):  # H85
    config = config_of(Augmented, precision="fp16", accumulation=1)
    expected, at_the_end = uninterrupted(Augmented, config, 2)
    first = TrialTrainer(Augmented(config))
    first.autosave = (tmp_path / "auto.pt", 0.0)
    assert first.run_epoch(after(first, 3)) is None
    first.save(tmp_path / "asked.pt")  # after the other one is written
    own, asked = (checkpoint.load(tmp_path / name) for name in ("auto.pt", "asked.pt"))
    for saved in (own, asked):
        saved["midway"].pop("seconds")
    assert identical(own, asked)
    first.autosave = None
    assert identical(epochs_of(first, 2), expected)
    second = TrialTrainer(Augmented(config))
    second.load(tmp_path / "auto.pt")
    assert second.windows == 3
    assert identical(epochs_of(second, 2), expected)
    assert identical(state(second), at_the_end)


def test_saving_itself_waits_for_its_time(tmp_path):
    training = TrialTrainer(Augmented(config_of(Augmented)))
    training.autosave = (tmp_path / "auto.pt", 3600.0)
    training.run_epoch()
    assert list(tmp_path.iterdir()) == []


def test_an_epoch_that_cannot_be_saved_is_an_error(tmp_path):  # H85
    (tmp_path / "file").write_text("")
    training = TrialTrainer(Augmented(config_of(Augmented, accumulation=1)))
    training.autosave = (tmp_path / "file" / "auto.pt", 0.0)
    with pytest.raises(OSError, match="file"):
        training.run_epoch()


# What is not saved, and what is not taken up


@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize("epoch_under_way", [False, True])
def test_a_weight_that_is_not_finite_never_replaces_a_good_one(tmp_path, value, epoch_under_way):  # H86
    path = tmp_path / "state.pt"
    training = TrialTrainer(Augmented(config_of(Augmented)))
    training.run_epoch()
    if epoch_under_way:
        training.run_epoch(after(training, 1))
    training.save(path)
    good = path.read_bytes()
    with torch.no_grad():
        training.task.modules["model"][4].weight[0, 3] = value
    with pytest.raises(Diverged, match=rf"model\.4\.weight is not finite after epoch 1, window {int(epoch_under_way)}"):
        training.save(path)
    assert path.read_bytes() == good
    assert checkpoint.load(path)["epoch"] == 1


def test_an_epoch_that_saves_itself_stops_at_a_weight_that_is_not_finite(tmp_path):  # H86
    class Broken(Augmented):
        def after_update(self, report: Any) -> None:
            super().after_update(report)
            if self.updaters["train"].steps == 2:
                self.modules["model"][0].bias.data[1] = math.inf

    training = TrialTrainer(Broken(config_of(Augmented)))
    training.autosave = (tmp_path / "auto.pt", 0.0)
    with pytest.raises(Diverged, match=r"model\.0\.bias is not finite after epoch 0, window 2"):
        training.run_epoch()
    training.close()  # waits for what is being written
    assert checkpoint.load(tmp_path / "auto.pt")["midway"]["windows"] == 1


def test_a_mask_may_hold_infinities_and_a_buffer_no_nan(tmp_path):  # H86
    class Masked(Augmented):
        def build(self) -> None:
            super().build()
            self.modules["model"].register_buffer("mask", torch.full((2, 2), -math.inf).triu(1))

    training = TrialTrainer(Masked(config_of(Augmented)))
    training.run_epoch()
    training.save(tmp_path / "state.pt")
    training.task.modules["model"][1].running_var[0] = math.nan
    with pytest.raises(Diverged, match=r"model\.1\.running_var is not finite"):
        training.save(tmp_path / "state.pt")


def test_a_checkpoint_that_lacks_the_state_of_a_rank_is_refused(tmp_path):  # H79, H80
    training = stopped(Augmented, config_of(Augmented), 0, 1)
    training.save(tmp_path / "midway.pt")
    saved = checkpoint.load(tmp_path / "midway.pt")
    before = state(training)
    saved["midway"]["ranks"] = []
    with pytest.raises(
        CheckpointError,
        match=r"from the middle of epoch 1 must be taken up by as many ranks as saved it, 0, but got 1",
    ):
        training.restore(saved)
    assert identical(state(training), before)


def test_a_checkpoint_of_the_end_of_an_epoch_undoes_the_one_that_is_under_way(tmp_path):
    config = config_of(Augmented)
    expected = epochs_of(TrialTrainer(Augmented(config)), 2)
    training = TrialTrainer(Augmented(config))
    training.run_epoch()
    training.save(tmp_path / "end.pt")
    training.run_epoch(after(training, 2))
    training.load(tmp_path / "end.pt")
    assert training.windows == 0
    assert identical(epochs_of(training, 1), expected[1:])


def test_a_state_that_a_checkpoint_cannot_hold_is_refused_when_it_is_saved(tmp_path):
    class Odd(Augmented):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "counter": itertools.count()}

    training = stopped(Odd, config_of(Augmented), 0, 1)
    with pytest.raises(CheckpointError, match=r"must hold tensors and plain Python values only.*counter \(count\)"):
        training.save(tmp_path / "midway.pt")
    assert list(tmp_path.iterdir()) == []
