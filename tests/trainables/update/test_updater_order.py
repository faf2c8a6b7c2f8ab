"""What an update does and in which order, seen from outside: each thing once per window, whatever happened before."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.trainables.toy_models import every_precision, samples, slope, slope_loss
from trainables.precision import LossScale
from trainables.update import Ema, Updater


class NotedSchedule(torch.optim.lr_scheduler.ExponentialLR):
    """Notes its steps."""

    def __init__(self, optimizer: torch.optim.Optimizer, name: str, events: list[str]) -> None:
        self.note = lambda: None
        super().__init__(optimizer, 0.5)
        self.note = lambda: events.append(f"schedule {name}")

    def step(self) -> None:
        self.note()
        super().step()


class NotedEma(Ema):
    """Notes its updates."""

    def __init__(self, parameters: dict[str, nn.Parameter], events: list[str]) -> None:
        super().__init__(parameters, 0.9)
        self.events = events

    def update(self) -> None:
        self.events.append("average")
        super().update()


def observed(precision: str, **options: Any) -> tuple[Updater, Any, list[str]]:
    """An update of w_a * x + w_b * x, its loss, and all that it does."""
    events: list[str] = []
    weights = {name: nn.Parameter(torch.zeros(1)) for name in "ab"}
    optimizers = {name: torch.optim.SGD([weight], lr=1.0) for name, weight in weights.items()}
    for name in "ab":
        weights[name].register_hook(lambda gradient, name=name: events.append(f"backward {name}"))
        optimizers[name].register_step_pre_hook(lambda *args, name=name: events.append(f"step {name}"))
    updater = Updater(
        optimizers,
        precision,
        max_grad_norm=1.0,
        schedulers=[NotedSchedule(optimizer, name, events) for name, optimizer in optimizers.items()],
        ema=NotedEma(weights, events),
        transform=lambda: events.append("transform"),
        on_update=lambda report: events.append(report.outcome),
        loss_scale=LossScale(64.0),
        **options,
    )

    def loss(x: Tensor) -> tuple[Tensor, int]:
        events.append("loss")
        if x.numel() and x[0] == 13:
            raise OSError("bad sample")
        return (weights["a"] * x).mean() + (weights["b"] * x).mean(), x.numel()

    return updater, loss, events


FORWARD_AND_BACKWARD = ["loss", "backward a", "backward b"]
FLUSH = ["transform", "step a", "step b", "average", "schedule a", "schedule b", "applied"]


def in_order(events: list[str]) -> list[str]:
    """`events` with each pair of backward hooks in one order: autograd promises none."""
    ordered = list(events)
    for index in range(len(ordered) - 1):
        if ordered[index : index + 2] == ["backward b", "backward a"]:
            ordered[index : index + 2] = ["backward a", "backward b"]
    return ordered


@every_precision
@pytest.mark.parametrize("size", [1, 4])
def test_each_window_is_flushed_in_one_order_and_each_part_of_it_once(precision, size):  # C20, C40
    updater, loss, events = observed(precision)
    for _ in range(2):
        events.clear()
        updater.update([samples(1, 2)] * size, loss)
        assert in_order(events) == FORWARD_AND_BACKWARD * size + FLUSH


@every_precision
def test_a_skipped_window_ends_before_the_first_step(precision):  # C20, C24, matrix 35
    updater, loss, events = observed(precision)
    updater.update([samples(1), samples(math.nan)], loss)
    assert in_order(events) == [*FORWARD_AND_BACKWARD * 2, "transform", "skipped"]


@every_precision
@pytest.mark.parametrize(
    ("window", "expected"),
    [
        pytest.param([], ["empty"], id="no-batch-C06-C08"),
        pytest.param([samples(), samples()], ["loss", "loss", "empty"], id="no-weight-A6-C13"),
    ],
)
def test_an_empty_window_is_reported_and_nothing_else(precision, window, expected):  # C20
    updater, loss, events = observed(precision)
    updater.update(window, loss)
    assert events == expected


@every_precision
@pytest.mark.parametrize(
    "bad",
    [
        pytest.param([samples(1), samples(math.inf)], id="skipped"),
        pytest.param([samples()], id="empty"),
        pytest.param([], id="no-batch"),
        pytest.param([samples(1), samples(13)], id="error"),
    ],
)
@pytest.mark.parametrize("times", [1, 2])
def test_whatever_a_window_came_to_the_next_is_flushed_in_full(precision, bad, times):  # A15, C08, C24, C40
    updater, loss, events = observed(precision)
    for _ in range(times):
        if any(13 in x for x in bad):
            with pytest.raises(OSError, match="bad sample"):
                updater.update(bad, loss)
        else:
            updater.update(bad, loss)
    events.clear()
    assert updater.update([samples(1), samples(3)], loss).outcome == "applied"
    assert in_order(events) == FORWARD_AND_BACKWARD * 2 + FLUSH
    weights = [optimizer.param_groups[0]["params"][0].item() for optimizer in updater.optimizers.values()]
    assert weights == pytest.approx([-(0.5**0.5)] * 2, rel=1e-5)  # clipped to a norm of 1
    assert updater.steps == 1


def test_the_loss_scale_does_not_move_inside_a_window():  # matrix 40, C18
    weight, updater = slope(precision="fp16", loss_scale=LossScale(8.0, growth_interval=1))
    scales: list[float] = []

    def loss(x: Tensor) -> tuple[Tensor, int]:
        scales.append(updater.loss_scale.value)
        return slope_loss(weight)(x)

    for window in ([1, 2, 3], [math.inf, 1, 2], [4, 5, 6]):
        report = updater.update([samples(x) for x in window], loss)
        assert scales == [report.loss_scale] * 3
        scales.clear()
    assert updater.loss_scale.value == 16.0
    assert weight.item() == -7.0


@every_precision
def test_the_report_comes_when_all_is_done(precision):  # C20
    seen = []
    weight, updater = slope(
        precision=precision,
        loss_scale=LossScale(8.0, growth_interval=1),
        on_update=lambda report: seen.append((weight.item(), weight.grad, updater.steps, updater.skipped)),
    )
    updater.update([samples(2)], slope_loss(weight))
    updater.update([samples(math.nan)], slope_loss(weight))
    assert seen == [(-2.0, None, 1, 0), (-2.0, None, 1, 1)]
