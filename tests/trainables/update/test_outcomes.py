"""Test that a window is applied, skipped or empty as a whole, each of its parts once and in one order."""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from searchlight.trainables.precision import Diverged, LossScale
from searchlight.trainables.update import Ema, Updater, UpdateReport
from tests.trainables.toy_models import (
    PRECISIONS,
    classifier,
    complete_updater,
    every_precision,
    identical,
    recorded_gradients,
    samples,
    scaled_and_unscaled,
    slope,
    slope_loss,
    slopes,
    snapshot,
    token_loss,
    tokens,
)


@dataclass
class Model:
    """What an update should come to, in plain Python."""

    fp16: bool
    interval: int
    minimum: float
    limit: int
    scale: float
    streak: int = 0
    steps: int = 0
    skipped: int = 0
    empty: int = 0
    in_a_row: int = 0
    rate: float = 1.0
    weight: float = 0.0
    average: float = 0.0

    def window(self, kind: str) -> str:
        """Take up a window and return its outcome."""
        if kind in ("empty", "weightless"):
            self.empty += 1
            return "empty"
        if kind == "good":
            decay = min(0.9, (1 + self.steps) / (10 + self.steps))
            self.weight -= self.rate
            self.average = decay * self.average + (1 - decay) * self.weight
            self.rate *= 0.5
            self.steps += 1
            self.in_a_row = 0
            self.streak += 1
            if self.streak == self.interval:
                self.scale, self.streak = self.scale * 2, 0
            return "applied"
        self.skipped += 1
        self.in_a_row += 1
        self.streak = 0
        at_its_floor = self.fp16 and self.scale / 2 < self.minimum
        self.scale = self.scale if at_its_floor else self.scale / 2
        return "diverged" if at_its_floor or self.in_a_row > self.limit else "skipped"


KINDS = {
    "good": [1.0, 1.0],
    "infinite": [1.0, math.inf],
    "nan": [math.nan, 1.0],
    "empty": [],
    "weightless": [None, None],
}


@given(
    precision=st.sampled_from(PRECISIONS),
    kinds=st.lists(st.sampled_from([*KINDS, "good"]), max_size=20),
    interval=st.integers(1, 3),
    minimum=st.sampled_from([1.0, 16.0]),
    limit=st.integers(0, 4),
)
@settings(max_examples=80)
@pytest.mark.filterwarnings("error")  # as of a schedule that steps before its optimizer
def test_random_outcomes_add_up(precision, kinds, interval, minimum, limit):
    # matrix 36, matrix 37, matrix 38, matrix 40, C17, C18, C25, C26, F59, F62, F66, C103
    expected = Model(precision == "fp16", interval, minimum, limit, scale=64.0)
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    reported: list[UpdateReport] = []
    updater = Updater(
        {"sgd": optimizer},
        precision,
        schedulers=[torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)],
        ema=Ema({"weight": weight}, 0.9),
        loss_scale=LossScale(64.0, interval, minimum),
        max_consecutive_skips=limit,
        on_update=reported.append,
    )
    for kind in kinds:
        window = [samples() if x is None else samples(x) for x in KINDS[kind]]
        outcome = expected.window(kind)
        reported.clear()
        if outcome == "diverged":
            with pytest.raises(Diverged):
                updater.update(window, slope_loss(weight))
            assert reported == []
        else:
            returned = updater.update(window, slope_loss(weight))
            assert identical(reported, [returned])
            assert returned.outcome == outcome
        counters = (updater.steps, updater.skipped, updater.empty, updater.consecutive_skips)
        assert counters == (expected.steps, expected.skipped, expected.empty, expected.in_a_row)
        assert optimizer.param_groups[0]["lr"] == expected.rate
        assert (weight.item(), updater.ema.updates) == (expected.weight, expected.steps)
        assert updater.ema.state_dict()["shadow"]["weight"].item() == pytest.approx(expected.average, rel=1e-5)
        if updater.loss_scale is not None:
            assert (updater.loss_scale.value, updater.loss_scale.streak) == (expected.scale, expected.streak)
        assert weight.grad is None
        if outcome == "diverged":
            break


@every_precision
@pytest.mark.parametrize(("value", "position"), [(math.nan, 0), (math.inf, 2)], ids=["nan-first", "inf-last"])
def test_one_bad_element_skips_the_window(precision, value, position):  # matrix 31, matrix 35, C24, C36, C37, C40
    model = nn.Linear(3, 1, bias=False)
    updater = complete_updater(model, precision)

    def loss(x: Tensor) -> tuple[Tensor, int]:
        return (model.weight * x).sum(), 1

    updater.update([samples(1, 2, 3)], loss)
    before = snapshot(model, updater)
    window = [samples(1, 2, 3) for _ in range(3)]
    window[position][1] = value
    report = updater.update(window, loss)
    assert (report.outcome, report.reason, report.bad_losses) == ("skipped", "non-finite gradient", 1)
    assert not math.isfinite(report.loss)
    assert model.weight.grad is None
    after = snapshot(model, updater)
    before[1].update(skipped=1, consecutive_skips=1)
    if precision == "fp16":
        assert after[1]["loss_scale"]["scale"] == before[1]["loss_scale"]["scale"] / 2
        after[1]["loss_scale"] = before[1]["loss_scale"] = None
    assert identical(before, after)
    assert updater.update([samples(1, 2, 3)], loss).outcome == "applied"
    assert (updater.steps, updater.skipped, updater.consecutive_skips) == (2, 1, 0)


@pytest.mark.parametrize("on_device", [False, True], ids=["number", "tensor"])
def test_window_without_gradient_is_empty(on_device):  # E52, C40
    elsewhere = nn.Parameter(torch.ones(1))
    transformed: list[int] = []
    weight, updater = slope(transform=lambda: transformed.append(1))
    one = torch.tensor(1) if on_device else 1
    report = updater.update([samples(1)] * 2, lambda x: ((elsewhere * x).sum(), one))
    assert (report.outcome, report.reason, updater.empty, updater.steps) == ("empty", "no gradient", 1, 0)
    assert (weight.item(), elsewhere.grad, transformed) == (0.0, None, [])


@pytest.mark.parametrize("limits", [None, 1.0, {"a": 1.0, "b": 1.0}], ids=["free", "one", "each"])
@pytest.mark.parametrize("values", [[3e38, 3e38], [3e38] * 4], ids=["together", "each-alone"])
def test_finite_gradients_of_infinite_norm_are_skipped(limits, values):  # matrix 33
    weights = {name: nn.Parameter(torch.zeros(len(values) // 2)) for name in "ab"}
    optimizers = {name: torch.optim.SGD([weight], lr=1.0) for name, weight in weights.items()}
    updater = Updater(optimizers, "fp16", max_grad_norm=limits, loss_scale=LossScale(1.0))
    report = updater.update([samples(*values)], lambda x: ((torch.cat([*weights.values()]) * x).sum(), 1))
    assert (report.outcome, report.reason) == ("skipped", "gradient norm overflow")
    assert not any(weight.any() for weight in weights.values())


@scaled_and_unscaled
@pytest.mark.parametrize("limits", [None, 1.0, {"a": 1.0, "b": 1.0, "c": 1.0}], ids=["free", "one", "each"])
def test_either_all_optimizers_step_or_none(precision, limits):  # E50, matrix 31, matrix 36
    weights, updater = slopes("abc", precision, max_grad_norm=limits, loss_scale=LossScale(64.0))
    report = updater.update(
        [samples(1, math.inf)], lambda x: ((weights["a"] * x[0] + weights["b"] * x[1] + weights["c"]).sum(), 1)
    )
    assert report.outcome == "skipped"
    assert [weight.item() for weight in weights.values()] == [0.0] * 3
    assert updater.loss_scale is None or updater.loss_scale.value == 32.0  # once, not by each optimizer


@scaled_and_unscaled
@pytest.mark.parametrize("on_device", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize(
    ("values", "bad", "mean"),
    [([1, 2, math.inf, 4], 1, math.inf), ([math.nan, 1, math.inf, -math.inf], 3, math.nan)],
    ids=["one", "three"],
)
def test_non_finite_loss_of_finite_gradient_is_skipped(precision, on_device, values, bad, mean):  # C10, C35, C36, C37
    weight, updater = slope(precision=precision, loss_scale=LossScale(64.0))

    def loss(x: Tensor) -> tuple[Tensor, int | Tensor]:
        return (weight * 2).sum() + x.sum(), torch.tensor(1) if on_device else 1

    report = updater.update([samples(x) for x in values], loss)
    assert (report.outcome, report.reason, report.grad_norm) == ("skipped", "non-finite loss", 2.0)
    assert (report.bad_losses, report.micro_batches, updater.skipped) == (bad, 4, 1)
    assert identical(report.loss, mean)
    assert (weight.item(), weight.grad, updater.steps) == (0.0, None, 0)
    report = updater.update([samples(1), samples(2)], loss)
    assert (report.outcome, report.bad_losses, weight.item()) == ("applied", 0, -2.0)
    assert updater.loss_scale is None or updater.loss_scale.value == 32.0


WHERE = r"at step 1 the loss is [0-9.naif]+, the gradient norm (inf|nan), first in net\.2\.weight"


@pytest.mark.parametrize(
    ("precision", "minimum", "message"),
    [
        pytest.param("fp32", 1.0, f"2 windows in a row were not finite: {WHERE}, no loss scale", id="fp32"),
        pytest.param("fp16", 1.0, f"2 windows in a row were not finite: {WHERE}, loss scale 4", id="fp16"),
        pytest.param("fp16", 8.0, f"loss scale 8 cannot be lowered, its minimum is 8; {WHERE}", id="fp16-at-its-floor"),
    ],
)
def test_divergence_says_what_was_wrong_and_where(precision, minimum, message):  # matrix 37, matrix 38, C36, C38
    model = classifier()
    updater = Updater(
        {"sgd": torch.optim.SGD(model.parameters(), lr=0.1)},
        precision,
        loss_scale=LossScale(16.0, minimum=minimum),
        max_consecutive_skips=1,
        modules={"net": model},
    )
    updater.update(tokens([4]), token_loss(model))
    before, _ = snapshot(model, updater)
    model[2].weight.register_hook(lambda gradient: gradient * math.inf)
    updater.update(tokens([4]), token_loss(model))
    with pytest.raises(Diverged, match=f"^{message}$"):
        updater.update(tokens([4]), token_loss(model))
    assert identical(before, dict(model.state_dict()))
    assert all(p.grad is None for p in model.parameters())


def observed(precision: str) -> tuple[Updater, Any, list[str]]:
    """An update of w_a * x + w_b * x, its loss, and all that it does."""
    events: list[str] = []

    class NotedEma(Ema):
        def update(self) -> None:
            events.append("average")
            super().update()

    weights = {name: nn.Parameter(torch.zeros(1)) for name in "ab"}
    optimizers = {name: torch.optim.SGD([weight], lr=1.0) for name, weight in weights.items()}
    for name in "ab":
        weights[name].register_hook(lambda gradient: events.append("backward"))
        optimizers[name].register_step_pre_hook(lambda *args, name=name: events.append(f"step {name}"))
    updater = Updater(
        optimizers,
        precision,
        max_grad_norm=1.0,
        schedulers=[SimpleNamespace(step=lambda name=name: events.append(f"schedule {name}")) for name in "ab"],
        ema=NotedEma(weights, 0.9),
        transform=lambda: events.append("transform"),
        on_update=lambda report: events.append(report.outcome),
        loss_scale=LossScale(64.0),
    )

    def loss(x: Tensor) -> tuple[Tensor, int]:
        events.append("loss")
        if x.numel() and x[0] == 13:
            raise OSError("bad sample")
        return (weights["a"] * x).mean() + (weights["b"] * x).mean(), x.numel()

    return updater, loss, events


FORWARD_AND_BACKWARD = ["loss", "backward", "backward"]
FLUSH = ["transform", "step a", "step b", "average", "schedule a", "schedule b", "applied"]


@scaled_and_unscaled
@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        pytest.param([1, math.inf], [*FORWARD_AND_BACKWARD * 2, "transform", "skipped"], id="skipped"),
        pytest.param([None, None], ["loss", "loss", "empty"], id="no-weight-A6-C13"),
        pytest.param([], ["empty"], id="no-batch-C06-C08"),
        pytest.param([1, 13], [*FORWARD_AND_BACKWARD, "loss"], id="error"),
    ],
)
def test_window_after_a_failed_one_is_flushed_in_full(precision, bad, expected):  # A15, C08, C20, C24, C40, matrix 35
    updater, loss, events = observed(precision)
    window = [samples() if x is None else samples(x) for x in bad]
    for _ in range(2):
        events.clear()
        if 13 in bad:
            with pytest.raises(OSError, match="bad sample"):
                updater.update(window, loss)
        else:
            updater.update(window, loss)
        assert events == expected
    events.clear()
    assert updater.update([samples(1), samples(3)], loss).outcome == "applied"
    assert events == FORWARD_AND_BACKWARD * 2 + FLUSH
    weights = [optimizer.param_groups[0]["params"][0].item() for optimizer in updater.optimizers.values()]
    assert weights == pytest.approx([-(0.5**0.5)] * 2, rel=1e-5)  # clipped to a norm of 1
    assert updater.steps == 1


def test_loss_scale_does_not_move_inside_a_window():  # matrix 40, C18
    weight, updater = slope(precision="fp16", loss_scale=LossScale(8.0, growth_interval=1))
    scales: list[float] = []

    def loss(x: Tensor) -> tuple[Tensor, int]:
        scales.append(updater.loss_scale.value)
        return slope_loss(weight)(x)

    for window, scale in (([1, 2, 3], 8.0), ([math.inf, 1, 2], 16.0), ([4, 5, 6], 8.0)):
        assert updater.update([samples(x) for x in window], loss).loss_scale == scale
        assert scales == [scale] * 3
        scales.clear()
    assert updater.loss_scale.value == 16.0
    assert weight.item() == -7.0


@pytest.mark.parametrize(("precision", "variant"), [("fp32", "foreach"), ("fp16", "fused")])
def test_what_has_no_gradient_waits_while_the_rest_steps(precision, variant):  # E51, E58, F59, C28, C32
    used, unused, idle = (nn.Parameter(torch.ones(1)) for _ in range(3))
    optimizers = {
        "used": torch.optim.AdamW([used, unused], lr=0.1, weight_decay=0.5, **{variant: True}),
        "idle": torch.optim.AdamW([idle], lr=0.1, weight_decay=0.5, **{variant: True}),
    }
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5) for optimizer in optimizers.values()]
    updater = Updater(optimizers, precision, schedulers=schedulers)
    steps = recorded_gradients(optimizers["idle"])
    updater.update([samples(1)], lambda x: ((used * x + idle * x).sum(), 1))
    before = [idle.item(), updater.state_dict()["optimizers"]["idle"]["state"][0]["exp_avg"].item()]
    assert updater.update([samples(1)], lambda x: ((used * x).sum(), 1)).outcome == "applied"
    assert [idle.item(), updater.state_dict()["optimizers"]["idle"]["state"][0]["exp_avg"].item()] == before
    assert (used.item() < 0.9, unused.item(), len(steps)) == (True, 1.0, 1)
    assert [scheduler.get_last_lr() for scheduler in schedulers] == [[0.025], [0.05]]


def test_schedule_that_raises_leaves_an_update_that_is_whole():
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.5)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=1)
    ema = Ema({"weight": weight}, 0.9)
    updater = Updater({"sgd": optimizer}, schedulers=[schedule], ema=ema)
    updater.update([samples(1)], slope_loss(weight))
    before = weight.item()
    with pytest.raises(ValueError, match="Tried to step 2 times"):
        updater.update([samples(1)], slope_loss(weight))
    assert weight.item() < before
    assert updater.steps == ema.updates == 2
