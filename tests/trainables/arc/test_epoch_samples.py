"""An epoch is the same number of samples for every trial, whatever batch size and accumulation are searched."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainables.toy_models import Endless, Regression, RegressionConfig
from tests.trainables.two_ranks import RANKS
from trainables.arc import ArcTask
from trainables.arc.task import ArcConfig
from trainables.context import Context
from trainables.training.trainer import TrialTrainer

SIZES = [(1, 1), (1, 5), (3, 1), (4, 4), (5, 3), (7, 2), (22, 1), (100, 3)]  # of batches, and of windows in batches


class Counted(Regression):
    """Adds up what its updates were trained on, over all ranks."""

    def build(self) -> None:
        super().build()
        self.modules["model"][1] = torch.nn.Identity()  # batch norm takes no batch of one
        self.optimizers = {"sgd": torch.optim.SGD(self.modules["model"].parameters(), lr=0.01)}
        self.schedulers = []
        self.samples: list[float] = []

    def after_update(self, report: Any) -> None:
        super().after_update(report)
        self.samples.append(report.weight)


class Stream(Endless, Counted):
    """An epoch of it is ten samples."""

    def train_batches(self, epoch: int) -> Any:
        size = self.config.batch_size
        while True:
            chosen = torch.randint(self.config.size, (size,), generator=self.context.generator)
            yield self.inputs[chosen], self.targets[chosen]


def samples_by_epoch(
    rank: int, task: type[Counted], batch_size: int, accumulation: int, epochs: int, world_size: int = RANKS
) -> list[float]:
    """How many samples a trial was trained on after each epoch."""
    config = RegressionConfig(batch_size=batch_size, accumulation=accumulation, epochs=epochs)
    training = TrialTrainer(task(config, Context(rank=rank, world_size=world_size)))
    seen = []
    for _ in range(epochs):
        training.run_epoch()
        seen.append(sum(training.task.samples))
    return seen


@settings(deadline=None, derandomize=True, max_examples=25)
@given(batch_size=st.integers(1, 30), accumulation=st.integers(1, 6))
def test_an_epoch_of_data_is_all_of_it(batch_size, accumulation):
    assert samples_by_epoch(0, Counted, batch_size, accumulation, 2, world_size=1) == [22, 44]


@settings(deadline=None, derandomize=True, max_examples=25)
@given(batch_size=st.integers(1, 10), accumulation=st.integers(1, 6))
def test_a_stream_is_never_more_than_a_window_ahead(batch_size, accumulation):
    window = batch_size * accumulation
    seen = samples_by_epoch(0, Stream, batch_size, accumulation, 6, world_size=1)
    if window <= 10:
        assert all(10 * epoch <= samples < 10 * epoch + window for epoch, samples in enumerate(seen, start=1))
    else:  # an epoch is a window at least
        assert seen == [window * epoch for epoch in range(1, 7)]


@pytest.mark.parametrize(("batch_size", "accumulation"), SIZES)
def test_two_ranks_together_train_on_all_of_the_data(pair, batch_size, accumulation):
    assert pair.run(samples_by_epoch, Counted, batch_size, accumulation, 2) == [[22, 44]] * RANKS


@pytest.mark.parametrize(("batch_size", "accumulation"), [(1, 1), (1, 3), (2, 2), (5, 1)])
def test_a_stream_on_two_ranks_is_never_more_than_a_window_ahead(pair, batch_size, accumulation):
    first, second = pair.run(samples_by_epoch, Stream, batch_size, accumulation, 5)
    window = RANKS * batch_size * accumulation
    assert first == second
    assert all(10 * epoch <= samples < 10 * epoch + window for epoch, samples in enumerate(first, start=1))


def test_a_stream_goes_on_from_a_checkpoint_with_what_it_was_ahead(tmp_path):
    config = RegressionConfig(batch_size=4, accumulation=2)
    straight, first = TrialTrainer(Stream(config)), TrialTrainer(Stream(config))
    expected = []
    for _ in range(4):
        straight.run_epoch()
        expected.append(list(straight.task.samples))
    first.run_epoch()
    first.save(tmp_path / "state.pt")
    second = TrialTrainer(Stream(config))
    second.load(tmp_path / "state.pt")
    for _ in range(3):
        second.run_epoch()
    assert [len(samples) for samples in expected] == [2, 3, 4, 5]
    assert len(second.task.samples) == 3


@pytest.mark.parametrize("batch_size", [4, 8, 16, 32])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_an_epoch_of_arc_is_its_episodes(batch_size, world_size):
    config = ArcConfig(max_side=10, views=1, width=24, episodes=250, batch_size=batch_size)
    ranks = []
    for rank in range(world_size):
        task = ArcTask(config, Context(rank=rank, world_size=world_size))
        task.build()
        task.context.generator.manual_seed(0)
        ranks.append([len(batch.query) for batch in task.train_batches(0)])
    assert sum(map(sum, ranks)) == 250
    longest = max(map(len, ranks))
    assert longest == task.context.micro_batches(250, batch_size), "as its schedule counts them"
