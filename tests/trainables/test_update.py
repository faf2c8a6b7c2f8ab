"""One update per window: exact, all or nothing, and never from a gradient that is not finite."""

import copy
import itertools
import math
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.trainables.toys import (
    PRECISIONS,
    TOLERANCE,
    classifier,
    distance,
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
from trainables.ema import Ema
from trainables.precision import Diverged, LossScale
from trainables.update import Updater, UpdateReport, windows

every_precision = pytest.mark.parametrize("precision", PRECISIONS)


def epoch(weight: nn.Parameter, updater: Updater, batches: Any, size: int) -> list[UpdateReport]:
    return [updater.update(window, slope_loss(weight)) for window in windows(batches, size)]


# Windows


def test_windows_split_a_stream_of_unknown_length_and_keep_its_tail():  # A8
    assert list(windows(iter("abcdefghi"), 4)) == [list("abcd"), list("efgh"), list("i")]


def test_windows_of_nothing_are_none():  # C06
    assert list(windows([], 4)) == []


def test_a_window_looks_no_further_ahead_than_itself():
    stream = itertools.count()
    first = next(windows(stream, 3))
    assert first == [0, 1, 2]
    assert next(stream) == 3


@pytest.mark.parametrize("size", [0, -1])
def test_a_window_must_hold_something(size):
    with pytest.raises(ValueError, match=rf"window size must be at least 1, but got {size}"):
        list(windows([1], size))


# Exact accumulation


@every_precision
@pytest.mark.parametrize(
    ("batches", "size", "expected", "steps"),
    [
        pytest.param(range(1, 9), 4, -9.0, 2, id="full-windows-C01"),
        pytest.param(range(1, 10), 4, -18.0, 3, id="tail-has-full-weight-A2-C02-C03-C04"),
        pytest.param(range(1, 4), 8, -2.0, 1, id="epoch-shorter-than-a-window-A7-C05"),
        pytest.param(range(1, 4), 1, -6.0, 3, id="no-accumulation-C07"),
        pytest.param([], 4, 0.0, 0, id="empty-loader-C06"),
    ],
)
def test_an_epoch_moves_by_the_mean_of_each_window(precision, batches, size, expected, steps):
    weight, updater = slope(precision=precision, loss_scale=LossScale(1024))
    reports = epoch(weight, updater, (samples(x) for x in batches), size)
    assert weight.item() == expected
    assert updater.steps == len(reports) == steps
    assert [report.micro_batches for report in reports] == [len(w) for w in windows(batches, size)]


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
def test_the_gradient_is_that_of_the_whole_window_at_once(precision, sizes):  # also A4, C12: ignored labels
    model = classifier()
    batches = tokens(sizes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = recorded_gradients(optimizer)
    loss, expected = full_batch(model, batches)
    report = Updater({"sgd": optimizer}, precision=precision).update(batches, token_loss(model))
    assert distance(seen[0], expected) <= TOLERANCE[precision] * norm(expected)
    assert report.loss == pytest.approx(loss, rel=TOLERANCE[precision])  # A16
    assert report.grad_norm == pytest.approx(norm(expected), rel=TOLERANCE[precision])  # D44
    assert report.weight == sum((labels >= 0).sum().item() for _, labels in batches)


def test_unequal_micro_batches_are_weighted_by_their_samples():  # C11
    weight, updater = slope()
    updater.update([samples(1, 1, 1, 5), samples(9)], slope_loss(weight))
    assert weight.item() == pytest.approx(-17 / 5)  # not -(2 + 9) / 2


def test_fp64_parameters_get_fp64_gradients():
    model = classifier().double()
    batches = [(inputs.double(), labels) for inputs, labels in tokens([3, 1, 7, 5], ignored=False)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = recorded_gradients(optimizer)
    _, expected = full_batch(model, batches)
    Updater({"sgd": optimizer}).update(batches, token_loss(model))
    assert distance(seen[0], expected) <= 1e-12 * norm(expected)


@given(
    precision=st.sampled_from(PRECISIONS),
    epoch=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_random_windows_match_the_full_batch(precision, epoch, seed):  # A1, A3 to A6, A14, C12, C14
    torch.manual_seed(seed)
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    seen = recorded_gradients(optimizer)
    updater = Updater({"sgd": optimizer}, precision=precision, loss_scale=LossScale(1024))
    for index, sizes in enumerate(epoch):
        batches = tokens(sizes, seed + index)
        counted = [batch for batch in batches if (batch[1] >= 0).any()]
        seen.clear()
        before = copy.deepcopy(model.state_dict())
        # Gradients of micro-batches may cancel: the error is measured against their mean length.
        scale = sum(norm(full_batch(model, [b])[1]) * (b[1] >= 0).sum().item() for b in counted)
        scale /= max(1, sum((b[1] >= 0).sum().item() for b in counted))
        loss, expected = full_batch(model, counted) if counted else (math.nan, [])
        report = updater.update(batches, token_loss(model))
        assert report.outcome == ("applied" if counted else "empty")
        if counted:
            assert distance(seen[0], expected) <= TOLERANCE[precision] * scale
            assert report.loss == pytest.approx(loss, rel=TOLERANCE[precision])
        else:
            assert identical(before, dict(model.state_dict()))
    assert updater.steps + updater.skipped + updater.empty == len(epoch)  # F66


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


def test_many_micro_batches_train_like_one_large_batch():  # A11, C12
    torch.manual_seed(0)
    split = classifier()
    whole = copy.deepcopy(split)
    split_updater = Updater({"sgd": torch.optim.SGD(split.parameters(), lr=0.1, momentum=0.9)})
    whole_updater = Updater({"sgd": torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)})
    for step in range(20):
        batches = tokens([3, 5, 2, 6], seed=step)
        split_updater.update(batches, token_loss(split))
        inputs, labels = zip(*batches, strict=True)
        whole_updater.update([(torch.cat(inputs), torch.cat(labels))], token_loss(whole))
    assert distance(list(split.parameters()), list(whole.parameters())) <= 2e-6 * norm(list(whole.parameters()))


def test_fp32_without_accumulation_is_the_plain_loop_bit_for_bit():  # A10, C42, G74
    torch.manual_seed(0)
    model = classifier()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    updater = Updater({"adam": torch.optim.AdamW(model.parameters(), lr=1e-2)})
    for step in range(10):
        batch = tokens([8], seed=step)[0]
        report = updater.update([batch], token_loss(model))
        optimizer.zero_grad()
        loss, _ = token_loss(plain)(batch)
        loss.backward()
        optimizer.step()
        assert report.loss == pytest.approx(loss.item(), rel=1e-6)
    assert identical(dict(model.state_dict()), dict(plain.state_dict()))


@every_precision
def test_a_micro_batch_without_weight_adds_nothing_not_even_nan(precision):  # A5, C13
    weight, updater = slope(precision=precision)
    report = updater.update([samples(), samples(2, 4), samples()], slope_loss(weight))
    assert weight.item() == -3.0
    assert (report.outcome, report.loss, report.weight, report.micro_batches) == ("applied", 0.0, 2.0, 3)


@every_precision
@pytest.mark.parametrize("window", [[], [samples()], [samples(), samples()]], ids=["no-batch", "one", "two"])
def test_a_window_without_weight_touches_nothing(precision, window):  # A6, C08, C09, C13
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


@pytest.mark.parametrize(
    "sums",
    [[-0.7], [0.0], [3.0, -3.0]],
    ids=["negative", "zero", "cancelling"],
)
def test_a_window_is_applied_whatever_its_loss_is(sums):  # C10
    weight, updater = slope()

    def loss(offset: Tensor) -> tuple[Tensor, int]:
        return (weight * 2.0).sum() + offset, 1

    report = updater.update([samples(x) for x in sums], lambda x: loss(x.sum()))
    assert report.outcome == "applied"
    assert weight.item() == -2.0


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


def test_gradients_that_somebody_else_left_are_not_applied():  # C14
    weight, updater = slope()
    weight.grad = torch.full((1,), 100.0)
    updater.update([samples(1)], slope_loss(weight))
    assert weight.item() == -1.0
    assert weight.grad is None


def test_a_loss_without_a_graph_is_refused():  # C29
    _, updater = slope()
    with pytest.raises(ValueError, match="loss must depend on a parameter that is trained, but got a constant"):
        updater.update([samples(1)], lambda x: (x.mean(), 1))


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_a_weight_must_be_a_finite_number_of_at_least_0(value):
    weight, updater = slope()
    with pytest.raises(ValueError, match="weight of a micro-batch must be a finite number of at least 0"):
        updater.update([samples(1)], lambda x: ((weight * x).mean(), value))


def test_batches_keep_their_shape_on_the_way_to_the_device():
    weight, updater = slope()
    received = []

    def loss(batch: dict[str, Any]) -> tuple[Tensor, int]:
        received.append(batch)
        return (weight * batch["x"][0]).mean(), 1

    batch = {"x": [samples(1), (torch.tensor([2]), "name")], "count": 3}
    updater.update([batch], loss)
    assert identical(received[0], batch)


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
    with pytest.raises(Diverged, match=r"3 windows in a row .* at step 1, gradient norm nan, no loss scale"):
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


# Several optimizers


def test_three_optimizers_under_one_loss_scale_train_as_in_fp32():  # E49
    results = []
    for precision in ("fp32", "fp16"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizers = {
            "first": torch.optim.SGD(model[0].parameters(), lr=0.1),
            "middle": torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9),
            "last": torch.optim.SGD(model[4].parameters(), lr=0.05),
        }
        updater = Updater(optimizers, precision, max_grad_norm=1.0)
        for step in range(10):
            updater.update(tokens([4, 3, 2], seed=step), token_loss(model))
        assert updater.steps == 10
        results.append([p.detach() for p in model.parameters()])
    assert distance(results[1], results[0]) <= TOLERANCE["fp16"] * norm(results[0])


@every_precision
def test_either_all_optimizers_step_or_none(precision):  # E50
    healthy, sick = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizers = {"healthy": torch.optim.SGD([healthy], lr=1.0), "sick": torch.optim.SGD([sick], lr=1.0)}
    updater = Updater(optimizers, precision)
    report = updater.update([samples(1, math.inf)], lambda x: ((healthy * x[0] + sick * x[1]).sum(), 1))
    assert report.outcome == "skipped"
    assert (healthy.item(), sick.item()) == (0.0, 0.0)


@every_precision
def test_an_optimizer_without_gradients_waits_while_the_others_step(precision):  # E51, E58, C32
    used, idle = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizers = {
        "used": torch.optim.SGD([used], lr=1.0),
        "idle": torch.optim.AdamW([idle], lr=0.1, weight_decay=0.5),
    }
    updater = Updater(optimizers, precision)
    steps = recorded_gradients(optimizers["idle"])
    updater.update([samples(1)], lambda x: ((used * x + idle * x).sum(), 1))
    before = copy.deepcopy([idle.detach(), optimizers["idle"].state_dict()])
    assert updater.update([samples(1)], lambda x: ((used * x).sum(), 1)).outcome == "applied"
    assert used.item() == -1.0
    assert identical(before, [idle.detach(), optimizers["idle"].state_dict()])
    assert len(steps) == 1


def test_a_parameter_without_a_gradient_is_not_moved_by_weight_decay():  # E58
    used, unused = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    updater = Updater({"adam": torch.optim.AdamW([used, unused], lr=0.1, weight_decay=0.5)})
    for _ in range(2):
        updater.update([samples(1)], lambda x: ((used * x).sum(), 1))
    assert unused.item() == 1.0
    assert used.item() < 0.9


def test_a_window_in_which_no_parameter_gets_a_gradient_is_empty():  # E52
    elsewhere = nn.Parameter(torch.ones(1))
    weight, updater = slope()
    report = updater.update([samples(1)], lambda x: ((elsewhere * x).sum(), 1))
    assert (report.outcome, report.reason, updater.empty, updater.steps) == ("empty", "no gradient", 1, 0)
    assert weight.item() == 0.0
    assert elsewhere.grad is None


def test_a_parameter_of_two_optimizers_is_refused():  # E53
    weight = nn.Parameter(torch.zeros(2, 3))
    optimizers = {"a": torch.optim.SGD([weight], lr=1.0), "b": torch.optim.Adam([weight], lr=1.0)}
    with pytest.raises(ValueError, match=r"must belong to one optimizer, but 'a' and 'b' share one of shape \(2, 3\)"):
        Updater(optimizers)


@every_precision
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_parameters_are_refused_with_the_remedy(precision, dtype):  # E54, C33
    model = nn.Linear(4, 2).to(dtype)
    with pytest.raises(ValueError, match=rf"'adam' must be fp32, but number 0, of shape \(2, 4\), is {dtype}.*float()"):
        Updater({"adam": torch.optim.AdamW(model.parameters())}, precision)


def test_an_optimizer_that_needs_a_closure_is_refused():  # E56
    with pytest.raises(ValueError, match="'quasi' must step without a closure, but got LBFGS"):
        Updater({"quasi": torch.optim.LBFGS(nn.Linear(1, 1).parameters())})


def test_there_must_be_something_to_train():
    with pytest.raises(ValueError, match="optimizers must name at least one optimizer, but got none"):
        Updater({})
    frozen = nn.Parameter(torch.zeros(1), requires_grad=False)
    with pytest.raises(ValueError, match="must hold a parameter that requires a gradient, but none does"):
        Updater({"sgd": torch.optim.SGD([frozen], lr=1.0)})


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}], ids=["fused", "foreach"])
def test_variants_of_an_optimizer_train_and_skip_alike(options):  # E55
    results = []
    for variant in (options, {"foreach": False}):
        torch.manual_seed(0)
        model = classifier()
        updater = Updater({"adam": torch.optim.AdamW(model.parameters(), lr=1e-2, **variant)}, "fp16")
        for step in range(6):
            batches = tokens([4, 3], seed=step)
            if step == 2:
                batches[1][0][0, 0] = math.inf
            updater.update(batches, token_loss(model))
        assert (updater.steps, updater.skipped) == (5, 1)
        results.append([p.detach() for p in model.parameters()])
    assert distance(*results) <= 1e-5 * norm(results[0])


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
    assert identical([vars(r) for r in reports], [vars(r) for r in returned])
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


def test_the_schedule_of_an_optimizer_without_gradients_waits_for_it():  # E51, F59
    used, idle = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    optimizers = {name: torch.optim.SGD(m.parameters(), lr=1.0) for name, m in (("used", used), ("idle", idle))}
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5) for optimizer in optimizers.values()]
    updater = Updater(optimizers, schedulers=schedulers)
    updater.update([torch.ones(1, 1)], lambda x: (used(x).mean(), 1))
    assert [scheduler.get_last_lr() for scheduler in schedulers] == [[0.5], [1.0]]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_skipped_window_leaves_the_statistics_of_batch_norm_as_they_were(bad):  # C35
    norm, head = nn.BatchNorm1d(2), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*norm.parameters(), *head.parameters()], lr=0.1)
    updater = Updater({"model": optimizer}, buffers=list(norm.buffers()))
    good = torch.randn(4, 2)
    updater.update([good], lambda x: (head(norm(x)).square().mean(), len(x)))
    before = copy.deepcopy(norm.state_dict())
    report = updater.update([good, torch.full((4, 2), bad)], lambda x: (head(norm(x)).square().mean(), len(x)))
    assert report.outcome == "skipped"
    assert all(torch.equal(before[name], value) for name, value in norm.state_dict().items())
    updater.update([good], lambda x: (head(norm(x)).square().mean(), len(x)))
    assert norm.num_batches_tracked == 2
