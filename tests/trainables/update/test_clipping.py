"""Test what changes a finished gradient: clipping, a transform and hooks, all of them before its check or after."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from searchlight.trainables.precision import LossScale
from searchlight.trainables.update import Updater
from tests.trainables.toy_models import (
    TOLERANCE,
    classifier,
    complete_updater,
    distance,
    every_precision,
    full_batch,
    identical,
    norm,
    recorded_gradients,
    samples,
    scaled_and_unscaled,
    slope,
    slope_loss,
    slopes,
    snapshot,
    token_loss,
    tokens,
)


@pytest.mark.parametrize("limit", [None, 2.0, 2.5])
def test_gradient_within_the_limit_is_left_as_it_is(limit):  # D46, C22
    weight, updater = slope(max_grad_norm=limit)
    report = updater.update([samples(2.0)], slope_loss(weight))
    assert (weight.item(), report.grad_norm) == (-2.0, 2.0)


@every_precision
@pytest.mark.parametrize(
    "limits",
    [0.05, {"first": 0.02, "last": 0.03}, {"first": None, "last": 0.03}, {"first": 20.0, "last": 0.03}],
    ids=["one", "each", "one-without", "one-within"],
)
def test_clipped_gradient_is_the_true_one_shortened(precision, limits):  # D43, D44, D45, E49, C21
    model = classifier()
    optimizers = {
        "first": torch.optim.SGD(model[0].parameters(), lr=0.1),
        "last": torch.optim.SGD(model[2].parameters(), lr=0.1),
    }
    seen = [recorded_gradients(optimizer) for optimizer in optimizers.values()]
    batches = tokens([4, 1, 7])
    _, expected = full_batch(model, batches)
    parts = {"first": expected[:2], "last": expected[2:]}
    if isinstance(limits, dict):
        factors = {name: min(1.0, (limits[name] or math.inf) / norm(part)) for name, part in parts.items()}
    else:
        factors = dict.fromkeys(parts, limits / norm(expected))
    report = Updater(optimizers, precision, max_grad_norm=limits).update(batches, token_loss(model))
    assert isinstance(report.grad_norm, float)
    assert report.grad_norm == pytest.approx(norm(expected), rel=TOLERANCE[precision])
    for (got,), (name, part) in zip(seen, parts.items(), strict=True):
        shortened = [gradient * factors[name] for gradient in part]
        assert distance(got, shortened) <= 2 * TOLERANCE[precision] * norm(shortened)


NAMES = r"max_grad_norm must name each of \['a', 'b'\], but got"
RANGE = "max_grad_norm must be positive and finite or None, but got"


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (0.0, f"{RANGE} 0.0"),
        (math.inf, f"{RANGE} inf"),
        ({"a": 1.0}, rf"{NAMES} \['a'\]"),
        ({"a": 1.0, "b": 1.0, "c": 1.0}, rf"{NAMES} \['a', 'b', 'c'\]"),
        ({"a": math.nan, "b": None}, f"{RANGE} nan"),
    ],
)
def test_invalid_clipping_limits_raise_value_error(limits, message):  # D45, D46
    with pytest.raises(ValueError, match=message):
        slopes("ab", max_grad_norm=limits)


def table_loss(table: nn.Embedding, head: nn.Linear, kind: type) -> Callable[[Tensor], tuple[Tensor, Any]]:
    def loss(x: Tensor) -> tuple[Tensor, Any]:
        return head(table(x)).float().square().mean(), kind(len(x))

    return loss


@scaled_and_unscaled
@pytest.mark.parametrize(
    ("kind", "adam", "limits"),
    [
        pytest.param(float, False, None, id="sgd-free"),
        pytest.param(torch.tensor, True, 0.01, id="adam-one-tensor"),
        pytest.param(float, True, {"table": 0.01, "head": None}, id="adam-each"),
        pytest.param(torch.tensor, False, {"table": 0.01, "head": None}, id="sgd-each-tensor"),
    ],
)
def test_sparse_gradients_train_like_dense_ones(precision, kind, adam, limits):  # D48
    results, norms = [], []
    window = [torch.tensor([1, 2, 2]), torch.tensor([2, 3, 4, 5, 5]), torch.tensor([7])]
    for sparse in (True, False):
        torch.manual_seed(0)
        table, head = nn.Embedding(10, 3, sparse=sparse), nn.Linear(3, 1)
        optimizer = (torch.optim.SparseAdam if sparse else torch.optim.Adam) if adam else torch.optim.SGD
        options = {"eps": 1e-20} if adam else {}  # which the two add in different places
        optimizers = {
            "table": optimizer(list(table.parameters()), lr=0.1, **options),
            "head": torch.optim.SGD(head.parameters(), lr=0.1),
        }
        updater = Updater(optimizers, precision, max_grad_norm=limits, loss_scale=LossScale(1024.0))
        norms.append(updater.update(window, table_loss(table, head, kind)).grad_norm)  # alike in their first step
        assert updater.steps == 1
        results.append([table.weight.detach(), head.weight.detach()])
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert distance(*results) <= 1e-5 * norm(results[1])


@pytest.mark.parametrize("kind", [float, torch.tensor], ids=["number", "tensor"])
def test_non_finite_sparse_gradient_is_skipped(kind):  # D48, matrix 31
    table, head = nn.Embedding(10, 3, sparse=True), nn.Linear(3, 1)
    optimizers = {
        "table": torch.optim.SparseAdam(list(table.parameters()), lr=0.1),
        "head": torch.optim.SGD(head.parameters(), lr=0.1),
    }
    updater = Updater(optimizers, "fp16", max_grad_norm=1.0)
    exact = table_loss(table, head, kind)
    updater.update([torch.tensor([1, 2]), torch.tensor([2])], exact)
    with torch.no_grad():
        table.weight[3] = math.inf
    before = [table.weight.detach().clone(), head.weight.detach().clone()]
    report = updater.update([torch.tensor([1, 2]), torch.tensor([3])], exact)
    assert (report.outcome, report.bad_losses) == ("skipped", 1)
    assert identical(before, [table.weight.detach(), head.weight.detach()])


def add_hook(model: nn.Module) -> None:
    model[0].weight.register_hook(lambda gradient: gradient + math.inf)


def add_hook_after_accumulation(model: nn.Module) -> None:
    def spoil(parameter: Tensor) -> None:
        parameter.grad[0] = math.nan

    model[0].weight.register_post_accumulate_grad_hook(spoil)


@scaled_and_unscaled
@pytest.mark.parametrize("spoil", [add_hook, add_hook_after_accumulation], ids=["hook", "later-hook"])
def test_gradient_spoiled_by_a_hook_is_not_applied(precision, spoil):  # matrix 34
    model = classifier()
    updater = Updater({"sgd": torch.optim.SGD(model.parameters(), lr=0.1)}, precision, max_grad_norm=1.0)
    spoil(model)
    before = copy.deepcopy(dict(model.state_dict()))
    report = updater.update(tokens([4, 3]), token_loss(model))
    assert (report.outcome, report.reason, report.bad_losses) == ("skipped", "non-finite gradient", 0)
    assert identical(before, dict(model.state_dict()))


@scaled_and_unscaled
def test_gradient_spoiled_by_a_transform_is_not_applied(precision):  # matrix 34, matrix 35
    model = classifier()
    spoiled = [0.0]

    def transform() -> None:
        model[2].bias.grad[1] += spoiled[0]

    updater = complete_updater(model, precision, max_grad_norm=1.0, transform=transform, loss_scale=LossScale(1024.0))
    updater.update(tokens([4, 3]), token_loss(model))
    before = snapshot(model, updater)
    spoiled[0] = math.nan
    report = updater.update(tokens([4, 3]), token_loss(model))
    assert (report.outcome, report.reason) == ("skipped", "non-finite gradient")
    assert [name for name, norm in updater.gradient_norms().items() if not math.isfinite(norm)] == ["net.2.bias"]
    before[1].update(skipped=1, consecutive_skips=1)
    after = snapshot(model, updater)
    after[1]["loss_scale"] = before[1]["loss_scale"]
    assert identical(before, after)
    assert updater.loss_scale is None or updater.loss_scale.value == 512.0
    spoiled[0] = 0.0
    assert updater.update(tokens([4, 3]), token_loss(model)).outcome == "applied"


@scaled_and_unscaled
@pytest.mark.parametrize("sizes", [[7], [4, 1, 2]], ids=["one", "three"])
def test_transform_gets_the_true_gradient_before_clipping(precision, sizes):  # matrix 34, C23
    model = classifier()
    batches = tokens(sizes)
    _, expected = full_batch(model, batches)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    applied, seen = recorded_gradients(optimizer), []

    def transform() -> None:
        seen.append([p.grad.clone() for p in model.parameters()])
        for parameter in model.parameters():
            parameter.grad.mul_(-3)

    updater = Updater(
        {"sgd": optimizer}, precision, max_grad_norm=norm(expected), transform=transform, loss_scale=LossScale(1024.0)
    )
    report = updater.update(batches, token_loss(model))
    assert len(seen) == 1
    assert distance(seen[0], expected) <= TOLERANCE[precision] * norm(expected)
    assert report.grad_norm == pytest.approx(3 * norm(expected), rel=TOLERANCE[precision])
    assert distance(applied[0], [-gradient for gradient in expected]) <= 2 * TOLERANCE[precision] * norm(expected)


def test_transform_may_drop_a_gradient():
    kept, dropped = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.ones(1))

    def drop() -> None:
        dropped.grad = None

    updater = Updater({"sgd": torch.optim.SGD([kept, dropped], lr=1.0, weight_decay=0.5)}, transform=drop)
    updater.update([samples(2)], lambda x: ((kept * x + dropped * x).sum(), 1))
    assert (kept.item(), dropped.item()) == (-2.0, 1.0)
    assert list(updater.gradient_norms()) == ["sgd[0]"]
