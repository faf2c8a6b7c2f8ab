"""Test that the gradient of a window is that of all its samples at once, each micro-batch counted by its weight."""

import copy
import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from searchlight.trainables.precision import LossScale, Precision, autocast
from searchlight.trainables.update import Updater
from tests.trainables.toy_models import (
    IGNORED,
    PRECISIONS,
    TOLERANCE,
    Tokens,
    classifier,
    complete_updater,
    distance,
    every_precision,
    full_batch,
    identical,
    norm,
    recorded_gradients,
    samples,
    slope,
    snapshot,
    token_loss,
    tokens,
)

as_number_or_tensor = pytest.mark.parametrize("on_device", [False, True], ids=["number", "tensor"])


class MicroBatch(NamedTuple):
    inputs: Tensor
    labels: Tensor
    magnitude: float  # of its loss
    on_device: bool  # its weight


def masked_mean(model: nn.Module, batch: MicroBatch) -> tuple[Tensor, Tensor]:
    """The mean over the labels that count, masked by hand: its gradient is NaN too where none does."""
    mask = batch.labels != IGNORED
    each = nn.functional.cross_entropy(model(batch.inputs), batch.labels.clamp(min=0), reduction="none")
    return batch.magnitude * (each * mask).sum() / mask.sum(), mask.sum()


def masked_loss(model: nn.Module) -> Callable[[MicroBatch], tuple[Tensor, float | Tensor]]:
    def loss(batch: MicroBatch) -> tuple[Tensor, float | Tensor]:
        mean, weight = masked_mean(model, batch)
        return mean, weight if batch.on_device else float(weight)

    return loss


def reference(model: nn.Module, batches: list[MicroBatch]) -> tuple[float, list[Tensor], float]:
    """Loss and gradient of the window in fp64, and the mean length of its micro-batches' gradients.

    Gradients may cancel: errors are measured against that length.
    """
    model = copy.deepcopy(model).double()
    parameters = list(model.parameters())
    loss, gradients, length, total = 0.0, [torch.zeros_like(p) for p in parameters], 0.0, 0
    for batch in batches:
        mean, weight = masked_mean(model, batch._replace(inputs=batch.inputs.double()))
        own = torch.autograd.grad(mean, parameters)
        loss += mean.item() * weight.item()
        length += norm(own) * weight.item()
        gradients = [sum_ + gradient * weight for sum_, gradient in zip(gradients, own, strict=True)]
        total += weight.item()
    return loss / total, [gradient / total for gradient in gradients], length / total


HOW = st.tuples(st.integers(0, 6), st.sampled_from([1e-3, 1.0, 30.0, 1e3]), st.booleans())


@given(
    precision=st.sampled_from(PRECISIONS),
    epoch=st.lists(st.lists(HOW, min_size=1, max_size=5), min_size=1, max_size=3),
    parts=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
@settings(max_examples=50)
def test_random_windows_match_the_full_batch(precision, epoch, parts, seed):
    # A1, A2, A3, A4, A5, A6, A8, A11, A13, A14, A16, D44, E49, C09, C11, C12, C13, C14
    torch.manual_seed(seed)
    model = classifier()
    groups = [list(model.parameters())[index::parts] for index in range(parts)]
    optimizers = {str(i): torch.optim.SGD(group, lr=1e-3, momentum=0.9) for i, group in enumerate(groups)}
    seen = [recorded_gradients(optimizer) for optimizer in optimizers.values()]
    updater = Updater(optimizers, precision)
    for index, window in enumerate(epoch):
        made = tokens([size for size, _, _ in window], seed + index)
        batches = [MicroBatch(*batch, *how) for batch, (_, *how) in zip(made, window, strict=True)]
        counted = [batch for batch in batches if (batch.labels != IGNORED).any()]
        before = snapshot(model, updater)
        report = updater.update(batches, masked_loss(model))
        while precision == "fp16" and report.outcome == "skipped":  # until the scale suits the loss
            assert identical(before[0], dict(model.state_dict()))
            report = updater.update(batches, masked_loss(model))
        assert all(p.grad is None for p in model.parameters())
        assert (report.micro_batches, report.bad_losses) == (len(batches), 0)
        assert report.weight == sum((batch.labels != IGNORED).sum().item() for batch in counted)
        if not counted:
            assert (report.outcome, report.reason) == ("empty", "no weight")
            before[1]["empty"] += 1
            assert identical(before, snapshot(model, updater))
            continue
        assert report.outcome == "applied"
        model_before = copy.deepcopy(model)
        model_before.load_state_dict(before[0])
        mean_loss, expected, length = reference(model_before, counted)
        flat = [seen[place % parts][-1][place // parts] for place in range(len(expected))]
        assert distance(flat, expected) <= TOLERANCE[precision] * length
        assert abs(report.grad_norm - norm(expected)) <= TOLERANCE[precision] * length
        assert report.loss == pytest.approx(mean_loss, rel=TOLERANCE[precision])
    assert updater.steps + updater.empty == len(epoch)


def test_fp64_parameters_get_fp64_gradients():  # A3
    model = classifier().double()
    batches = [(inputs.double(), labels) for inputs, labels in tokens([3, 1, 7, 5], ignored=False)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = recorded_gradients(optimizer)
    _, expected = full_batch(model, batches)
    Updater({"sgd": optimizer}).update(batches, token_loss(model))
    assert distance(seen[0], expected) <= 1e-12 * norm(expected)


@every_precision
@as_number_or_tensor
def test_single_micro_batches_train_like_a_plain_loop(precision, on_device):  # A10, C04, C07, C42, G74
    model = classifier()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=precision == "fp16")
    scale = LossScale(1024.0)
    updater = Updater({"adam": torch.optim.AdamW(model.parameters(), lr=1e-2)}, precision, loss_scale=scale)

    def loss(batch: Tokens) -> tuple[Tensor, float | Tensor]:
        mean, weight = token_loss(model)(batch)
        return mean, weight if on_device else weight.item()

    for step in range(5):
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


@pytest.mark.parametrize("on_device", [[False], [True], [False, True]], ids=["numbers", "tensors", "mixed"])
def test_growing_weight_does_not_overflow_in_fp16(on_device):  # A3, C11
    model = classifier()
    batches = tokens([1, 64, 4096, 7], ignored=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = recorded_gradients(optimizer)
    _, expected = full_batch(model, batches)
    updater = Updater({"sgd": optimizer}, "fp16", loss_scale=LossScale(2.0**14))  # 4096 times it is infinite in fp16
    window = [MicroBatch(*batch, 1.0, on_device[place % len(on_device)]) for place, batch in enumerate(batches)]
    assert updater.update(window, masked_loss(model)).outcome == "applied"
    assert distance(seen[0], expected) <= TOLERANCE["fp16"] * norm(expected)


@as_number_or_tensor
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("position", [0, 2])
def test_invalid_weight_raises_and_changes_nothing(on_device, value, position):  # A15
    layers = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    updater = complete_updater(layers)
    weights = [2.0, 1.0, 3.0]
    inputs = torch.randn(3, 4, 2)

    def loss(index: int) -> tuple[Tensor, float | Tensor]:
        weight = weights[index]
        return layers(inputs[index]).square().sum(), torch.tensor(weight) if on_device else weight

    updater.update(range(3), loss)
    before = snapshot(layers, updater)
    weights[position] = value
    with pytest.raises(ValueError, match=f"weight .* must be a finite number of at least 0, but got {value}"):
        updater.update(range(3), loss)
    assert identical(before, snapshot(layers, updater))
    assert all(p.grad is None for p in layers.parameters())


COUNTS: dict[str, Callable[[Tensor], float | Tensor]] = {
    "int": lambda _: 1,
    "bool-of-one-element": lambda _: torch.ones(1, dtype=torch.bool),
    "uint8": lambda _: torch.ones((), dtype=torch.uint8),
    "beyond-the-integers-of-fp32": lambda _: torch.tensor(2**24 + 1),
    "fp64": lambda _: torch.ones((), dtype=torch.float64),
    "with-a-graph": lambda weight: (weight + 1).sum(),
}


@pytest.mark.parametrize("count", COUNTS)
def test_weight_may_be_any_number_and_has_no_gradient(count):
    weight, updater = slope()
    expected = 2 * torch.as_tensor(COUNTS[count](weight)).item()
    report = updater.update([samples(1), samples(4)], lambda x: (weight * x, COUNTS[count](weight)))
    assert (report.outcome, report.weight, weight.item()) == ("applied", expected, -2.5)


@as_number_or_tensor
def test_parameter_of_a_weightless_micro_batch_does_not_decay(on_device):  # A5, E58
    used, unused = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    updater = Updater({"adam": torch.optim.AdamW([used, unused], lr=0.1, weight_decay=0.5)})
    weights = [torch.tensor(2.0), torch.tensor(0.0)] if on_device else [2.0, 0.0]
    report = updater.update([0, 1], lambda index: (((used, unused)[index] * 3).sum(), weights[index]))
    assert (report.outcome, unused.item()) == ("applied", 1.0)
    assert used.item() < 1.0
    assert list(updater.gradient_norms()) == ["adam[0]"]


def test_empty_batch_may_have_a_constant_loss():  # C13
    weight, updater = slope()
    losses = [(torch.zeros(()), torch.tensor(0)), ((weight * 2).sum(), torch.tensor(4))]
    assert updater.update([0, 1], lambda index: losses[index]).weight == 4.0
    assert weight.item() == -2.0


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda x: x.mean(), r"loss must return \(mean loss, weight\), .* but got Tensor"),
        (lambda x: (x.mean(), 1, 2), r"loss must return \(mean loss, weight\), .* but got \(Tensor, int, int\)"),
        (lambda x: (x, 1), r"loss must be one number, the mean over the micro-batch, but got \(3,\)"),
        (lambda x: (x.mean(), torch.ones(2)), r"weight of a micro-batch must be one number, but got \(2,\)"),
        (lambda x: (x.mean().detach(), 1), "loss must depend on a parameter that is trained, but got a constant"),
    ],
    ids=["no-weight", "more-than-two", "many-numbers", "many-weights", "constant-C29"],
)
def test_malformed_loss_raises_value_error(returned, message):  # A15
    weight, updater = slope()
    with pytest.raises(ValueError, match=message):
        updater.update([samples(1, 2, 3)], lambda x: returned(weight * x))
    assert (weight.item(), weight.grad, updater.steps) == (0.0, None, 0)
