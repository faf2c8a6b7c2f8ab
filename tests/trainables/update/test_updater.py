"""One update per window: exact, counted, and the same after a resume."""

import copy
import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.trainables.toy_models import (
    IGNORED,
    TOLERANCE,
    Tokens,
    classifier,
    distance,
    every_precision,
    full_batch,
    identical,
    norm,
    recorded_gradients,
    samples,
    slope,
    slope_loss,
    token_loss,
    tokens,
)
from trainables.precision import LossScale, Precision, autocast
from trainables.update import Ema, Updater, UpdateReport

# Exact accumulation


@every_precision
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([4, 4, 4], id="equal-A1"),
        pytest.param([4, 1, 7], id="ragged-A3"),
        pytest.param([6, 0, 5], id="one-without-a-label-A5"),
        pytest.param([9], id="one-micro-batch"),
    ],
)
def test_the_gradient_is_that_of_the_whole_window_at_once(precision, sizes):  # A4, A16, D44, C12
    model = classifier()
    batches = tokens(sizes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = recorded_gradients(optimizer)
    loss, expected = full_batch(model, batches)
    report = Updater({"sgd": optimizer}, precision=precision).update(batches, token_loss(model))
    assert distance(seen[0], expected) <= TOLERANCE[precision] * norm(expected)
    assert report.loss == pytest.approx(loss, rel=TOLERANCE[precision])
    assert report.grad_norm == pytest.approx(norm(expected), rel=TOLERANCE[precision])
    assert report.weight == sum((labels >= 0).sum().item() for _, labels in batches)


def test_unequal_micro_batches_are_weighted_by_their_samples():  # A3, C11
    weight, updater = slope()
    updater.update([samples(1, 1, 1, 5), samples(9)], slope_loss(weight))
    assert weight.item() == pytest.approx(-17 / 5)  # not -(2 + 9) / 2


def test_fp64_parameters_get_fp64_gradients():  # A3
    model = classifier().double()
    batches = [(inputs.double(), labels) for inputs, labels in tokens([3, 1, 7, 5], ignored=False)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = recorded_gradients(optimizer)
    _, expected = full_batch(model, batches)
    Updater({"sgd": optimizer}).update(batches, token_loss(model))
    assert distance(seen[0], expected) <= 1e-12 * norm(expected)


def test_the_loss_of_a_window_does_not_depend_on_how_it_is_split():  # A16
    losses = []
    for size in (1, 2, 3, 12):
        torch.manual_seed(0)
        model = classifier()
        inputs, labels = tokens([12], ignored=False)[0]
        batches = list(zip(inputs.split(size), labels.split(size), strict=True))
        updater = Updater({"sgd": torch.optim.SGD(model.parameters(), lr=0.1)})
        losses.append(updater.update(batches, token_loss(model)).loss)
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-6)


@every_precision
def test_many_micro_batches_train_like_one_large_batch(precision):  # A11, C12
    split = classifier()
    start, whole = [p.detach().clone() for p in split.parameters()], copy.deepcopy(split)
    split_updater = Updater({"sgd": torch.optim.SGD(split.parameters(), lr=0.1, momentum=0.9)}, precision)
    whole_updater = Updater({"sgd": torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)}, precision)
    for step in range(20):
        batches = tokens([3, 5, 2, 6], seed=step)
        split_updater.update(batches, token_loss(split))
        inputs, labels = zip(*batches, strict=True)
        whole_updater.update([(torch.cat(inputs), torch.cat(labels))], token_loss(whole))
    moved = distance(list(whole.parameters()), start)
    assert split_updater.steps == whole_updater.steps == 20
    assert distance(list(split.parameters()), list(whole.parameters())) <= TOLERANCE[precision] * moved


@every_precision
def test_a_loss_that_was_summed_trains_like_one_that_was_averaged(precision):  # A13
    def summed(batch: Tokens) -> tuple[Tensor, Tensor]:
        inputs, labels = batch
        counted = (labels != IGNORED).sum()
        total = nn.functional.cross_entropy(model(inputs), labels, ignore_index=IGNORED, reduction="sum")
        return total / counted, counted

    gradients, losses = [], []
    model = classifier()
    for loss in (token_loss(model), summed):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        seen = recorded_gradients(optimizer)
        losses.append(Updater({"sgd": optimizer}, precision).update(tokens([5, 1, 9]), loss).loss)
        gradients += seen
    assert distance(*gradients) <= 1e-2 * TOLERANCE[precision] * norm(gradients[0])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@every_precision
@pytest.mark.parametrize("on_device", [False, True], ids=["number", "tensor"])
def test_without_accumulation_it_is_the_plain_loop_bit_for_bit(precision, on_device):  # A10, C04, C07, C42, G74
    model = classifier()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=precision == "fp16")
    scale = LossScale(1024.0)
    updater = Updater({"adam": torch.optim.AdamW(model.parameters(), lr=1e-2)}, precision, loss_scale=scale)
    exact = token_loss(model)

    def loss(batch: Tokens) -> tuple[Tensor, float | Tensor]:
        mean, weight = exact(batch)
        return mean, weight if on_device else weight.item()

    for step in range(10):
        batch = tokens([8], seed=step)[0]
        report = updater.update([batch], loss)
        optimizer.zero_grad()
        with autocast(Precision(precision), torch.device("cpu")):
            plain_loss, _ = token_loss(plain)(batch)
        scaler.scale(plain_loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert report.loss == pytest.approx(plain_loss.item(), rel=1e-6)
    assert identical(dict(model.state_dict()), dict(plain.state_dict()))


@every_precision
@pytest.mark.parametrize("window", [[], [samples()], [samples(), samples()]], ids=["no-batch", "one", "two"])
def test_a_window_without_weight_touches_nothing(precision, window):  # A6, C06, C08, C09, C13
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    ema = Ema({"weight": weight}, 0.9)
    updater = Updater({"adam": optimizer}, precision=precision, schedulers=[schedule], ema=ema)
    updater.update([samples(1)], slope_loss(weight))
    before = copy.deepcopy([weight.detach(), updater.state_dict()])
    for _ in range(2):
        report = updater.update(window, slope_loss(weight))
        assert (report.outcome, report.reason, report.weight) == ("empty", "no weight", 0.0)
        assert math.isnan(report.loss)
    before[1]["empty"] = 2
    assert identical(before, [weight.detach(), updater.state_dict()])
    assert weight.grad is None


@every_precision
def test_an_error_in_a_micro_batch_leaves_nothing_for_the_next_window(precision):  # A15
    weight, updater = slope(precision=precision)
    exact = slope_loss(weight)

    def loss(x: Tensor) -> tuple[Tensor, int]:
        if x[0] == 13:
            raise OSError("bad sample")
        return exact(x)

    before = copy.deepcopy(updater.state_dict())
    with pytest.raises(OSError, match="bad sample"):
        updater.update([samples(1), samples(5), samples(13)], loss)
    assert weight.grad is None
    assert identical(before, updater.state_dict())
    updater.update([samples(2), samples(4)], loss)
    assert weight.item() == -3.0


def test_a_loss_without_a_graph_is_refused():  # C29
    _, updater = slope()
    with pytest.raises(ValueError, match="loss must depend on a parameter that is trained, but got a constant"):
        updater.update([samples(1)], lambda x: (x.mean(), 1))


def test_batches_keep_their_shape_on_the_way_to_the_device():  # G75
    weight, updater = slope()
    received = []

    def loss(batch: dict[str, Any]) -> tuple[Tensor, int]:
        received.append(batch)
        return (weight * batch["x"][0]).mean(), 1

    batch = {"x": [samples(1), (torch.tensor([2]), "name")], "count": 3}
    updater.update([batch], loss)
    assert identical(received[0], batch)


# Schedules, averages, counters, state


@pytest.mark.parametrize("size", [1, 3])
def test_a_schedule_advances_once_per_applied_window_and_never_warns(size):  # F59, C25
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    updater = Updater({"sgd": optimizer}, "fp16", schedulers=[schedule])
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in (math.inf, 1.0, math.nan, 1.0, 1.0):
            updater.update([samples(x)] * size, slope_loss(weight))
            rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [1.0, 0.5, 0.5, 0.25, 0.125]
    assert weight.item() == -1.75


def test_each_window_is_counted_once_and_reported_once():  # F66
    reports: list[UpdateReport] = []
    weight, updater = slope(on_update=reports.append)
    returned = [updater.update([samples(*x)], slope_loss(weight)) for x in [(1,), (), (math.nan,), (1, 2), ()]]
    assert identical(reports, returned)
    assert [report.outcome for report in reports] == ["applied", "empty", "skipped", "applied", "empty"]
    assert (updater.steps, updater.skipped, updater.empty) == (2, 1, 2)


@every_precision
def test_an_updater_goes_on_from_its_state_bit_for_bit(precision):  # F66, H81, C50
    def make() -> tuple[nn.Module, Updater]:
        torch.manual_seed(0)
        model = classifier()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        updater = Updater(
            {"adam": optimizer},
            precision,
            max_grad_norm=0.1,
            schedulers=[torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)],
            ema=Ema(dict(model.named_parameters()), 0.9),
            loss_scale=LossScale(2.0**15, growth_interval=2),
        )
        return model, updater

    def go(model: nn.Module, updater: Updater, steps: range) -> None:
        for step in steps:
            batches = tokens([4, 2], seed=step)
            if step == 3:  # the last one before the state is taken
                batches[0][0][0, 0] = math.nan
            updater.update(batches, token_loss(model))

    model, updater = make()
    go(model, updater, range(4))
    state = copy.deepcopy([model.state_dict(), updater.state_dict()])
    assert state[1]["consecutive_skips"] == 1
    go(model, updater, range(4, 9))
    resumed, resumed_updater = make()
    resumed.load_state_dict(state[0])
    resumed_updater.load_state_dict(state[1])
    assert identical(resumed_updater.state_dict(), state[1])
    go(resumed, resumed_updater, range(4, 9))
    assert identical(dict(model.state_dict()), dict(resumed.state_dict()))
    assert identical(updater.state_dict(), resumed_updater.state_dict())


@pytest.mark.parametrize(("saved", "resumed"), [("bf16", "fp16"), ("fp16", "bf16"), ("fp32", "fp16")])
def test_a_state_of_another_precision_is_taken_up_with_a_fresh_scale(saved, resumed):  # C50
    weight, updater = slope(precision=saved, loss_scale=LossScale(32.0))
    updater.update([samples(1)], slope_loss(weight))
    _, other = slope(precision=resumed, loss_scale=LossScale(8.0))
    other.load_state_dict(updater.state_dict())
    assert other.steps == 1
    assert (other.loss_scale.value if other.loss_scale else None) == (8.0 if resumed == "fp16" else None)
