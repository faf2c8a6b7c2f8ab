"""A stretch that may spend so many samples or GPU-seconds ends with the epoch that reaches them."""

import itertools
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainables.toy_models import Regression, identical, timeless
from tests.trainables.two_ranks import RANKS, Pair
from trainables import checkpoint
from trainables.context import Context
from trainables.training.trainer import TrialTrainer
from trainables.worker.messages import EpochReport, SegmentAssignment, SegmentBudget, SegmentEnd, WorkerSettings
from trainables.worker.worker import TrialRunner

SAMPLES = 22  # in an epoch of the toy


@given(
    costs=st.lists(st.floats(0.01, 10.0), min_size=1, max_size=20),
    until=st.floats(0.01, 100.0),
    restarts=st.sets(st.integers(1, 20)),
    back=st.integers(0, 3),
)
def test_it_is_spent_by_the_first_epoch_that_reaches_it_whoever_goes_on_in_between(costs, until, restarts, back):
    """After a restart, the worker begins up to `back` epochs earlier."""
    budget = SegmentBudget("samples", 0, 0.0, until)
    expected = next((n for n, total in enumerate(itertools.accumulate(costs), start=1) if total >= until), None)
    for epoch, cost in enumerate(costs, start=1):
        budget = budget.add_epoch(epoch, {"samples": cost})
        assert budget.is_spent == (expected is not None and epoch >= expected)
        if epoch in restarts:
            for again in range(max(1, epoch - back), epoch + 1):  # done again: it counts once
                assert budget.add_epoch(again, {"samples": costs[again - 1]}) == budget


# Tasks


def stretch(folder: Path, epoch: int = 0, start: Any = None, **budget: Any) -> SegmentAssignment:
    limit = SegmentBudget(**{"of": "samples", "epoch": epoch, "spent": 0.0, **budget}) if budget else None
    config = {"precision": "fp32", "epochs": 9, "size": SAMPLES}
    return SegmentAssignment(0, config, epoch, 9, str(folder), "a", (start,), budget=limit)


def workers(task: str = "toy_models:Regression", **options: Any) -> TrialRunner:
    return TrialRunner(WorkerSettings(f"tests.trainables.{task}", **options), Context(), threading.Event())


def test_a_report_tells_its_samples_and_its_gpu_seconds(tmp_path):
    start = time.perf_counter()
    reports = list(workers(gpus=4.0).run(stretch(tmp_path)))
    assert [report.costs["samples"] for report in reports] == [SAMPLES] * 9
    assert [report.costs["gpu_seconds"] for report in reports] == [4 * r.metrics["time/epoch_s"] for r in reports]
    assert sum(report.costs["gpu_seconds"] for report in reports) < 4 * (time.perf_counter() - start)


@pytest.mark.parametrize(("until", "epochs"), [(1, 1), (44, 2), (45, 3), (10_000, 9)])
def test_a_stretch_ends_with_the_epoch_that_reaches_its_samples_or_with_its_last(tmp_path, until, epochs):
    reports = list(workers().run(stretch(tmp_path, until=until)))
    assert [report.epoch for report in reports] == list(range(1, epochs + 1))
    assert [report.done for report in reports] == [False] * (epochs - 1) + [True]
    assert not any(isinstance(report, SegmentEnd) for report in reports)


@pytest.mark.parametrize("way", ["in memory", "from the checkpoint"])
def test_a_later_stretch_counts_on_from_what_was_spent(tmp_path, way):
    whole = list(workers().run(stretch(tmp_path / "whole")))
    worker = workers()
    first = list(worker.run(stretch(tmp_path, until=50)))
    if way == "from the checkpoint":
        worker = workers()
    second = list(worker.run(stretch(tmp_path, epoch=3, start=first[-1].checkpoint, spent=66.0, until=100)))
    assert [report.epoch for report in first + second] == [1, 2, 3, 4, 5]
    metrics = [[timeless(report.metrics) for report in reports] for reports in (first + second, whole[:5])]
    assert identical(*metrics)


def test_an_epoch_that_is_done_again_because_its_checkpoint_is_broken_does_not_count_twice(tmp_path):
    first = list(workers().run(stretch(tmp_path, until=60)))
    Path(first[-1].checkpoint).write_bytes(b"torn")
    torn = stretch(tmp_path, epoch=3, start=first[-1].checkpoint, spent=66.0, until=88)
    again = list(workers().run(replace(torn, checkpoints=(*torn.checkpoints, first[-2].checkpoint, None))))
    assert [report.epoch for report in again] == [3, 4]


def test_the_time_of_an_epoch_that_was_interrupted_is_that_of_its_parts(tmp_path):
    task = Regression(Regression.config_class().model_validate({"epochs": 2, "size": SAMPLES}))
    training = TrialTrainer(task)
    asked = iter([False, False, True])
    assert training.run_epoch(lambda: next(asked)) is None
    training.save(tmp_path / "midway.pt")
    seconds = checkpoint.load(tmp_path / "midway.pt")["midway"]["seconds"]
    assert seconds == training.seconds > 0
    training.load(tmp_path / "midway.pt")
    training.run_epoch()
    assert training.seconds > seconds
    assert training.samples == SAMPLES


class Naps(Regression):
    """Far slower in fp32."""

    def train_batches(self, epoch: int) -> Any:
        time.sleep(0.5 if self.config.precision == "fp32" else 0.02)
        yield from super().train_batches(epoch)


def test_a_faster_precision_gets_more_epochs_for_its_gpu_seconds(tmp_path):
    epochs = {}
    for precision in ("fp32", "bf16"):
        asked = stretch(tmp_path / precision, of="gpu_seconds", until=1.0)
        asked.config.update({"precision": precision, "epochs": 99})
        reports = list(workers("worker.test_segment_budget:Naps", gpus=2.0).run(replace(asked, until=99)))
        spent = list(itertools.accumulate(report.costs["gpu_seconds"] for report in reports))
        assert [total >= 1.0 for total in spent] == [False] * (len(spent) - 1) + [True]
        epochs[precision] = len(reports)
    assert epochs["bf16"] > epochs["fp32"]
    assert epochs["fp32"] <= 2


# Ranks


class OwnClock(TrialRunner):
    """Rank 1 believes that each epoch took it a hundred times as long."""

    def _compute_costs(self, training: TrialTrainer) -> dict[str, float]:
        return {"samples": training.samples, "gpu_seconds": 1.0 + 99.0 * self.context.rank}


def own_clock(rank: int, folder: str) -> list[EpochReport]:
    context = Context(rank=rank, world_size=RANKS)
    worker = OwnClock(WorkerSettings("tests.trainables.toy_models:Sharded"), context, threading.Event())
    return list(worker.run(stretch(Path(folder), of="gpu_seconds", until=3.0)))


def test_ranks_whose_clocks_differ_end_alike_by_that_of_rank_0(tmp_path, pair: Pair):
    first, second = pair.run(own_clock, str(tmp_path))
    assert [report.epoch for report in first] == [report.epoch for report in second] == [1, 2, 3]
    assert [report.costs["gpu_seconds"] for report in second] == [1.0] * 3
    assert [report.costs["samples"] for report in first] == [SAMPLES] * 3
