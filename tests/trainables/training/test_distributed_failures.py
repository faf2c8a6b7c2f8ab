"""What goes wrong on one rank is heard by the other, and harms nothing."""

import copy
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.trainables.toy_models import Regression, RegressionConfig, identical, samples
from tests.trainables.two_ranks import LIMIT, Pair
from trainables import checkpoint
from trainables.context import Context
from trainables.precision import Diverged
from trainables.training.trainer import TrialTrainer
from trainables.update import Ema, Updater
from trainables.update.reduction import PeerFailed

# What goes wrong with the second micro-batch of a window, as its loss and weight.
FAULTS: dict[str, Callable[[Tensor], tuple[Tensor, Any]]] = {
    "raises": lambda loss: 1 / 0,
    "constant loss": lambda loss: (loss.detach(), 1),
    "negative weight": lambda loss: (loss, -1.0),
    "infinite weight": lambda loss: (loss, float("inf")),
    "negative tensor weight": lambda loss: (loss, torch.tensor(-1.0)),
    "nan tensor weight": lambda loss: (loss, torch.tensor(float("nan"))),
}
# What the rank raises that has the fault, and what the other one does.
ERRORS = {
    "raises": ("ZeroDivisionError", "PeerFailed"),
    "constant loss": ("ValueError", "PeerFailed"),
    "negative weight": ("ValueError", "PeerFailed"),
    "infinite weight": ("ValueError", "PeerFailed"),
    "negative tensor weight": ("ValueError", "ValueError"),  # found by both when the window is read
    "nan tensor weight": ("ValueError", "ValueError"),
}


# What runs on each rank


def fault_in_a_window(rank: int, fault: str, sick: int, precision: str) -> dict[str, Any]:
    """A good window, one that goes wrong on one rank, a good one."""
    torch.manual_seed(0)
    weight, norm = nn.Parameter(torch.zeros(1)), nn.BatchNorm1d(1)
    optimizer = torch.optim.SGD([weight, *norm.parameters()], lr=1.0, momentum=0.5)
    updater = Updater(
        {"sgd": optimizer}, precision, ema=Ema({"weight": weight}, 0.9), modules={"norm": norm}, max_grad_norm=100.0
    )
    wrong = False

    def loss(x: Tensor) -> tuple[Tensor, Any]:
        mean = (weight * x).mean() + 0 * norm(x[:, None]).sum()
        return FAULTS[fault](mean) if wrong and rank == sick and x[0] == 7 else (mean, len(x))

    def state() -> Any:
        return copy.deepcopy([weight.detach(), norm.state_dict(), updater.state_dict()])

    updater.update([samples(1, 2), samples(3, 4)], loss)
    before, wrong, start, error = state(), True, time.monotonic(), None
    try:
        updater.update([samples(1, 2 + rank), samples(7, 8), samples(5, 6)], loss)
    except Exception as raised:
        error = raised
    took = time.monotonic() - start
    after, left = state(), [p.grad for p in [weight, *norm.parameters()]]
    wrong, moved = False, weight.item()
    report = updater.update([samples(1, 2 + rank), samples(7, 8)], loss)
    return {
        "error": type(error).__name__,
        "took": took,
        "unchanged": identical(before, after) and left == [None] * 3,
        "step": (report.outcome, report.grad_norm, weight.item() - moved),
        "end": state()[0],
    }


class Faulty(Regression):
    """Raises on rank 1 in the second window of an epoch."""

    def build(self) -> None:
        super().build()
        self.losses = 0

    def loss(self, batch: Any) -> tuple[Tensor, int]:
        self.losses += 1
        if self.context.rank == 1 and self.losses == 2:
            raise MemoryError("no memory for this batch")
        return super().loss(batch)


def fault_in_a_trial(rank: int, folder: str) -> tuple[str, int]:
    """An epoch that is saved after each window."""
    training = TrialTrainer(Faulty(RegressionConfig(), Context(rank=rank, world_size=2)))
    training.autosave = (Path(folder) / "midway.pt", 0.0)
    try:
        training.run_epoch()
        training.save(Path(folder) / "epoch.pt")
    except (MemoryError, PeerFailed) as error:
        return type(error).__name__, training.windows
    finally:
        training.close()  # waits for what is being written
    return "went on", training.windows


class Spoiled(Regression):
    def after_update(self, report: Any) -> None:
        if self.context.rank == 1:
            self.modules["model"][1].running_mean[0] = float("nan")


def nan_in_a_buffer_of_one_rank(rank: int, folder: str) -> str:
    training = TrialTrainer(Spoiled(RegressionConfig(), Context(rank=rank, world_size=2)))
    training.autosave = (Path(folder) / "midway.pt", 0.0)
    try:
        training.run_epoch()
    except Diverged as error:
        return str(error)
    return "went on"


def ends_at_once(rank: int) -> tuple[str, float]:
    """Rank 1 is gone in its first micro-batch."""
    weight = nn.Parameter(torch.zeros(1))
    updater = Updater({"sgd": torch.optim.SGD([weight], lr=1.0)})

    def loss(x: Tensor) -> tuple[Tensor, int]:
        if rank == 1:
            os._exit(3)
        return (weight * x).mean(), 1

    start = time.monotonic()
    try:
        updater.update([samples(1)], loss)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - start
    return "went on", time.monotonic() - start


# A fault in one rank's part of a window


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("sick", [0, 1])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_on_one_rank_ends_the_window_on_both_and_the_next_is_exact(pair, fault, sick, precision):  # A15, B27
    results = pair.run(fault_in_a_window, fault, sick, precision)
    assert (results[sick]["error"], results[1 - sick]["error"]) == ERRORS[fault]
    # The mean of 1, 2, 7, 8 and 1, 3, 7, 8; half of what the first window moved by is added by the momentum.
    mean = (18 + 19) / 8
    for result in results:
        assert result["took"] < 5
        assert result["unchanged"]
        assert result["step"] == ("applied", pytest.approx(mean), pytest.approx(-mean - 0.5 * 2.5))
    assert identical(results[0]["end"], results[1]["end"])


def test_a_trial_with_a_fault_writes_no_checkpoint_of_the_window(pair, tmp_path):  # B27
    assert pair.run(fault_in_a_trial, str(tmp_path)) == [("PeerFailed", 1), ("MemoryError", 1)]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["midway.pt", "midway.pt.sha256"]
    assert checkpoint.load(tmp_path / "midway.pt")["midway"]["windows"] == 1


def test_a_buffer_that_one_rank_spoiled_ends_the_trial_on_both_and_is_not_saved(pair, tmp_path):  # H86
    message = "model.1.running_mean is not finite after epoch 0, window 1"
    assert pair.run(nan_in_a_buffer_of_one_rank, str(tmp_path)) == [message] * 2
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_is_gone_is_an_error_for_the_other(tmp_path):  # B27
    pair = Pair(tmp_path)
    pair.start()
    try:
        for pipe in pair.pipes:
            pipe.send((ends_at_once, ()))
        assert pair.pipes[0].poll(LIMIT), "rank 0 hangs"
        worked, (error, took) = pickle.loads(pair.pipes[0].recv_bytes())
        pair.processes[1].join(10)
        assert pair.processes[1].exitcode == 3
    finally:
        pair.end()
    assert worked
    assert "gloo" in error
    assert took < LIMIT / 2
