"""Test that an update goes on from its state, also one that was built differently."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

from searchlight.trainables.precision import LossScale
from searchlight.trainables.update import Ema, Updater
from tests.trainables.toy_models import (
    classifier,
    every_precision,
    identical,
    samples,
    slope,
    slope_loss,
    snapshot,
    token_loss,
    tokens,
)

Pair = tuple[nn.Module, Updater]


def built(decay: float | None = None, precision: str = "fp32", **options: Any) -> Pair:
    torch.manual_seed(0)
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **options)
    updater = Updater(
        {"adam": optimizer},
        precision,
        max_grad_norm=0.1,
        schedulers=[torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)],
        ema=Ema(dict(model.named_parameters()), decay) if decay else None,
        loss_scale=LossScale(2.0**15, growth_interval=2),
    )
    return model, updater


def go(model: nn.Module, updater: Updater, steps: range, bad: int | None = None) -> None:
    for step in steps:
        batches = tokens([4, 2], seed=step)
        if step == bad:
            batches[0][0][0, 0] = math.nan
        updater.update(batches, token_loss(model))


def move(source: Pair, target: Pair) -> None:
    target[0].load_state_dict(source[0].state_dict())
    target[1].load_state_dict(copy.deepcopy(source[1].state_dict()))


@every_precision
def test_updater_goes_on_from_its_state_bit_for_bit(precision):  # F66, H81, C50
    straight, resumed = built(0.9, precision), built(0.9, precision)
    go(*straight, range(4), bad=3)
    assert straight[1].consecutive_skips == 1
    move(straight, resumed)
    assert identical(snapshot(*straight), snapshot(*resumed))
    for pair in (straight, resumed):
        go(*pair, range(4, 9))
    assert identical(snapshot(*straight), snapshot(*resumed))


@pytest.mark.parametrize(("saved", "resumed"), [("bf16", "fp16"), ("fp16", "bf16")])
def test_state_of_another_precision_starts_a_fresh_scale(saved, resumed):  # C50
    weight, updater = slope(precision=saved, loss_scale=LossScale(32.0))
    updater.update([samples(1)], slope_loss(weight))
    _, other = slope(precision=resumed, loss_scale=LossScale(8.0))
    other.load_state_dict(updater.state_dict())
    assert other.steps == 1
    assert (other.loss_scale.value if other.loss_scale else None) == (8.0 if resumed == "fp16" else None)


@pytest.mark.parametrize(("saved", "resumed"), [(None, 0.9), (0.9, None)], ids=["resumed-alone", "saved-alone"])
def test_averages_of_one_side_alone_begin_anew(saved, resumed):  # F62
    source, target = built(saved), built(resumed)
    go(*source, range(3))
    go(*target, range(10, 12))
    move(source, target)
    assert (target[1].ema is None) == (resumed is None)
    assert target[1].ema is None or target[1].ema.updates == 0
    assert target[1].ema is None or identical(target[1].ema.state_dict()["shadow"], dict(source[0].state_dict()))
    for pair in (source, target):
        go(*pair, range(3, 6))
    assert target[1].ema is None or target[1].ema.updates == 3
    assert identical(dict(source[0].state_dict()), dict(target[0].state_dict()))


FUSED, FOREACH, PLAIN = {"fused": True}, {"foreach": True}, {"foreach": False}


@pytest.mark.parametrize(("saved", "resumed"), [(FUSED, FOREACH), (FOREACH, PLAIN), (PLAIN, FUSED)], ids=str)
def test_resumed_optimizer_keeps_its_own_kernels(saved, resumed):  # E55
    source, target = built(**saved), built(**resumed)
    go(*source, range(3))
    source[1].optimizers["adam"].param_groups[0].update(lr=0.03, betas=(0.5, 0.6), weight_decay=0.7)
    move(source, target)
    (group,) = target[1].optimizers["adam"].param_groups
    assert (group["fused"], group["foreach"]) == (resumed.get("fused"), resumed.get("foreach"))
    assert (group["capturable"], group["differentiable"]) == (False, False)
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.03, (0.5, 0.6), 0.7)  # of the state
    for pair in (source, target):
        go(*pair, range(3, 8))
    torch.testing.assert_close(dict(source[0].state_dict()), dict(target[0].state_dict()), rtol=1e-5, atol=1e-7)
    assert source[1].steps == target[1].steps == 8
