"""Micro-batches count by their weights, numbers or tensors on the device, and one without weight not at all."""

import copy
import math
from collections.abc import Callable

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
from trainables.precision import LossScale
from trainables.update import Ema, Updater

AS_NUMBER = float
KINDS = {"numbers": [AS_NUMBER], "tensors": [torch.as_tensor], "mixed": [AS_NUMBER, torch.as_tensor]}
every_kind = pytest.mark.parametrize("kinds", [*KINDS.values(), KINDS["mixed"][::-1]], ids=[*KINDS, "mixed-too"])


def masked_loss(model: nn.Module, kinds: list[Callable[[Tensor], float | Tensor]]) -> Callable[..., tuple[Tensor, ...]]:
    """A mean that is masked by hand: its gradient is NaN where no label counts. Weights take turns in their kind."""
    turns: list[int] = []

    def loss(batch: Tokens) -> tuple[Tensor, float | Tensor]:
        inputs, labels = batch
        mask = labels != IGNORED
        each = nn.functional.cross_entropy(model(inputs), labels.clamp(min=0), reduction="none").float()
        turns.append(1)
        return (each * mask).sum() / mask.sum(), kinds[len(turns) % len(kinds)](mask.sum())

    return loss


def without_labels(size: int) -> Tokens:
    return torch.randn(size, 5), torch.full((size,), IGNORED)


def test_a_mean_that_is_masked_by_hand_has_a_gradient_of_nan_over_nothing():
    model = classifier()
    loss, _ = masked_loss(model, [AS_NUMBER])(without_labels(3))
    loss.backward()
    assert all(p.grad.isnan().all() for p in model.parameters())


@every_precision
@every_kind
@pytest.mark.parametrize("nothing_at", [(0,), (1,), (3,), (0, 1, 3)], ids=["first", "middle", "last", "everywhere"])
def test_a_micro_batch_over_nothing_adds_nothing(precision, kinds, nothing_at):  # A5, C13
    model = classifier()
    full = tokens([3, 6])
    window = list(full)
    for place in nothing_at:
        window.insert(place, without_labels(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = recorded_gradients(optimizer)
    loss, expected = full_batch(model, full)
    report = Updater({"sgd": optimizer}, precision).update(window, masked_loss(model, kinds))
    assert (report.outcome, report.micro_batches, report.bad_losses) == ("applied", len(window), 0)
    assert report.weight == sum((labels != IGNORED).sum().item() for _, labels in full)
    assert report.loss == pytest.approx(loss, rel=TOLERANCE[precision])
    assert distance(seen[0], expected) <= TOLERANCE[precision] * norm(expected)


@every_precision
def test_a_micro_batch_without_samples_adds_nothing(precision):  # A5, C13
    weight, updater = slope(precision=precision)
    report = updater.update([samples(), samples(2, 4), samples()], slope_loss(weight))
    assert weight.item() == -3.0
    assert (report.outcome, report.loss, report.weight, report.micro_batches) == ("applied", 0.0, 2.0, 3)


@every_precision
@every_kind
@pytest.mark.parametrize("size", [1, 3])
def test_a_window_over_nothing_is_empty(precision, kinds, size):  # A6, C13
    model = classifier()
    updater = Updater({"adam": torch.optim.AdamW(model.parameters(), weight_decay=0.5)}, precision)
    updater.update(tokens([4]), token_loss(model))
    before = copy.deepcopy([dict(model.state_dict()), updater.state_dict()])
    report = updater.update([without_labels(2)] * size, masked_loss(model, kinds))
    before[1]["empty"] = 1
    assert (report.outcome, report.reason, report.weight) == ("empty", "no weight", 0.0)
    assert identical(before, [dict(model.state_dict()), updater.state_dict()])
    assert all(p.grad is None for p in model.parameters())


@every_precision
@every_kind
@pytest.mark.parametrize("sizes", [[1, 4096], [4096, 1], [1, 64, 4096, 7]], ids=["grows", "shrinks", "both"])
def test_a_weight_that_grows_inside_a_window_does_not_overflow(precision, kinds, sizes):  # A3, C11
    model = classifier()
    batches = tokens(sizes, ignored=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = recorded_gradients(optimizer)
    _, expected = full_batch(model, batches)
    updater = Updater({"sgd": optimizer}, precision, loss_scale=LossScale(2.0**14))  # 4096 times it is infinite in fp16
    report = updater.update(batches, masked_loss(model, kinds))
    assert report.outcome == "applied"
    assert distance(seen[0], expected) <= TOLERANCE[precision] * norm(expected)


@every_precision
@pytest.mark.parametrize("on_device", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_weight_must_be_a_finite_number_of_at_least_0(precision, on_device, value, position):  # A15
    layers = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(layers.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    ema = Ema(dict(layers.named_parameters()), 0.9)
    updater = Updater({"adam": optimizer}, precision, schedulers=[schedule], ema=ema, modules={"layers": layers})
    weights = [2.0, 1.0, 3.0]

    def loss(batch: tuple[Tensor, int]) -> tuple[Tensor, float | Tensor]:
        x, index = batch
        return layers(x).square().sum(), torch.tensor(weights[index]) if on_device else weights[index]

    window = [(torch.randn(4, 2), index) for index in range(3)]
    updater.update(window, loss)
    before = copy.deepcopy([dict(layers.state_dict()), updater.state_dict()])
    weights[position] = value
    with pytest.raises(
        ValueError, match=f"weight of a micro-batch must be a finite number of at least 0, but got (nan|{value})"
    ):
        updater.update(window, loss)
    assert identical(before, [dict(layers.state_dict()), updater.state_dict()])
    assert all(p.grad is None for p in layers.parameters())


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64])
def test_a_weight_may_be_a_tensor_of_any_kind_that_counts(dtype):
    weight, updater = slope()
    report = updater.update(
        [samples(1), samples(4)], lambda x: ((weight * x).mean(), torch.ones(1 if x[0] == 1 else (), dtype=dtype))
    )
    assert (weight.item(), report.weight) == (-2.5, 2.0)


def test_counts_beyond_what_fp32_can_tell_apart_are_exact():
    weight, updater = slope()
    report = updater.update([samples(1)] * 2, lambda x: ((weight * x).mean(), torch.tensor(2**24 + 1)))
    assert report.weight == 2 * (2**24 + 1)


def test_a_weight_has_no_gradient_of_its_own():
    weight, updater = slope()
    updater.update([samples(1), samples(4)], lambda x: ((weight * x).mean(), (weight + 1).sum()))
    assert weight.item() == -2.5


@pytest.mark.parametrize("on_device", [False, True], ids=["number", "tensor"])
def test_a_loss_of_one_element_is_a_loss(on_device):
    weight, updater = slope()
    report = updater.update([samples(1), samples(4)], lambda x: (weight * x, torch.tensor(1) if on_device else 1))
    assert (weight.item(), report.outcome) == (-2.5, "applied")


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda x: x.mean(), r"loss must return \(mean loss, weight\), .* but got Tensor"),
        (lambda x: (x.mean(), 1, 2), r"loss must return \(mean loss, weight\), .* but got \(Tensor, int, int\)"),
        (lambda x: (x, 1), r"loss must be one number, the mean over the micro-batch, but got \(3,\)"),
    ],
    ids=["no-weight", "more-than-two", "many-numbers"],
)
def test_a_loss_is_one_number_and_its_weight(returned, message):  # A15
    weight, updater = slope()
    with pytest.raises(ValueError, match=message):
        updater.update([samples(1, 2, 3)], lambda x: returned(weight * x))
    assert (weight.item(), weight.grad, updater.steps) == (0.0, None, 0)
