"""End a segment with the epoch that reaches its samples or GPU-seconds."""

import itertools
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from searchlight.trainables import checkpoint
from searchlight.trainables.context import Context
from searchlight.trainables.training import trainer
from searchlight.trainables.worker.messages import (
    EpochReport,
    SegmentAssignment,
    SegmentBudget,
    SegmentEnd,
    WorkerSettings,
)
from searchlight.trainables.worker.trial_runner import TrialRunner
from tests.trainables.toy_models import Regression
from tests.trainables.training.trials import FakeClock, make_trial
from tests.trainables.two_ranks import RANKS, Pair
from tests.trainables.worker.local_worker import workers

SAMPLES = 22  # in an epoch of the toy


@settings(max_examples=50)
@given(
    costs=st.lists(st.floats(0.01, 10.0), min_size=1, max_size=20),
    until=st.floats(0.01, 100.0),
    restarts=st.sets(st.integers(1, 20)),
    back=st.integers(0, 3),
)
def test_budget_is_spent_by_the_first_epoch_that_reaches_it(costs, until, restarts, back):
    """After a restart, the worker begins up to `back` epochs earlier."""
    budget = SegmentBudget("samples", 0, 0.0, until)
    expected = next((n for n, total in enumerate(itertools.accumulate(costs), start=1) if total >= until), None)
    for epoch, cost in enumerate(costs, start=1):
        budget = budget.add_epoch(epoch, {"samples": cost})
        assert budget.is_spent == (expected is not None and epoch >= expected)
        if epoch in restarts:
            for again in range(max(1, epoch - back), epoch + 1):  # done again: it counts once
                assert budget.add_epoch(again, {"samples": costs[again - 1]}) == budget


def make_segment(folder: Path, epoch: int = 0, start: Any = None, **budget: Any) -> SegmentAssignment:
    limit = SegmentBudget(**{"of": "samples", "epoch": epoch, "spent": 0.0, **budget}) if budget else None
    config = {"epochs": 9, "size": SAMPLES}
    return SegmentAssignment(0, config, epoch, 9, str(folder), "a", (start,), budget=limit)


@pytest.mark.parametrize(("until", "epochs"), [(1, 1), (44, 2), (45, 3), (10_000, 9)])
def test_segment_ends_with_the_epoch_that_reaches_its_samples(tmp_path, until, epochs):
    reports = list(workers(gpus=4.0).run(make_segment(tmp_path, until=until)))
    assert [report.epoch for report in reports] == list(range(1, epochs + 1))
    for report in reports:
        assert report.costs == {"samples": SAMPLES, "gpu_seconds": 4 * report.metrics["time/epoch_s"]}
    assert [report.done for report in reports] == [False] * (epochs - 1) + [True]
    assert not any(isinstance(report, SegmentEnd) for report in reports)


def test_time_of_an_interrupted_epoch_is_that_of_its_parts(tmp_path, monkeypatch):
    class Naps(Regression):
        def train_batches(self, epoch: int) -> Any:
            for batch in super().train_batches(epoch):
                clock.sleep(1.0)
                yield batch

    clock = FakeClock()
    monkeypatch.setattr(trainer, "time", clock)
    training = make_trial(Naps)
    assert training.run_epoch(lambda: training.windows == 2) is None
    training.save(tmp_path / "midway.pt")
    assert checkpoint.load(tmp_path / "midway.pt")["midway"]["seconds"] == training.seconds == 2.0
    clock.sleep(100.0)
    resumed = make_trial(Naps)
    resumed.load(tmp_path / "midway.pt")
    clock.sleep(100.0)
    resumed.run_epoch()
    assert (resumed.seconds, resumed.samples) == (6.0, SAMPLES)


class OwnClock(TrialRunner):  # rank 1 believes that each epoch took it a hundred times as long
    def _compute_costs(self, training: trainer.TrialTrainer) -> dict[str, float]:
        return {"samples": training.samples, "gpu_seconds": 1.0 + 99.0 * self.context.rank}


def run_with_own_clock(rank: int, folder: str) -> list[EpochReport]:
    settings = WorkerSettings("tests.trainables.toy_models:Sharded")
    worker = OwnClock(settings, Context(rank=rank, world_size=RANKS), threading.Event())
    return list(worker.run(make_segment(Path(folder), of="gpu_seconds", until=3.0)))


def test_all_ranks_end_by_the_clock_of_rank_0(tmp_path, pair: Pair):
    first, second = pair.run(run_with_own_clock, str(tmp_path))
    assert [report.epoch for report in first] == [report.epoch for report in second] == [1, 2, 3]
    assert [report.costs["gpu_seconds"] for report in second] == [1.0] * 3
    assert [report.costs["samples"] for report in first] == [SAMPLES] * 3
