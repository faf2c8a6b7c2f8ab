"""The state of an update, taken up by one that was built differently."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainables.toy_models import PRECISIONS, classifier, identical, token_loss, tokens
from trainables.precision import LossScale
from trainables.update import Ema, Updater


def built(decay: float | None = None, precision: str = "fp32", **options: Any) -> tuple[nn.Module, Updater]:
    torch.manual_seed(0)
    model = classifier()
    ema = Ema(dict(model.named_parameters()), decay) if decay else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **options)
    return model, Updater({"adam": optimizer}, precision, ema=ema, loss_scale=LossScale(1024.0))


def go(model: nn.Module, updater: Updater, steps: range) -> None:
    for step in steps:
        assert updater.update(tokens([4, 2], seed=step), token_loss(model)).outcome == "applied"


def move(source: tuple[nn.Module, Updater], target: tuple[nn.Module, Updater]) -> None:
    target[0].load_state_dict(source[0].state_dict())
    target[1].load_state_dict(copy.deepcopy(source[1].state_dict()))


def weights(model: nn.Module) -> dict[str, Any]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


# Averages


@pytest.mark.parametrize("precision", PRECISIONS)
def test_averages_that_the_state_lacks_begin_with_the_weights_that_were_loaded(precision):  # F62
    without, with_averages = built(precision=precision), built(0.9, precision)
    go(*without, range(3))
    go(*with_averages, range(10, 12))
    move(without, with_averages)
    ema = with_averages[1].ema
    assert ema.updates == 0
    assert identical(ema.state_dict()["shadow"], weights(without[0]))
    go(*with_averages, range(3, 4))
    assert ema.updates == 1
    go(*without, range(3, 4))
    assert identical(weights(with_averages[0]), weights(without[0]))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_averages_that_only_the_state_has_are_left_behind(precision):
    with_averages, without = built(0.9, precision), built(precision=precision)
    go(*with_averages, range(3))
    move(with_averages, without)
    assert without[1].ema is None
    assert without[1].state_dict()["ema"] is None
    for pair in (with_averages, without):
        go(*pair, range(3, 6))
    assert identical(weights(with_averages[0]), weights(without[0]))


# Kernels


VARIANTS = [{"fused": True}, {"foreach": True}, {"foreach": False}]


@pytest.mark.parametrize("saved", VARIANTS, ids=str)
@pytest.mark.parametrize("taken_up", VARIANTS, ids=str)
def test_an_optimizer_keeps_the_kernels_that_it_was_built_with(saved, taken_up):  # E55
    source, target = built(**saved), built(**taken_up)
    go(*source, range(3))
    move(source, target)
    (group,) = target[1].optimizers["adam"].param_groups
    assert (group["fused"], group["foreach"]) == (taken_up.get("fused"), taken_up.get("foreach"))
    assert (group["lr"], group["capturable"], group["differentiable"]) == (1e-2, False, False)
    for pair in (source, target):
        go(*pair, range(3, 8))
    for name, weight in weights(source[0]).items():
        assert torch.allclose(weight, weights(target[0])[name], rtol=1e-5, atol=1e-7)
    assert identical(source[1].state_dict()["steps"], target[1].state_dict()["steps"])
    move(target, source)  # and back
    for pair in (source, target):
        go(*pair, range(8, 10))
    (group,) = source[1].optimizers["adam"].param_groups
    assert (group["fused"], group["foreach"]) == (saved.get("fused"), saved.get("foreach"))


def test_what_was_tuned_comes_from_the_state_and_not_from_the_target():
    source, target = built(fused=True), built()
    source[1].optimizers["adam"].param_groups[0].update(lr=0.3, betas=(0.5, 0.6), weight_decay=0.7)
    move(source, target)
    (group,) = target[1].optimizers["adam"].param_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.3, (0.5, 0.6), 0.7)
