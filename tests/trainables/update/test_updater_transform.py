"""What changes a gradient after backward, a hook or a transform, comes before the check and the clipping."""

import copy
import math

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


def spoiling_hook(model: nn.Module, value: float) -> None:
    model[0].weight.register_hook(lambda gradient: gradient + value)


def spoiling_hook_after_accumulation(model: nn.Module, value: float) -> None:
    def spoil(parameter: Tensor) -> None:
        parameter.grad.view(-1)[0] = value

    model[0].weight.register_post_accumulate_grad_hook(spoil)


@every_precision
@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize("spoil", [spoiling_hook, spoiling_hook_after_accumulation], ids=["hook", "later-hook"])
def test_what_a_hook_of_a_parameter_spoils_is_not_applied(precision, value, spoil):  # matrix 34
    model = classifier()
    updater = Updater({"sgd": torch.optim.SGD(model.parameters(), lr=0.1)}, precision, max_grad_norm=1.0)
    spoil(model, value)
    before = copy.deepcopy(dict(model.state_dict()))
    report = updater.update(tokens([4, 3]), token_loss(model))
    assert (report.outcome, report.reason, report.bad_losses) == ("skipped", "non-finite gradient", 0)
    assert identical(before, dict(model.state_dict()))


@every_precision
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_a_transform_spoils_is_not_applied(precision, value):  # matrix 34, matrix 35
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    spoiled = [False]

    def transform() -> None:
        if spoiled[0]:
            model[2].bias.grad[1] = value

    scale = LossScale(1024.0)
    updater = Updater(
        {"adam": optimizer},
        precision,
        max_grad_norm=1.0,
        transform=transform,
        loss_scale=scale,
        modules={"net": model},
    )
    updater.update(tokens([4, 3]), token_loss(model))
    before = copy.deepcopy([dict(model.state_dict()), optimizer.state_dict()])
    spoiled[0] = True
    report = updater.update(tokens([4, 3]), token_loss(model))
    assert (report.outcome, report.reason) == ("skipped", "non-finite gradient")
    assert [name for name, norm in updater.gradient_norms().items() if not math.isfinite(norm)] == ["net.2.bias"]
    assert identical(before, [dict(model.state_dict()), optimizer.state_dict()])
    assert updater.loss_scale is None or updater.loss_scale.value == 512.0
    spoiled[0] = False
    assert updater.update(tokens([4, 3]), token_loss(model)).outcome == "applied"


@every_precision
@pytest.mark.parametrize("sizes", [[7], [4, 1, 2]], ids=["one", "three"])
def test_a_transform_changes_the_true_gradient_before_it_is_measured_and_clipped(precision, sizes):  # matrix 34, C23
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


@pytest.mark.parametrize("window", [[], [samples()], ["elsewhere"]], ids=["no-batch", "no-weight", "no-gradient"])
def test_a_transform_is_not_asked_about_an_empty_window(window):  # E52
    calls = []
    weight, updater = slope(transform=lambda: calls.append(1))
    elsewhere = nn.Parameter(torch.ones(1))
    exact = slope_loss(weight)
    report = updater.update(window, lambda x: (elsewhere.sum(), 1) if x == "elsewhere" else exact(x))
    assert (report.outcome, calls) == ("empty", [])
