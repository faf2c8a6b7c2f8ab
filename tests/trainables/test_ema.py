"""Averaged weights follow their closed form, and go in and out of the modules without a trace."""

import math

import pytest
import torch
from torch import nn

from tests.trainables.toys import identical, samples, slope_loss
from trainables.ema import Ema
from trainables.update import Updater


def warm(decay: float, updates: int) -> list[float]:
    return [min(decay, (1 + k) / (10 + k)) for k in range(updates)]


def test_the_average_equals_its_closed_form():  # F62, C103
    weight = nn.Parameter(torch.zeros(3))
    ema = Ema({"weight": weight}, decay=0.3)  # reached at the fourth update
    values = [torch.randn(3) for _ in range(9)]
    for value in values:
        weight.data.copy_(value)
        ema.update()
    decays = warm(0.3, len(values))
    assert decays[0] == 0.1
    assert decays[-1] == 0.3
    expected = sum((1 - decays[k]) * math.prod(decays[k + 1 :]) * values[k].double() for k in range(len(values)))
    assert torch.allclose(ema.state_dict()["shadow"]["weight"].double(), expected, rtol=1e-6, atol=1e-7)
    assert ema.updates == 9


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_average_moves_once_per_applied_window_and_after_the_step(precision):  # F62, C103
    weight = nn.Parameter(torch.zeros(1))
    ema = Ema({"weight": weight}, decay=0.9)
    updater = Updater({"sgd": torch.optim.SGD([weight], lr=1.0)}, precision, ema=ema)
    for window in ([1.0, 3.0], [math.nan, 1.0], [], [2.0]):
        updater.update([samples(x) for x in window], slope_loss(weight))
    assert ema.updates == 2
    first, second = warm(0.9, 2)
    expected = second * ((1 - first) * -2.0) + (1 - second) * -4.0
    assert ema.state_dict()["shadow"]["weight"].item() == pytest.approx(expected, rel=1e-6)


def test_modules_hold_the_averages_inside_and_their_own_weights_afterwards():  # F65
    model = nn.Linear(3, 2)
    ema = Ema(dict(model.named_parameters()), 0.9)
    with torch.no_grad():
        model.weight.add_(1.0)
    ema.update()
    live = {name: p.detach().clone() for name, p in model.named_parameters()}
    averages = {name: tensor.clone() for name, tensor in ema.state_dict()["shadow"].items()}
    with ema.applied():
        assert identical({name: p.detach() for name, p in model.named_parameters()}, averages)
        assert not torch.equal(model.weight, live["weight"])
    assert identical({name: p.detach() for name, p in model.named_parameters()}, live)
    assert identical(ema.state_dict()["shadow"], averages)


def test_an_error_inside_brings_the_weights_back_too():  # F65
    weight = nn.Parameter(torch.zeros(1))
    ema = Ema({"weight": weight}, 0.9)
    weight.data.fill_(5.0)
    inside = []

    def evaluate() -> None:
        with ema.applied():
            inside.append(weight.item())
            raise RuntimeError("evaluation failed")

    with pytest.raises(RuntimeError, match="evaluation failed"):
        evaluate()
    assert inside == [0.0]
    assert weight.item() == 5.0
    assert ema.state_dict()["shadow"]["weight"].item() == 0.0


def test_the_optimizer_goes_on_with_the_live_weights_after_a_swap():  # F65
    weight = nn.Parameter(torch.zeros(1))
    ema = Ema({"weight": weight}, 0.5)
    updater = Updater({"sgd": torch.optim.SGD([weight], lr=1.0)}, ema=ema)
    updater.update([samples(4)], slope_loss(weight))
    with ema.applied():
        pass
    updater.update([samples(2)], slope_loss(weight))
    assert weight.item() == -6.0


def test_averages_do_not_share_memory_with_the_weights():  # F64
    weight = nn.Parameter(torch.zeros(1))
    ema = Ema({"weight": weight}, 0.9)
    weight.data.fill_(1.0)
    assert ema.state_dict()["shadow"]["weight"].item() == 0.0


def test_an_average_goes_on_from_its_state():  # C103
    weight = nn.Parameter(torch.zeros(2))
    ema, other = Ema({"weight": weight}, 0.8), Ema({"weight": weight}, 0.8)
    for value in (1.0, 2.0):
        weight.data.fill_(value)
        ema.update()
    other.load_state_dict(ema.state_dict())
    weight.data.fill_(7.0)
    loaded = other.state_dict()["shadow"]["weight"].tolist()
    ema.update()
    assert other.state_dict()["shadow"]["weight"].tolist() == loaded  # what was loaded is a copy
    other.update()
    assert identical(ema.state_dict(), other.state_dict())


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.1, math.nan])
def test_a_decay_must_lie_between_0_and_1(decay):
    with pytest.raises(ValueError, match="ema_decay must be between 0 and 1"):
        Ema({}, decay)
