"""Whole trials on two ranks: their data, their reports, their schedules."""

import math
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.trainables.toy_models import (
    Cycled,
    Regression,
    RegressionConfig,
    Sharded,
    every_precision,
    identical,
    timeless,
)
from tests.trainables.two_ranks import RANKS
from trainables.context import Context
from trainables.training.trainer import TrialTrainer

# What runs on each rank


class Uneven(Regression):
    """Rank 1 runs out of data while rank 0 has three windows more."""

    def train_batches(self, epoch: int) -> Iterator[Any]:
        batches = list(super().train_batches(epoch))
        yield from batches[:1] if self.context.rank else batches

    def loss(self, batch: Any) -> tuple[Tensor, int]:
        loss, weight = super().loss(batch)
        self.log("size", float(weight), weight)
        if self.context.rank == 0:
            self.log("rank_0", 3.0)
        return loss, weight

    def evaluate(self) -> dict[str, Any]:
        # Rank 1 has no share of the validation data, so that its mean is one over nothing.
        share = (math.nan, 0.0) if self.context.rank else (2.0, 5.0)
        return {**super().evaluate(), "val/draw": 0.0, "val/share": share, "val/rank": (float(self.context.rank), 3.0)}


def trial(rank: int, task: type[Any], settings: dict[str, Any], epochs: int) -> dict[str, Any]:
    training = TrialTrainer(task(RegressionConfig(**settings), Context(rank=rank, world_size=RANKS)))
    reports = [timeless(training.run_epoch()) for _ in range(epochs)]
    updater = training.task.updaters["train"]
    counted = (updater.steps, updater.skipped, updater.empty)
    return {"reports": reports, "state": dict(training.task.modules["model"].state_dict()), "counted": counted}


def own_windows(rank: int, precision: str) -> list[list[float]]:
    """The weights after trials whose accumulation differs between the ranks."""
    config = RegressionConfig(precision=precision, accumulation=1 + 2 * rank, size=40, loss_scale=1024.0)
    training = TrialTrainer(Sharded(config, Context(rank=rank, world_size=RANKS)))
    training.run_epoch()
    return [p.tolist() for p in training.task.modules["model"].parameters()]


def cycle(rank: int, settings: dict[str, Any]) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as of a schedule that is stepped before its optimizer
        training = TrialTrainer(Cycled(RegressionConfig(**settings), Context(rank=rank, world_size=RANKS)))
        for _ in range(training.task.config.epochs):
            training.run_epoch()
    return training.task.followed()


def stopped_on_one_rank(rank: int, after: int) -> tuple[Any, int]:
    training = TrialTrainer(Sharded(RegressionConfig(), Context(rank=rank, world_size=RANKS)))
    updater = training.task.updaters["train"]
    return training.run_epoch(lambda: rank == 1 and updater.steps == after), updater.steps


def same_shards(rank: int) -> list[int]:
    training = TrialTrainer(Sharded(RegressionConfig(size=23), Context(rank=rank, world_size=RANKS)))
    training.run_epoch()
    return [int(i) for batch in training.task.context.shard(torch.arange(23), 4) for i in batch]


def random_numbers(rank: int) -> dict[str, list[float]]:
    training = TrialTrainer(Sharded(RegressionConfig(), Context(rank=rank, world_size=RANKS)))
    training.run_epoch()
    return {
        "torch": torch.rand(2).tolist(),
        "numpy": np.random.rand(2).tolist(),
        "python": [random.random()],
        "shared": torch.rand(2, generator=training.task.context.generator).tolist(),
    }


# Data


@every_precision
def test_a_rank_without_data_goes_on_with_the_others(pair, precision):  # B20, C58
    settings = {"precision": precision, "size": 32, "epochs": 2, "ema_decay": 0.9, "loss_scale": 1024.0}
    first, second = pair.run(trial, Uneven, settings, 2)
    assert first["counted"] == second["counted"] == (8, 0, 0)
    assert identical(first["state"], second["state"])
    assert identical(first["reports"], second["reports"])


@every_precision
def test_ranks_with_another_accumulation_train_the_same_weights(pair, precision):  # B30
    first, second = pair.run(own_windows, precision)
    assert first == second


def test_each_sample_is_trained_once_per_epoch_over_all_ranks(pair):  # B29
    for result in pair.run(trial, Sharded, {"size": 23, "accumulation": 2}, 2):
        assert [report["val/seen"] for report in result["reports"]] == [23.0, 46.0]
    first, second = pair.run(same_shards)
    assert sorted(first + second) == list(range(23))


def test_ranks_draw_different_numbers_and_share_one_generator(pair):
    first, second = pair.run(random_numbers)
    assert [name for name in first if first[name] == second[name]] == ["shared"]


# Reports


def test_reports_are_means_over_the_samples_of_all_ranks(pair):  # C61
    first, second = pair.run(trial, Uneven, {"size": 26, "batch_size": 8}, 1)
    assert identical(first["reports"], second["reports"])  # buffers of batch norm included
    report = first["reports"][0]
    assert report["val/seen"] == 13 + 8
    assert report["train/size"] == pytest.approx((2 * 8 * 8 + 5 * 5) / 21)
    assert report["train/rank_0"] == 3.0
    assert report["val/share"] == 2.0  # a mean over nothing does not spread
    assert report["val/rank"] == 0.5


# Schedules and stops


@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_a_schedule_over_the_whole_trial_reaches_its_end_on_two_ranks(pair, accumulation):  # F59, F60
    for followed in pair.run(cycle, {"accumulation": accumulation, "size": 37}):
        assert followed["updates"] == followed["steps"] == followed["length"]
        assert followed["last_rate"] == pytest.approx(followed["end"])


def test_a_schedule_over_the_whole_trial_waits_while_two_ranks_skip(pair):  # F59, F60
    for followed in pair.run(cycle, {"precision": "fp16", "loss_scale": 2.0**26, "size": 37}):
        assert followed["skipped"] > 0
        assert followed["updates"] == followed["steps"] == followed["length"] - followed["skipped"]
        assert followed["first_rate"] == pytest.approx(followed["start"])


@pytest.mark.parametrize(("after", "steps"), [(0, 0), (1, 2), (2, 3)])
def test_a_stop_that_one_rank_hears_stops_all_at_the_same_window(pair, after, steps):
    assert pair.run(stopped_on_one_rank, after) == [(None, steps)] * 2
