"""Losses and errors of labels, bytes and values, by their formulas."""

import math

import pytest
import torch
import torch.nn.functional as F

from models.liquid.data import Kind, Samples
from models.liquid.losses import errors, log_likelihood, losses, score_of
from tests.models.liquid.nets import network, of


def test_a_loss_is_the_mean_over_the_steps_of_each_sequence() -> None:
    everything = torch.ones(2, 4, dtype=torch.bool)
    logits, labels = torch.randn(2, 4), torch.tensor([3, 1])
    assert torch.allclose(losses("labels", logits, labels, everything), -logits.log_softmax(-1)[[0, 1], labels])
    steps, symbols = torch.randn(2, 5, 256), torch.randint(256, (2, 5), dtype=torch.uint8)
    expected = [F.cross_entropy(steps[row], symbols[row].long()) for row in (0, 1)]
    assert torch.allclose(losses("bytes", steps, symbols, everything), torch.stack(expected))
    values, right = torch.randn(2, 5, 3), torch.randn(2, 5, 3)
    expected = [F.mse_loss(values[row], right[row]) for row in (0, 1)]
    assert torch.allclose(losses("values", values, right, everything), torch.stack(expected))


def test_outputs_that_do_not_count_have_no_part_in_loss_gradient_or_error() -> None:
    logits = torch.randn(2, 4, requires_grad=True)
    allowed = torch.tensor([[True, True, False, False], [False, False, True, True]])
    each = losses("labels", logits, torch.tensor([0, 3]), allowed)
    expected = [F.cross_entropy(logits[0, :2], torch.tensor(0)), F.cross_entropy(logits[1, 2:], torch.tensor(1))]
    assert torch.allclose(each, torch.stack(expected))
    (gradient,) = torch.autograd.grad(each.sum(), logits)
    assert not gradient[~allowed].any()
    assert gradient[allowed].all()


@pytest.mark.parametrize("kind", ["labels", "values"])
@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_errors_are_sums_that_do_not_depend_on_the_batches(kind: Kind, batch_size: int) -> None:
    stream, net = of(kind)
    (samples, *_) = stream.tests[0].values()
    total, count = errors(kind, net, samples, stream.allowed[0], batch_size)
    outputs = net(samples.inputs, samples.dt).outputs
    if kind == "labels":
        assert total == (outputs.argmax(-1) != samples.targets).sum()
        assert count == samples.size
    else:
        assert total == pytest.approx(float((outputs - samples.targets).detach().square().sum()), rel=1e-5)
        assert count == samples.targets.numel()


def test_a_label_is_chosen_from_what_counts() -> None:
    stream, net = of("labels", scenario="task")
    net.head.bias.data += torch.tensor([0.0, 0.0, 100.0, 100.0])
    (samples,) = stream.tests[0].values()
    wrong, count = errors("labels", net, samples, stream.allowed[0], 64)
    assert wrong == (net(samples.inputs).outputs[:, :2].argmax(-1) != samples.targets).sum()
    assert errors("labels", net, samples, stream.allowed[1], 64) == (count, count)


def text(windows: int) -> Samples:
    data = torch.randint(256, (windows * 5 + 1,), dtype=torch.uint8)
    return Samples(data[:-1].view(windows, 5), data[1:].view(windows, 5))


@torch.no_grad()
def nats(net: torch.nn.Module, samples: Samples) -> float:
    """Of windows in one piece."""
    outputs = net(samples.inputs.reshape(1, -1)).outputs[0]
    return float(F.cross_entropy(outputs, samples.targets.flatten().long(), reduction="sum"))


def test_the_windows_of_a_text_are_one_long_sequence() -> None:  # C97
    net, samples = network(features=0, outputs=256), text(6)
    allowed = torch.ones(256, dtype=torch.bool)
    bits, count = errors("bytes", net, samples, allowed, 1)
    assert count == 30
    assert bits == pytest.approx(nats(net, samples) / math.log(2), rel=1e-6)
    from_rest = sum(nats(net, samples.rows(slice(row, row + 1))) for row in range(6)) / math.log(2)
    assert abs(bits - from_rest) > 1e-3


@pytest.mark.parametrize("windows", [1, 2, 3, 5, 7, 9])
def test_lanes_of_a_text_are_as_many_long_sequences(windows: int) -> None:  # C97
    net, samples, lanes = network(features=0, outputs=256), text(windows), 3
    bits, count = errors("bytes", net, samples, torch.ones(256, dtype=torch.bool), lanes)
    steps = math.ceil(windows / lanes)
    parts = [samples.rows(slice(start, start + steps)) for start in range(0, windows, steps)]
    assert count == 5 * windows
    assert bits == pytest.approx(sum(nats(net, part) for part in parts) / math.log(2), rel=1e-6)


@pytest.mark.parametrize("kind", ["labels", "bytes", "values"])
def test_answers_that_are_not_finite_are_no_score(kind: Kind) -> None:  # C105
    stream, net = of(kind)
    (samples, *_) = stream.tests[0].values()
    net.head.bias.data[0] = torch.nan
    total, count = errors(kind, net, samples, stream.allowed[0], 2)
    assert math.isnan(score_of(kind, total / count))


def test_a_score_is_1_at_best_and_0_for_who_knows_nothing() -> None:
    assert score_of("labels", 0.25) == 0.75
    assert score_of("bytes", 8.0) == 0
    assert score_of("bytes", 2.0) == 0.75
    assert score_of("values", 1.0) == 0
    assert score_of("values", 0.0) == 1


@pytest.mark.parametrize("kind", ["labels", "bytes", "values"])
def test_drawn_answers_have_the_fisher_information_of_what_the_network_says(kind: Kind) -> None:
    """The mean square of the gradient by the outputs is diag(p) - p p^T of a label, and 1 of a value; of several steps
    it is their mean, as the loss is.
    """
    generator = torch.Generator().manual_seed(0)
    outputs = {"labels": torch.randn(1, 3), "bytes": torch.randn(1, 2, 3), "values": torch.randn(1, 4, 1)}[kind]
    outputs.requires_grad_()
    allowed = torch.ones(outputs.shape[-1], dtype=torch.bool)
    squares = torch.zeros_like(outputs)
    draws = 1000
    for _ in range(draws):
        (gradient,) = torch.autograd.grad(log_likelihood(kind, outputs, allowed, generator), outputs)
        squares += gradient.square() / draws
    p = outputs.detach().softmax(-1)
    expected = torch.ones_like(p) if kind == "values" else p - p.square()
    expected /= {"labels": 1, "bytes": 2, "values": 4}[kind]
    assert torch.allclose(squares, expected, atol=0.2 if kind == "values" else 0.04)
