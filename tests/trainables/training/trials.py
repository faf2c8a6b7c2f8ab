"""Build trials in memory, stop them between two windows, and load them elsewhere."""

from pathlib import Path
from typing import Any

import torch

from searchlight.trainables.context import Context
from searchlight.trainables.filesystem.paths import StoragePath
from searchlight.trainables.training.trainer import TrialTrainer
from tests.trainables.toy_models import identical, state, timeless


class FakeClock:
    """Stands in for the module `time`: no time passes but what a test spends."""

    def __init__(self) -> None:
        self.now = 1000.0

    def perf_counter(self) -> float:
        return self.now

    monotonic = perf_counter

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def make_trial(task: type[Any], rank: int = 0, world_size: int = 1, **settings: Any) -> TrialTrainer:
    return TrialTrainer(task(task.config_class()(**settings), Context(torch.get_default_device(), rank, world_size)))


def load_trial(path: StoragePath, task: type[Any], **settings: Any) -> TrialTrainer:
    training = make_trial(task, **settings)
    training.load(path)
    return training


def run_epochs(training: TrialTrainer, count: int) -> list[dict[str, float]]:
    return [timeless(training.run_epoch()) for _ in range(count)]


def run_uninterrupted(task: type[Any], count: int, **settings: Any) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """The reports of the first epochs, and the state of the trial afterwards."""
    training = make_trial(task, **settings)
    return run_epochs(training, count), state(training)


def stop_in_epoch(training: TrialTrainer, epoch: int, window: int) -> TrialTrainer:
    """Stop a new trial after so many windows of the epoch after `epoch`."""
    run_epochs(training, epoch)
    assert training.run_epoch(lambda: training.windows >= window) is None
    assert (training.epoch, training.windows) == (epoch, window)
    return training


def assert_continues(training: TrialTrainer, expected: tuple[list[dict[str, float]], dict[str, Any]]) -> None:
    """Train to the end: the reports and the state must be those of the uninterrupted trial, bit for bit."""
    reports, at_the_end = expected
    done = training.epoch
    assert identical(run_epochs(training, len(reports) - done), reports[done:])
    assert identical(state(training), at_the_end)


def flip_bit(path: StoragePath | str, position: int | None = None) -> None:
    """Flip one bit of a file, by default one in its middle."""
    file = Path(path) if isinstance(path, str) else path
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if position is None else position] ^= 1
    file.write_bytes(content)
