"""An epoch of windows: each is applied once and by itself, whatever it holds and however the epoch ends."""

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn

from tests.trainables.toy_models import (
    classifier,
    epoch,
    every_precision,
    identical,
    recorded_gradients,
    samples,
    slope,
    slope_loss,
    token_loss,
    tokens,
)
from trainables.precision import LossScale
from trainables.update import Updater, windows


def test_windows_split_a_stream_of_unknown_length_and_keep_its_tail():  # A8, C03
    assert list(windows(iter("abcdefghi"), 4)) == [list("abcd"), list("efgh"), list("i")]


def test_windows_of_nothing_are_none():  # C06
    assert list(windows([], 4)) == []


def test_a_window_looks_no_further_ahead_than_itself():  # C15
    stream = itertools.count()
    first = next(windows(stream, 3))
    assert first == [0, 1, 2]
    assert next(stream) == 3


@pytest.mark.parametrize("size", [0, -1])
def test_a_window_must_hold_something(size):
    with pytest.raises(ValueError, match=rf"window size must be at least 1, but got {size}"):
        list(windows([1], size))


# Epochs


@every_precision
@pytest.mark.parametrize(
    ("batches", "size", "expected", "steps"),
    [
        pytest.param(range(1, 9), 4, -9.0, 2, id="full-windows-C01"),
        pytest.param(range(1, 10), 4, -18.0, 3, id="tail-has-full-weight-A2-A14-C02-C03-C04"),
        pytest.param(range(1, 4), 8, -2.0, 1, id="epoch-shorter-than-a-window-A7-C05"),
        pytest.param(range(1, 4), 1, -6.0, 3, id="no-accumulation-A10-C07"),
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
def test_an_epoch_of_unknown_length_leaves_nothing_for_the_next(precision):  # A2, A8, C14
    weight, updater = slope(precision=precision)
    steps = recorded_gradients(updater.optimizers["sgd"])
    for _ in range(2):
        epoch(weight, updater, (samples(1) for _ in range(5)), 2)
        assert weight.grad is None
    assert [gradient.item() for (gradient,) in steps] == [1.0] * 6  # the tails too, and nothing on top of the third


@every_precision
def test_a_second_epoch_is_the_first_of_a_fresh_updater(precision):  # C14
    def make(model: nn.Module) -> Updater:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return Updater({"sgd": optimizer}, precision, max_grad_norm=0.5, loss_scale=LossScale(1024.0))

    def train(model: nn.Module, updater: Updater) -> None:
        for window in windows(tokens([4, 3, 2, 5, 1]), 2):
            updater.update(window, token_loss(model))

    used = classifier()
    updater = make(used)
    train(used, updater)
    fresh = copy.deepcopy(used)
    train(used, updater)
    train(fresh, make(fresh))
    assert identical(dict(used.state_dict()), dict(fresh.state_dict()))


@every_precision
def test_an_epoch_that_is_broken_off_has_trained_whole_windows_and_loses_no_batch(precision):  # A9, C15
    weight, updater = slope(precision=precision)
    stream = (samples(x) for x in itertools.count(1))
    for window in windows(stream, 2):
        updater.update(window, slope_loss(weight))
        if updater.steps == 2:
            break
    assert (weight.item(), weight.grad, updater.steps) == (-1.5 - 3.5, None, 2)
    updater.update(next(windows(stream, 2)), slope_loss(weight))
    assert weight.item() == -5.0 - 5.5


@every_precision
def test_each_window_is_normalised_by_what_it_holds_itself(precision):  # A14
    weight, updater = slope(precision=precision)
    stream = (samples(x) for x in range(1, 11))
    positions = []
    for size in (3, 1, 4, 2):
        updater.update(next(windows(stream, size)), slope_loss(weight))
        positions.append(weight.item())
    assert positions == [-2.0, -6.0, -12.5, -22.0]


@every_precision
@pytest.mark.parametrize(
    "sums",
    [[-0.7], [0.0], [3.0, -3.0]],
    ids=["negative", "zero", "cancelling"],
)
def test_a_window_is_applied_once_whatever_its_loss_is(precision, sums):  # C10
    weight, updater = slope(precision=precision)

    def loss(offset: Tensor) -> tuple[Tensor, int]:
        return (weight * 2.0).sum() + offset, 1

    report = updater.update([samples(x) for x in sums], lambda x: loss(x.sum()))
    assert report.outcome == "applied"
    assert (weight.item(), updater.steps) == (-2.0, 1)


def test_gradients_that_somebody_else_left_are_not_applied():  # C14, C23
    weight, updater = slope()
    weight.grad = torch.full((1,), 100.0)
    updater.update([samples(1)], slope_loss(weight))
    assert weight.item() == -1.0
    assert weight.grad is None
