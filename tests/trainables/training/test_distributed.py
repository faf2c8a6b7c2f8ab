"""Train on two ranks that see different things: they end with the same weights, at the same time."""

import copy
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from searchlight.trainables import checkpoint
from searchlight.trainables.context import Context
from searchlight.trainables.precision import Diverged, LossScale, Precision, resolve
from searchlight.trainables.training.trainer import TrialTrainer
from searchlight.trainables.update import Ema, Updater
from searchlight.trainables.update.reduction import PeerFailed
from tests.trainables.toy_models import Regression, Sharded, every_precision, identical, samples
from tests.trainables.training.trials import make_trial, run_epochs
from tests.trainables.two_ranks import RANKS, Pair


class Uneven(Sharded):  # rank 1 runs out of data while rank 0 has three windows more
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
        return {**super().evaluate(), "val/share": share, "val/rank": (float(self.context.rank), 3.0)}


class Noisy(Sharded):  # adds noise to its gradients, as differential privacy does
    def build(self) -> None:
        super().build()

        def add_noise() -> None:
            for parameter in self.modules["model"].parameters():
                parameter.grad.add_(torch.randn_like(parameter.grad))

        self.transforms = {"train": add_noise}


class Cells(Regression):
    """Keeps a state that is as long as the rank's last batch; its plain metric is another one on each rank."""

    def build(self) -> None:
        super().build()
        self.modules["model"].register_buffer("state", None)

    def predict(self, inputs: Tensor) -> Tensor:
        outputs = super().predict(inputs)
        self.modules["model"].state = outputs.detach()
        return outputs

    def evaluate(self) -> dict[str, Any]:
        length = float(len(self.modules["model"].state))
        return {"val/loss": math.nan if self.context.rank else 1.0, "val/length": (length, 1.0)}


def train_trial(rank: int, task: type[Any], epochs: int, settings: dict[str, Any]) -> dict[str, Any]:
    training = make_trial(task, rank, RANKS, **settings)
    reports = run_epochs(training, epochs)
    updater = training.task.updaters["train"]
    counted = (updater.steps, updater.skipped, updater.empty)
    return {"reports": reports, "state": dict(training.task.modules["model"].state_dict()), "counted": counted}


def train_pair(pair: Pair, task: type[Any], epochs: int = 1, **settings: Any) -> dict[str, Any]:
    """Train on both ranks, which must end alike, and return what is the same on both."""
    first, second = pair.run(train_trial, task, epochs, settings)
    assert identical(first, second)
    return first


@every_precision
def test_rank_without_data_continues_with_the_others(pair, precision):  # B20, C58
    settings = {"precision": precision, "size": 32, "ema_decay": 0.9, "loss_scale": 1024.0}
    assert train_pair(pair, Uneven, 2, **settings)["counted"] == (8, 0, 0)


def test_noise_of_a_transform_is_the_same_on_all_ranks(pair):
    train_pair(pair, Noisy)


def test_plain_metrics_and_buffers_are_those_of_rank_0(pair):
    result = train_pair(pair, Cells, size=21)  # shares of 11 and 10 samples: last batches of 3 and 2
    assert result["reports"][0]["val/loss"] == 1.0
    assert result["reports"][0]["val/length"] == len(result["state"]["state"]) == 3


def test_reports_are_means_over_the_samples_of_all_ranks(pair):
    (report,) = train_pair(pair, Uneven, size=26, batch_size=8)["reports"]
    assert report["val/seen"] == 13 + 8
    assert report["train/size"] == pytest.approx((2 * 8 * 8 + 5 * 5) / 21)
    assert report["train/rank_0"] == 3.0
    assert report["val/share"] == 2.0  # a mean over nothing does not spread
    assert report["val/rank"] == 0.5


def draw_after_an_epoch(rank: int) -> tuple[dict[str, Any], list[int], list[float]]:
    training = make_trial(Sharded, rank, RANKS, size=23, accumulation=2)
    seen = [report["val/seen"] for report in run_epochs(training, 2)]
    context = training.task.context
    shard = [int(i) for batch in context.shard(torch.arange(23), 4) for i in batch]
    numbers = {
        "torch": torch.rand(2).tolist(),
        "numpy": np.random.rand(2).tolist(),
        "python": random.random(),
        "shared": torch.rand(2, generator=context.generator).tolist(),
    }
    return numbers, shard, seen


def test_ranks_share_one_generator_and_each_sample_once(pair):  # B29
    (first, shard, seen), (second, other_shard, other_seen) = pair.run(draw_after_an_epoch)
    assert [name for name in first if first[name] == second[name]] == ["shared"]
    assert sorted(shard + other_shard) == list(range(23))
    assert seen == other_seen == [23.0, 46.0]


def stop_on_rank_1(rank: int, after: int) -> tuple[Any, int]:
    training = make_trial(Sharded, rank, RANKS)
    updater = training.task.updaters["train"]
    return training.run_epoch(lambda: rank == 1 and updater.steps == after), updater.steps


@pytest.mark.parametrize(("after", "steps"), [(0, 0), (1, 2)])
def test_stop_on_one_rank_stops_all_at_the_same_window(pair, after, steps):
    assert pair.run(stop_on_rank_1, after) == [(None, steps)] * 2


def update_heavy_window(rank: int, initial: float) -> tuple[str, float]:
    weight = nn.Parameter(torch.zeros(1))
    updater = Updater({"sgd": torch.optim.SGD([weight], lr=1.0)}, "fp16", loss_scale=LossScale(initial))
    layer = torch.ones(1, 1)
    report = updater.update([torch.full((1, 1), 2.0)], lambda x: ((x @ layer * weight).mean(), 60_000))
    return report.outcome, weight.item()


def resolve_auto(rank: int) -> tuple[str, str, str]:
    with pytest.MonkeyPatch.context() as patch:
        lacking = Precision.BF16 if rank else None
        patch.setattr("searchlight.trainables.precision._is_supported", lambda precision, _: precision != lacking)
        task = make_trial(Sharded, rank=rank, world_size=RANKS, precision="auto").task
        return resolve("auto", task.context.device), task.precision, task.updaters["train"].precision


def test_auto_precision_is_that_of_the_weakest_rank(pair):
    assert pair.run(resolve_auto) == [("bf16", "fp32", "fp32"), ("fp32", "fp32", "fp32")]


class Patient(Context):
    """Keeps the names of its collectives."""

    def any(self, *flags: bool) -> list[bool]:
        CALLS.append("any")
        return super().any(*flags)

    def broadcast(self, tensors: Any) -> None:
        CALLS.append("broadcast")
        super().broadcast(tensors)


CALLS: list[str] = []


def test_ranks_meet_after_build_before_they_broadcast():
    CALLS.clear()
    TrialTrainer(Sharded(Sharded.config_class()(), Patient()))
    assert CALLS.index("any") < CALLS.index("broadcast"), "a slow build must not look as a hanging broadcast"


@pytest.mark.parametrize("initial", [1.0, 2.0])
def test_small_loss_scale_does_not_overflow(pair, initial):
    assert pair.run(update_heavy_window, initial) == [("applied", -2.0)] * 2


# The fault of a window's second micro-batch, as its loss and weight; the errors of the faulty rank and of the other.
FAULTS: dict[str, tuple[Callable[[Tensor], tuple[Tensor, Any]], str, str]] = {
    "raises": (lambda loss: 1 / 0, "ZeroDivisionError", "PeerFailed"),
    "constant loss": (lambda loss: (loss.detach(), 1), "ValueError", "PeerFailed"),
    "negative weight": (lambda loss: (loss, -1.0), "ValueError", "PeerFailed"),
    "infinite weight": (lambda loss: (loss, math.inf), "ValueError", "PeerFailed"),
    # Found by both when the window is read:
    "negative tensor weight": (lambda loss: (loss, torch.tensor(-1.0)), "ValueError", "ValueError"),
    "nan tensor weight": (lambda loss: (loss, torch.tensor(math.nan)), "ValueError", "ValueError"),
}


def update_with_fault(rank: int, fault: str, sick: int, precision: str) -> dict[str, Any]:
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
        return FAULTS[fault][0](mean) if wrong and rank == sick and x[0] == 7 else (mean, len(x))

    def state() -> Any:
        return copy.deepcopy([weight.detach(), norm.state_dict(), updater.state_dict()])

    updater.update([samples(1, 2), samples(3, 4)], loss)
    before, wrong, error = state(), True, None
    try:
        updater.update([samples(1, 2 + rank), samples(7, 8), samples(5, 6)], loss)
    except Exception as raised:
        error = raised
    unchanged = identical(before, state()) and all(p.grad is None for p in [weight, *norm.parameters()])
    wrong, moved = False, weight.item()
    report = updater.update([samples(1, 2 + rank), samples(7, 8)], loss)
    return {
        "error": type(error).__name__,
        "unchanged": unchanged,
        "step": (report.outcome, report.grad_norm, weight.item() - moved),
        "end": state()[0],
    }


@pytest.mark.parametrize(
    ("fault", "sick", "precision"),
    [
        ("raises", 0, "fp32"),
        ("raises", 1, "fp16"),
        ("constant loss", 1, "bf16"),
        ("negative weight", 0, "fp16"),
        ("infinite weight", 1, "fp32"),
        ("negative tensor weight", 0, "fp16"),
        ("negative tensor weight", 1, "fp32"),
        ("nan tensor weight", 1, "bf16"),
    ],
)
def test_fault_on_one_rank_ends_the_window_on_both(pair, fault, sick, precision):  # B27
    results = pair.run(update_with_fault, fault, sick, precision)
    assert (results[sick]["error"], results[1 - sick]["error"]) == FAULTS[fault][1:]
    # The mean of 1, 2, 7, 8 and 1, 3, 7, 8; half of what the first window moved by is added by the momentum.
    mean = (18 + 19) / 8
    for result in results:
        assert result["unchanged"]
        assert result["step"] == ("applied", pytest.approx(mean), pytest.approx(-mean - 0.5 * 2.5))
    assert identical(results[0]["end"], results[1]["end"])


class Faulty(Regression):  # goes wrong on rank 1 in its second window
    def loss(self, batch: Any) -> tuple[Tensor, int]:
        if self.context.rank == 1 and self.config.fault == "second window" and self.updaters["train"].steps == 1:
            raise MemoryError("no memory for this batch")
        return super().loss(batch)

    def after_update(self, report: Any) -> None:
        if self.context.rank == 1 and self.config.fault == "nan in a buffer":
            self.modules["model"][1].running_mean[0] = math.nan


def train_with_fault(rank: int, fault: str, folder: str) -> tuple[str, int]:
    """An epoch that is saved after each window."""
    training = make_trial(Faulty, rank, RANKS, fault=fault)
    training.autosave = (Path(folder) / "midway.pt", 0.0)
    try:
        training.run_epoch()
    except (MemoryError, PeerFailed, Diverged) as error:
        return str(error) if isinstance(error, Diverged) else type(error).__name__, training.windows
    finally:
        training.close()  # waits for what is being written
    return "went on", training.windows


def test_window_with_a_fault_is_not_saved(pair, tmp_path):
    results = pair.run(train_with_fault, "second window", str(tmp_path))
    assert results == [("PeerFailed", 1), ("MemoryError", 1)]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["midway.pt", "midway.pt.sha256"]
    assert checkpoint.load(tmp_path / "midway.pt")["midway"]["windows"] == 1


def test_nan_in_a_buffer_of_one_rank_is_not_saved(pair, tmp_path):  # H86
    message = "model.1.running_mean is not finite after epoch 0, window 1"
    assert pair.run(train_with_fault, "nan in a buffer", str(tmp_path)) == [(message, 1)] * 2
    assert list(tmp_path.iterdir()) == []
