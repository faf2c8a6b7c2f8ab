"""All or nothing: a window with a gradient or a loss that is not finite changes nothing."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from tests.trainables.toy_models import (
    classifier,
    epoch,
    every_precision,
    identical,
    samples,
    slope,
    slope_loss,
    token_loss,
    tokens,
)
from trainables.precision import Diverged, LossScale
from trainables.update import Ema, Updater

# Gradients that are not finite


@every_precision
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("position", [0, 2], ids=["first-batch", "last-batch"])
def test_one_bad_element_skips_the_window(precision, value, position):  # matrix 31, matrix 35, C24, C36, C37, C40
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    ema = Ema({"weight": weight}, 0.9)
    updater = Updater({"adam": optimizer}, precision=precision, schedulers=[schedule], ema=ema)

    def loss(x: Tensor) -> tuple[Tensor, int]:
        return (weight * x).sum(), 1

    updater.update([samples(1, 2, 3)], loss)
    before = copy.deepcopy([weight.detach(), updater.state_dict()])
    window = [samples(1, 2, 3) for _ in range(3)]
    window[position][1] = value
    report = updater.update(window, loss)
    assert (report.outcome, report.reason, report.bad_losses) == ("skipped", "non-finite gradient", 1)
    assert not math.isfinite(report.loss)
    assert weight.grad is None
    after = copy.deepcopy([weight.detach(), updater.state_dict()])
    before[1].update(skipped=1, consecutive_skips=1)
    if precision == "fp16":
        assert after[1]["loss_scale"]["scale"] == before[1]["loss_scale"]["scale"] / 2
        after[1]["loss_scale"] = before[1]["loss_scale"] = None
    assert identical(before, after)
    assert updater.update([samples(1, 2, 3)], loss).outcome == "applied"
    assert (updater.steps, updater.skipped, updater.consecutive_skips) == (2, 1, 0)


@every_precision
def test_finite_gradients_with_an_infinite_norm_are_skipped(precision):  # matrix 33
    weight = nn.Parameter(torch.zeros(4))
    updater = Updater(
        {"sgd": torch.optim.SGD([weight], lr=1.0)}, precision, max_grad_norm=1.0, loss_scale=LossScale(1.0)
    )
    report = updater.update([torch.full((4,), 2e38)], lambda x: ((weight * x).sum(), 1))
    assert (report.outcome, report.reason) == ("skipped", "gradient norm overflow")
    assert weight.tolist() == [0.0] * 4


@every_precision
@pytest.mark.parametrize("limits", [None, 1.0, {"a": 1.0, "b": 1.0}], ids=["free", "one", "each"])
def test_norms_that_are_finite_by_themselves_and_infinite_together_are_skipped(precision, limits):  # matrix 33
    weights = {name: nn.Parameter(torch.zeros(1)) for name in "ab"}
    optimizers = {name: torch.optim.SGD([weight], lr=1.0) for name, weight in weights.items()}
    updater = Updater(optimizers, precision, max_grad_norm=limits, loss_scale=LossScale(1.0))
    report = updater.update([samples(3e38)], lambda x: ((weights["a"] * x + weights["b"] * x).sum(), 1))
    assert all(norm < torch.finfo(torch.float32).max for norm in updater.gradient_norms().values())
    assert (report.outcome, report.reason) == ("skipped", "gradient norm overflow")
    assert [weight.item() for weight in weights.values()] == [0.0, 0.0]


def test_the_loss_scale_follows_the_windows():  # C26, matrix 36
    weight, updater = slope(precision="fp16", loss_scale=LossScale(8.0, growth_interval=2))
    trace = []
    for outcome in "GGIGGGG":
        report = updater.update([samples(1 if outcome == "G" else math.inf)], slope_loss(weight))
        trace.append((report.loss_scale, updater.loss_scale.value))
    assert [after for _, after in trace] == [8, 16, 8, 8, 16, 16, 32]
    assert [ran_with for ran_with, _ in trace] == [8, 8, 16, 8, 8, 16, 16]


def test_the_loss_scale_counts_windows_and_not_micro_batches():  # C17, C18
    weight, updater = slope(precision="fp16", loss_scale=LossScale(8.0, growth_interval=3))
    epoch(weight, updater, [samples(1)] * 8, 4)
    assert (updater.loss_scale.value, updater.loss_scale.streak) == (8.0, 2)


def test_an_overflow_halves_the_scale_once_however_many_optimizers_there_are():  # matrix 36
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(3)]
    optimizers = {str(index): torch.optim.SGD([w], lr=1.0) for index, w in enumerate(weights)}
    updater = Updater(optimizers, "fp16", loss_scale=LossScale(64.0))
    updater.update([samples(math.inf)], lambda x: ((sum(weights) * x).sum(), 1))
    assert updater.loss_scale.value == 32.0


def test_fp16_finds_its_scale_by_itself():  # C25
    torch.manual_seed(0)
    model = classifier()
    updater = Updater({"sgd": torch.optim.SGD(model.parameters(), 0.1)}, "fp16", loss_scale=LossScale(2.0**24))
    outcomes = [updater.update(tokens([8]), token_loss(model)).outcome for _ in range(20)]
    assert outcomes[0] == "skipped"
    assert outcomes[-1] == "applied"
    assert outcomes == sorted(outcomes, reverse=True)  # skips come first, and none after the first applied one


def test_a_scale_at_its_floor_ends_the_trial():  # matrix 37
    weight, updater = slope(precision="fp16", loss_scale=LossScale(4.0, minimum=1.0))
    for _ in range(2):
        updater.update([samples(math.inf)], slope_loss(weight))
    assert updater.loss_scale.value == 1.0
    with pytest.raises(Diverged, match=r"loss scale 1 cannot be lowered, .* at step 0 .*, the gradient norm inf"):
        updater.update([samples(math.inf)], slope_loss(weight))
    assert updater.loss_scale.value == 1.0
    assert weight.item() == 0.0


def test_the_default_scale_reaches_its_floor_before_it_underflows():  # matrix 37: not 144 skips
    weight, updater = slope(precision="fp16")
    for _ in range(30):
        updater.update([samples(math.nan)], slope_loss(weight))
    with pytest.raises(Diverged, match=r"loss scale 6\.10352e-05 cannot be lowered"):
        updater.update([samples(math.nan)], slope_loss(weight))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_too_many_skips_in_a_row_end_the_trial(precision):  # matrix 38, C36, C38
    weight, updater = slope(precision=precision, max_consecutive_skips=2)
    for x in (math.nan, math.inf, 1.0, math.nan, math.inf):  # an applied window starts the count anew
        updater.update([samples(x)], slope_loss(weight))
    with pytest.raises(Diverged, match=r"3 windows in a row .* at step 1 .*, the gradient norm nan, .* no loss scale"):
        updater.update([samples(math.nan)], slope_loss(weight))
    assert weight.item() == -1.0


def test_tiny_losses_never_drive_the_scale_to_infinity():  # matrix 39
    weight, updater = slope(precision="fp16", loss_scale=LossScale(1.0, growth_interval=1))
    reports = [updater.update([samples(1e-30)], slope_loss(weight)) for _ in range(300)]
    assert {report.outcome for report in reports} == {"applied"}
    assert math.isfinite(updater.loss_scale.value)
    assert weight.item() == pytest.approx(-300e-30, rel=1e-4)


WHERE = r"at step 1 the loss is [0-9.naif]+, the gradient norm (inf|nan), first in net\.2\.weight"


@pytest.mark.parametrize(
    ("precision", "minimum", "message"),
    [
        pytest.param("fp32", 1.0, f"2 windows in a row were not finite: {WHERE}, no loss scale", id="fp32"),
        pytest.param("bf16", 1.0, f"2 windows in a row were not finite: {WHERE}, no loss scale", id="bf16"),
        pytest.param("fp16", 1.0, f"2 windows in a row were not finite: {WHERE}, loss scale 4", id="fp16"),
        pytest.param("fp16", 8.0, f"loss scale 8 cannot be lowered, its minimum is 8; {WHERE}", id="fp16-at-its-floor"),
    ],
)
def test_the_end_of_a_trial_says_what_was_wrong_and_where(precision, minimum, message):  # matrix 37, matrix 38, C38
    model = classifier()
    updater = Updater(
        {"sgd": torch.optim.SGD(model.parameters(), lr=0.1)},
        precision,
        loss_scale=LossScale(16.0, minimum=minimum),
        max_consecutive_skips=1,
        modules={"net": model},
    )
    updater.update(tokens([4]), token_loss(model))
    weights = copy.deepcopy(dict(model.state_dict()))
    model[2].weight.register_hook(lambda gradient: gradient * math.inf)
    updater.update(tokens([4]), token_loss(model))
    with pytest.raises(Diverged, match=f"^{message}$"):
        updater.update(tokens([4]), token_loss(model))
    assert identical(weights, dict(model.state_dict()))
    assert all(p.grad is None for p in model.parameters())


def test_a_gradient_that_is_not_finite_never_reaches_the_weights_in_fp16():  # matrix 37: after 144 skips torch's does
    weight, updater = slope(precision="fp16", loss_scale=LossScale(1.0, minimum=1e-45), max_consecutive_skips=1000)
    for _ in range(149):
        assert updater.update([samples(math.nan)], slope_loss(weight)).outcome == "skipped"
    with pytest.raises(Diverged, match="cannot be lowered"):
        updater.update([samples(math.nan)], slope_loss(weight))
    assert weight.item() == 0.0


@every_precision
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_loss_that_is_not_finite_is_skipped_though_its_gradient_is(precision, value):  # C10, C35, C36, C37
    weight, updater = slope(precision=precision, loss_scale=LossScale(64.0))
    window = [samples(1), samples(2), samples(value), samples(4)]
    report = updater.update(window, lambda x: ((weight * 2).sum() + x.sum(), 1))
    assert (report.outcome, report.reason, report.grad_norm) == ("skipped", "non-finite loss", 2.0)
    assert (report.bad_losses, report.micro_batches, updater.skipped) == (1, 4, 1)
    assert identical(report.loss, value)
    assert (weight.item(), weight.grad, updater.steps) == (0.0, None, 0)
    report = updater.update(window[:2], lambda x: ((weight * 2).sum() + x.sum(), 1))
    assert (report.outcome, report.bad_losses, weight.item()) == ("applied", 0, -2.0)
    assert updater.loss_scale is None or updater.loss_scale.value == 32.0


@every_precision
@pytest.mark.parametrize("on_device", [False, True], ids=["number", "tensor"])
def test_losses_that_are_not_finite_are_counted(precision, on_device):  # C35
    weight, updater = slope(precision=precision)
    values = [math.nan, 1.0, math.inf, 2.0, -math.inf]
    report = updater.update(
        [samples(x) for x in values], lambda x: ((weight * x).sum() + x.sum(), torch.tensor(1) if on_device else 1)
    )
    assert (report.outcome, report.bad_losses, report.micro_batches) == ("skipped", 3, 5)
