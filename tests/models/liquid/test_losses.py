"""Losses and errors of labels, bytes and values, by their formulas."""

import math

import pytest
import torch
import torch.nn.functional as F

from searchlight.models.data import Kind, Samples
from searchlight.models.liquid.losses import compute_losses, compute_score, draw_directions, measure_errors
from tests.models.liquid.nets import network, of


def test_a_loss_is_the_mean_over_the_steps_of_each_sequence() -> None:
    everything = torch.ones(2, 4, dtype=torch.bool)
    cases = {
        "labels": (torch.randn(2, 4), torch.tensor([3, 1]), F.cross_entropy),
        "bytes": (torch.randn(2, 5, 256), torch.randint(256, (2, 5)).byte(), F.cross_entropy),
        "values": (torch.randn(2, 5, 3), torch.randn(2, 5, 3), F.mse_loss),
    }
    for kind, (outputs, targets, loss) in cases.items():
        right = targets.long() if kind == "bytes" else targets
        expected = torch.stack([loss(outputs[row], right[row]) for row in (0, 1)])
        assert torch.allclose(compute_losses(kind, outputs, targets, everything), expected)


@pytest.mark.parametrize("kind", ["labels", "values"])
@pytest.mark.parametrize("batch_size", [4, 64])
def test_errors_are_sums_over_any_batches(kind: Kind, batch_size: int) -> None:
    stream, net = of(kind)
    (samples, *_) = stream.tests[0].values()
    total, count = measure_errors(kind, net, samples, stream.allowed[0], batch_size)
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
    wrong, count = measure_errors("labels", net, samples, stream.allowed[0], 64)
    assert wrong == (net(samples.inputs).outputs[:, :2].argmax(-1) != samples.targets).sum()
    assert measure_errors("labels", net, samples, stream.allowed[1], 64) == (count, count)


def text(windows: int) -> Samples:
    data = torch.randint(256, (windows * 5 + 1,), dtype=torch.uint8)
    return Samples(data[:-1].view(windows, 5), data[1:].view(windows, 5))


@torch.no_grad()
def nats(net: torch.nn.Module, samples: Samples) -> float:
    """Of windows in one piece."""
    outputs = net(samples.inputs.reshape(1, -1)).outputs[0]
    return float(F.cross_entropy(outputs, samples.targets.flatten().long(), reduction="sum"))


@pytest.mark.parametrize("windows", [1, 3, 7])
def test_lanes_of_a_text_are_as_many_long_sequences(windows: int) -> None:
    net, samples, lanes = network(features=0, outputs=256), text(windows), 3
    bits, count = measure_errors("bytes", net, samples, torch.ones(256, dtype=torch.bool), lanes)
    steps = math.ceil(windows / lanes)
    parts = [samples.select_rows(slice(start, start + steps)) for start in range(0, windows, steps)]
    assert count == 5 * windows
    assert bits == pytest.approx(sum(nats(net, part) for part in parts) / math.log(2), rel=1e-6)


@pytest.mark.parametrize(("kind", "worst"), [("labels", 1.0), ("bytes", 8.0), ("values", 1.0)])
def test_a_score_is_one_at_best_and_nan_if_not_finite(kind: Kind, worst: float) -> None:
    assert [compute_score(kind, error) for error in (0.0, worst / 4, worst)] == [1, 0.75, 0]
    stream, net = of(kind)
    (samples, *_) = stream.tests[0].values()
    net.head.bias.data[0] = torch.nan
    total, count = measure_errors(kind, net, samples, stream.allowed[0], 2)
    assert math.isnan(compute_score(kind, total / count))


@pytest.mark.parametrize(
    ("kind", "shape", "tolerance"), [("labels", (1, 3), 0.04), ("bytes", (1, 2, 3), 0.04), ("values", (1, 4, 1), 1e-6)]
)
def test_drawn_answers_have_the_fisher_information(kind: Kind, shape: tuple[int, ...], tolerance: float) -> None:
    """The mean square is that of diag(p) - p p^T of a label and 1 of a value, over the number of steps."""
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(shape)
    squares, draws = torch.zeros(shape), 1000
    for _ in range(draws):
        squares += draw_directions(kind, outputs, torch.ones(shape[-1], dtype=torch.bool), generator).square() / draws
    p = outputs.softmax(-1)
    expected = torch.ones_like(p) if kind == "values" else p - p.square()
    assert torch.allclose(squares, expected / math.prod(shape[1:-1]), atol=tolerance)
