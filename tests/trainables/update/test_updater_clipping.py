"""Clipping acts on the true gradient, over all optimizers or by each, and the norm is the one before it."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.trainables.toy_models import (
    TOLERANCE,
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
from trainables.update import Updater


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


def test_each_optimizer_may_have_a_limit_of_its_own():  # D45, E49
    a, b, c = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    optimizers = {key: torch.optim.SGD([p], lr=1.0) for key, p in zip("abc", (a, b, c), strict=True)}
    updater = Updater(optimizers, max_grad_norm={"a": 1.0, "b": 20.0, "c": None})

    def loss(x: Tensor) -> tuple[Tensor, int]:
        return (a @ samples(3, 4) + b @ samples(6, 8) + c @ samples(30, 40)) * x.mean(), len(x)

    report = updater.update([samples(1, 1, 1), samples(1)], loss)
    assert report.grad_norm == pytest.approx(math.sqrt(5**2 + 10**2 + 50**2))
    assert a.tolist() == pytest.approx([-0.6, -0.8], rel=1e-5)
    assert b.tolist() == [-6.0, -8.0]
    assert c.tolist() == [-30.0, -40.0]


@every_precision
@pytest.mark.parametrize("limits", [0.05, {"first": 0.02, "last": 0.03}, {"first": None, "last": 0.03}])
def test_a_clipped_gradient_is_the_reference_one_shortened(precision, limits):  # D43, D44, D45
    model = classifier()
    optimizers = {
        "first": torch.optim.SGD(model[0].parameters(), lr=0.1),
        "last": torch.optim.SGD(model[2].parameters(), lr=0.1),
    }
    seen = [recorded_gradients(optimizer) for optimizer in optimizers.values()]
    batches = tokens([4, 1, 7])
    _, expected = full_batch(model, batches)
    parts = {"first": expected[:2], "last": expected[2:]}
    lengths = {name: norm(part) for name, part in parts.items()}
    if isinstance(limits, dict):
        factors = {name: (limits[name] or lengths[name]) / lengths[name] for name in parts}
    else:
        factors = dict.fromkeys(parts, limits / norm(expected))
    report = Updater(optimizers, precision, max_grad_norm=limits).update(batches, token_loss(model))
    assert report.grad_norm == pytest.approx(norm(expected), rel=TOLERANCE[precision])
    for (got,), (name, part) in zip(seen, parts.items(), strict=True):
        shortened = [gradient * factors[name] for gradient in part]
        assert distance(got, shortened) <= 2 * TOLERANCE[precision] * norm(shortened)


@every_precision
@pytest.mark.parametrize("limits", [1.0, {"healthy": 1.0, "sick": 1.0}], ids=["one", "each"])
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_clipping_does_not_hide_a_gradient_that_is_not_finite(precision, limits, bad):  # E50, matrix 31
    healthy, sick = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizers = {"healthy": torch.optim.SGD([healthy], lr=1.0), "sick": torch.optim.SGD([sick], lr=1.0)}
    updater = Updater(optimizers, precision, max_grad_norm=limits)
    report = updater.update([samples(1, bad)], lambda x: ((healthy * x[0] + sick * x[1]).sum(), 1))
    assert (report.outcome, healthy.item(), sick.item()) == ("skipped", 0.0, 0.0)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"a": 1.0}, r"max_grad_norm must name each of \['a', 'b'\], but got \['a'\]"),
        ({"a": 1.0, "b": 1.0, "c": 1.0}, r"max_grad_norm must name each of \['a', 'b'\], but got \['a', 'b', 'c'\]"),
        ({}, r"max_grad_norm must name each of \['a', 'b'\], but got \[\]"),
        ({"a": 1.0, "b": 0.0}, "max_grad_norm must be positive and finite or None, but got 0.0"),
        ({"a": math.nan, "b": None}, "max_grad_norm must be positive and finite or None, but got nan"),
    ],
)
def test_limits_must_name_each_optimizer_and_be_limits(limits, message):  # D45, D46
    optimizers = {key: torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0) for key in "ab"}
    with pytest.raises(ValueError, match=message):
        Updater(optimizers, max_grad_norm=limits)


# Sparse gradients


def table_loss(table: nn.Embedding, head: nn.Linear, kind: type) -> Callable[[Tensor], tuple[Tensor, Any]]:
    def loss(x: Tensor) -> tuple[Tensor, Any]:
        return head(table(x)).float().square().mean(), kind(len(x))

    return loss


@every_precision
@pytest.mark.parametrize("kind", [float, torch.tensor], ids=["number", "tensor"])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam])
@pytest.mark.parametrize("limits", [None, 0.01, {"table": 0.01, "head": None}], ids=["free", "one", "each"])
def test_sparse_gradients_are_clipped_and_applied_like_dense_ones(precision, kind, optimizer, limits):  # D48
    results, norms = [], []
    window = [torch.tensor([1, 2, 2]), torch.tensor([2, 3, 4, 5, 5]), torch.tensor([7])]
    for sparse in (True, False):
        torch.manual_seed(0)
        table, head = nn.Embedding(10, 3, sparse=sparse), nn.Linear(3, 1)
        adam = optimizer is torch.optim.SparseAdam
        dense = torch.optim.Adam if adam else torch.optim.SGD
        options = {"eps": 1e-20} if adam else {}  # which the two add in different places
        optimizers = {
            "table": (optimizer if sparse else dense)(list(table.parameters()), lr=0.1, **options),
            "head": torch.optim.SGD(head.parameters(), lr=0.1),
        }
        updater = Updater(optimizers, precision, max_grad_norm=limits, loss_scale=LossScale(1024.0))
        norms.append(updater.update(window, table_loss(table, head, kind)).grad_norm)  # alike in their first step
        assert updater.steps == 1
        results.append([table.weight.detach(), head.weight.detach()])
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert distance(*results) <= 1e-5 * norm(results[1])


@every_precision
@pytest.mark.parametrize("kind", [float, torch.tensor], ids=["number", "tensor"])
def test_a_sparse_gradient_that_is_not_finite_is_skipped(precision, kind):  # D48, matrix 31
    table, head = nn.Embedding(10, 3, sparse=True), nn.Linear(3, 1)
    optimizers = {
        "table": torch.optim.SparseAdam(list(table.parameters()), lr=0.1),
        "head": torch.optim.SGD(head.parameters(), lr=0.1),
    }
    updater = Updater(optimizers, precision, max_grad_norm=1.0)
    exact = table_loss(table, head, kind)
    updater.update([torch.tensor([1, 2]), torch.tensor([2])], exact)
    before = [table.weight.detach().clone(), head.weight.detach().clone()]
    with torch.no_grad():
        table.weight[3] = math.inf
    before[0][3] = math.inf
    report = updater.update([torch.tensor([1, 2]), torch.tensor([3])], exact)
    assert (report.outcome, report.bad_losses) == ("skipped", 1)
    assert identical(before, [table.weight.detach(), head.weight.detach()])
