"""All or nothing: a window with a gradient that is not finite changes nothing, and clipping sees the true one."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from tests.trainables.toys import (
    PRECISIONS,
    classifier,
    epoch,
    identical,
    samples,
    slope,
    slope_loss,
    token_loss,
    tokens,
)
from trainables.ema import Ema
from trainables.precision import Diverged, LossScale
from trainables.update import Updater

every_precision = pytest.mark.parametrize("precision", PRECISIONS)


# Gradients that are not finite


@every_precision
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("position", [0, 2], ids=["first-batch", "last-batch"])
def test_one_bad_element_skips_the_whole_window_and_changes_nothing(precision, value, position):
    # C31, C35; C24, C35, C36, C37
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
    assert (report.outcome, report.reason) == ("skipped", "non-finite gradient")
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
def test_finite_gradients_with_an_infinite_norm_are_skipped(precision):  # C33
    weight = nn.Parameter(torch.zeros(4))
    updater = Updater(
        {"sgd": torch.optim.SGD([weight], lr=1.0)}, precision, max_grad_norm=1.0, loss_scale=LossScale(1.0)
    )
    report = updater.update([torch.full((4,), 2e38)], lambda x: ((weight * x).sum(), 1))
    assert (report.outcome, report.reason) == ("skipped", "gradient norm overflow")
    assert weight.tolist() == [0.0] * 4


def test_the_loss_scale_follows_the_windows():  # C26, C36
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


def test_an_overflow_halves_the_scale_once_however_many_optimizers_there_are():  # C36
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


def test_a_scale_at_its_floor_ends_the_trial():  # C37
    weight, updater = slope(precision="fp16", loss_scale=LossScale(4.0, minimum=1.0))
    for _ in range(2):
        updater.update([samples(math.inf)], slope_loss(weight))
    assert updater.loss_scale.value == 1.0
    with pytest.raises(Diverged, match=r"loss scale 1 cannot be lowered, .* at step 0 the gradient norm is inf"):
        updater.update([samples(math.inf)], slope_loss(weight))
    assert updater.loss_scale.value == 1.0
    assert weight.item() == 0.0


def test_the_default_scale_reaches_its_floor_before_it_underflows():  # C37: not 144 skips
    weight, updater = slope(precision="fp16")
    for _ in range(30):
        updater.update([samples(math.nan)], slope_loss(weight))
    with pytest.raises(Diverged, match=r"loss scale 6\.10352e-05 cannot be lowered"):
        updater.update([samples(math.nan)], slope_loss(weight))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_too_many_skips_in_a_row_end_the_trial(precision):  # C38; C36, C38
    weight, updater = slope(precision=precision, max_consecutive_skips=2)
    for x in (math.nan, math.inf, 1.0, math.nan, math.inf):  # an applied window starts the count anew
        updater.update([samples(x)], slope_loss(weight))
    with pytest.raises(Diverged, match=r"3 windows in a row .* at step 1 the gradient norm is nan, .* no loss scale"):
        updater.update([samples(math.nan)], slope_loss(weight))
    assert weight.item() == -1.0


def test_tiny_losses_never_drive_the_scale_to_infinity():  # C39
    weight, updater = slope(precision="fp16", loss_scale=LossScale(1.0, growth_interval=1))
    reports = [updater.update([samples(1e-30)], slope_loss(weight)) for _ in range(300)]
    assert {report.outcome for report in reports} == {"applied"}
    assert math.isfinite(updater.loss_scale.value)
    assert weight.item() == pytest.approx(-300e-30, rel=1e-4)


# Clipping


@every_precision
@pytest.mark.parametrize("parts", [1, 4])
def test_clipping_acts_on_the_true_gradient(precision, parts):  # D43, D44, C21
    weight = nn.Parameter(torch.zeros(2))
    updater = Updater(
        {"sgd": torch.optim.SGD([weight], lr=1.0)}, precision, max_grad_norm=1.0, loss_scale=LossScale(1024)
    )
    report = updater.update([samples(1.2, 1.6)] * parts, lambda x: ((weight * x).sum(), 3))
    assert report.grad_norm == pytest.approx(2.0, rel=1e-6)
    assert isinstance(report.grad_norm, float)
    assert weight.tolist() == pytest.approx([-0.6, -0.8], rel=1e-5)


@pytest.mark.parametrize("limit", [None, 2.5])
def test_a_gradient_within_the_limit_is_left_as_it_is_and_reported(limit):  # D46, C22
    weight, updater = slope(max_grad_norm=limit)
    report = updater.update([samples(2.0)], slope_loss(weight))
    assert (weight.item(), report.grad_norm) == (-2.0, 2.0)


def test_the_norm_is_taken_over_all_optimizers():  # D45
    first, second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizers = {"a": torch.optim.SGD([first], lr=1.0), "b": torch.optim.SGD([second], lr=1.0)}
    report = Updater(optimizers, max_grad_norm=1.0).update([samples(1)], lambda x: ((3 * first + 4 * second).sum(), 1))
    assert report.grad_norm == 5.0
    assert [first.item(), second.item()] == pytest.approx([-0.6, -0.8], rel=1e-5)


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan, math.inf])
def test_a_clipping_limit_must_be_positive_and_finite(limit):  # D46
    with pytest.raises(ValueError, match="max_grad_norm must be positive and finite or None"):
        slope(max_grad_norm=limit)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_skipped_window_leaves_the_statistics_of_batch_norm_as_they_were(bad):  # C35
    norm, head = nn.BatchNorm1d(2), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*norm.parameters(), *head.parameters()], lr=0.1)
    updater = Updater({"model": optimizer}, modules={"norm": norm, "head": head})
    good = torch.randn(4, 2)
    updater.update([good], lambda x: (head(norm(x)).square().mean(), len(x)))
    before = copy.deepcopy(norm.state_dict())
    report = updater.update([good, torch.full((4, 2), bad)], lambda x: (head(norm(x)).square().mean(), len(x)))
    assert report.outcome == "skipped"
    assert all(torch.equal(before[name], value) for name, value in norm.state_dict().items())
    updater.update([good], lambda x: (head(norm(x)).square().mean(), len(x)))
    assert norm.num_batches_tracked == 2
