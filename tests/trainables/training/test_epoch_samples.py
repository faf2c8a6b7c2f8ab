"""Show that an epoch has the same number of samples for every trial, whatever batch size and accumulation it has."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from searchlight.trainables.context import Context
from searchlight.trainables.training.trainer import TrialTrainer
from tests.trainables.toy_models import Endless, Regression, RegressionConfig
from tests.trainables.two_ranks import RANKS


class Counted(Regression):
    """Takes batches of one, too."""

    def build(self) -> None:
        super().build()
        self.modules["model"][1] = torch.nn.Identity()  # instead of batch norm
        self.optimizers = {"sgd": torch.optim.SGD(self.modules["model"].parameters(), lr=0.01)}
        self.schedulers = []


class Stream(Endless, Counted):
    """An epoch of it is ten samples."""

    def train_batches(self, epoch: int) -> Any:
        while True:
            size = (self.config.batch_size,)
            chosen = torch.randint(self.config.size, size, generator=self.context.generator, device="cpu")
            yield self.inputs[chosen], self.targets[chosen]


def samples_by_epoch(
    rank: int, task: type[Counted], batch_size: int, accumulation: int, epochs: int, world_size: int = RANKS
) -> list[float]:
    """Return how many samples all ranks were trained on after each epoch."""
    config = RegressionConfig(batch_size=batch_size, accumulation=accumulation, epochs=epochs)
    training = TrialTrainer(task(config, Context(torch.get_default_device(), rank, world_size)))
    seen = []
    for _ in range(epochs):
        training.run_epoch()
        seen.append(training.task.seen)
    return seen


def assert_at_most_a_window_ahead(seen, window):
    if window <= 10:
        assert all(10 * epoch <= samples < 10 * epoch + window for epoch, samples in enumerate(seen, start=1))
    else:  # an epoch is a window at least
        assert seen == [window * epoch for epoch in range(1, len(seen) + 1)]


@settings(max_examples=15)
@given(batch_size=st.integers(1, 10), accumulation=st.integers(1, 6))
def test_epoch_is_all_data_or_its_share_of_a_stream(batch_size, accumulation):
    assert samples_by_epoch(0, Counted, 3 * batch_size, accumulation, 2, world_size=1) == [22, 44]
    seen = samples_by_epoch(0, Stream, batch_size, accumulation, 6, world_size=1)
    assert_at_most_a_window_ahead(seen, batch_size * accumulation)


@pytest.mark.parametrize(("batch_size", "accumulation"), [(1, 3), (7, 2), (22, 1)])
def test_two_ranks_together_train_on_an_epoch(pair, batch_size, accumulation):
    assert pair.run(samples_by_epoch, Counted, batch_size, accumulation, 2) == [[22, 44]] * RANKS
    first, second = pair.run(samples_by_epoch, Stream, batch_size, accumulation, 5)
    assert first == second
    assert_at_most_a_window_ahead(first, RANKS * batch_size * accumulation)
