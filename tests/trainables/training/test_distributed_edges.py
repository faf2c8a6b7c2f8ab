"""Two ranks that see different things end with the same weights, and at the same time."""

import math
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.trainables.toy_models import Regression, RegressionConfig, identical, timeless
from trainables.context import Context
from trainables.precision import Diverged, LossScale
from trainables.training.trainer import TrialTrainer
from trainables.update import Updater
from trainables.update.reduction import PeerFailed
from trainables.worker.messages import Divergence, SegmentAssignment, SegmentEnd, WorkerSettings
from trainables.worker.worker import TrialRunner

# What runs on each rank


def heavy_window(rank: int, initial: float) -> tuple[str, float]:
    weight = nn.Parameter(torch.zeros(1))
    updater = Updater({"sgd": torch.optim.SGD([weight], lr=1.0)}, "fp16", loss_scale=LossScale(initial))
    layer = torch.ones(1, 1)
    report = updater.update([torch.full((1, 1), 2.0)], lambda x: ((x @ layer * weight).mean(), 60_000))
    return report.outcome, weight.item()


def only_without_weight(rank: int) -> tuple[float, float]:
    """One parameter that rank 0 uses, and one that rank 1 uses in a micro-batch without weight."""
    used, unused = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    updater = Updater({"sgd": torch.optim.SGD([used, unused], lr=0.5, weight_decay=0.5)})
    loss = (unused if rank else used).sum()
    updater.update([0], lambda _: (loss, torch.tensor(0.0 if rank else 3.0)))
    return used.item(), unused.item()


class Noisy(Regression):
    """Adds noise to its gradients, as differential privacy does."""

    def build(self) -> None:
        super().build()

        def add_noise() -> None:
            for parameter in self.modules["model"].parameters():
                parameter.grad.add_(torch.randn_like(parameter.grad))

        self.transforms = {"train": add_noise}

    def evaluate(self) -> dict[str, Any]:
        return {**super().evaluate(), "val/draw": 0.0}


class Undecided(Regression):
    """Rank 1 alone evaluates to NaN, and may find that the trial cannot go on."""

    def loss(self, batch: Any) -> tuple[Tensor, int]:
        if self.context.rank == 1 and self.config.fault == "diverges alone":
            raise Diverged("rank 1 has seen enough")
        return super().loss(batch)

    def evaluate(self) -> dict[str, Any]:
        return {"val/loss": math.nan if self.context.rank else 1.0}


class Cells(Regression):
    """Keeps a state that is as long as the rank's last batch."""

    def build(self) -> None:
        super().build()
        self.modules["model"].register_buffer("state", None)

    def predict(self, inputs: Tensor) -> Tensor:
        outputs = super().predict(inputs)
        self.modules["model"].state = outputs.detach()
        return outputs

    def evaluate(self) -> dict[str, Any]:
        return {"val/loss": float(len(self.modules["model"].state))}


TASKS = {"noisy": Noisy, "undecided": Undecided, "cells": Cells}


def epoch(rank: int, task: str, size: int) -> dict[str, Any]:
    training = TrialTrainer(TASKS[task](RegressionConfig(size=size), Context(rank=rank, world_size=2)))
    report = timeless(training.run_epoch())
    return {"report": report, "state": dict(training.task.modules["model"].state_dict())}


def diverges_alone(rank: int, folder: str) -> SegmentEnd | str:
    """What a worker makes of it."""
    task = f"{__name__}:Undecided"
    segment = SegmentAssignment(0, {"fault": "diverges alone"}, 0, 1, folder, "a")
    workers = TrialRunner(WorkerSettings(task), Context(rank=rank, world_size=2), threading.Event())
    try:
        (report,) = workers.run(segment)
    except PeerFailed as error:
        return str(error)
    return report


# What holds


@pytest.mark.parametrize("initial", [1.0, 2.0])
def test_a_loss_scale_of_1_is_no_reason_to_overflow(pair, initial):
    assert pair.run(heavy_window, initial) == [("applied", -2.0)] * 2


def test_a_parameter_that_only_a_micro_batch_without_weight_uses_does_not_decay(pair):  # B23, A5
    assert pair.run(only_without_weight) == [(1 - 0.5 * 1.5, 1.0)] * 2


def test_noise_that_a_transform_adds_is_the_same_on_all_ranks(pair):
    first, second = pair.run(epoch, "noisy", 22)
    assert identical(first["state"], second["state"])
    assert identical(first["report"], second["report"])


def test_a_metric_is_that_of_rank_0_so_that_all_ranks_see_the_same(pair):
    for result in pair.run(epoch, "undecided", 22):
        assert result["report"]["val/loss"] == 1.0


def test_a_rank_that_diverges_alone_ends_the_trial_and_its_group(pair, tmp_path):  # B27
    first, second = pair.run(diverges_alone, str(tmp_path))
    assert first == "1 of 2 ranks failed in this window; no rank can finish it"  # raised: its worker ends
    assert second == SegmentEnd("diverged", "rank 1 has seen enough", divergence=Divergence("other", 1), alone=True)


def test_a_state_of_another_length_on_each_rank_becomes_that_of_rank_0(pair):
    first, second = pair.run(epoch, "cells", 21)  # shares of 11 and 10 samples: last batches of 3 and 2
    assert first["report"]["val/loss"] == second["report"]["val/loss"] == 3.0
    assert identical(first["state"]["state"], second["state"]["state"])
