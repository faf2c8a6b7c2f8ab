"""Averaged weights follow their closed form, and go in and out of the modules without a trace."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainables.toy_models import Regression, RegressionConfig, identical, samples, slope_loss
from trainables.training.trainer import TrialTrainer
from trainables.update import Ema, Updater


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_averages_do_not_share_memory_with_the_weights(dtype):  # F64
    weight = nn.Parameter(torch.zeros(1, dtype=dtype))
    ema = Ema({"weight": weight}, 0.9)
    weight.data.fill_(1.0)
    assert ema.state_dict()["shadow"]["weight"].item() == 0.0
    with ema.applied():
        pass
    weight.data.fill_(2.0)
    assert ema.state_dict()["shadow"]["weight"].item() == 0.0
    ema.restart()
    weight.data.fill_(3.0)
    assert ema.state_dict()["shadow"]["weight"].item() == 2.0


def test_evaluation_with_averages_finds_the_live_buffers():  # F64
    class Watched(Regression):
        def evaluate(self) -> dict[str, Any]:
            found.update({name: (b.clone(), b.data_ptr()) for name, b in self.modules["model"].named_buffers()})
            found["weight"] = self.modules["model"][0].weight.data_ptr()
            return super().evaluate()

    found: dict[str, Any] = {}
    training = TrialTrainer(Watched(RegressionConfig(ema_decay=0.9)))
    training.run_epoch()
    model = training.task.modules["model"]
    assert set(found) == {"1.running_mean", "1.running_var", "1.num_batches_tracked", "weight"}
    for name, buffer in model.named_buffers():
        assert identical(found[name], (buffer, buffer.data_ptr()))
    assert found["1.num_batches_tracked"][0].item() == 6  # copied as it is, not averaged
    assert found["weight"] != model[0].weight.data_ptr()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_an_evaluation_between_two_micro_batches_leaves_the_window_as_it_was(precision):  # F65, F67
    class Curious(Regression):
        def loss(self, batch: Any) -> tuple[torch.Tensor, int]:
            if not self.curious:
                return super().loss(batch)
            own = self.gradients()
            before = training.evaluate()["val/half"]
            loss = super().loss(batch)
            assert training.evaluate()["val/half"] == before, "half-precision copies of the live weights were used"
            assert identical(own, self.gradients())
            seen.append(len(own))
            return loss

        def gradients(self) -> list[torch.Tensor]:
            return [p.grad.clone() for p in self.modules["model"].parameters() if p.grad is not None]

        def evaluate(self) -> dict[str, Any]:
            with self.autocast():
                half = self.modules["model"][0](self.inputs)  # before the statistics of batch norm, which do move
            assert half.dtype is self.precision.dtype
            full = self.predict(self.inputs)
            assert full.dtype is torch.float32
            return {"val/loss": nn.functional.mse_loss(full, self.targets).item(), "val/half": half.sum().item()}

    results, seen = [], list[int]()
    for curious in (False, True):
        task = Curious(RegressionConfig(precision=precision, ema_decay=0.9, accumulation=3, loss_scale=1024.0))
        task.curious = curious
        training = TrialTrainer(task)
        report = training.run_epoch()
        results.append((report["val/loss"], training.task.updaters["train"].state_dict()))
    assert results[0][1]["steps"] == 2
    assert identical(*results)
    assert seen == [0, 6, 6] * 2


# Weights in bf16


def test_averages_of_bf16_weights_are_fp32_and_bring_the_weights_back_bit_for_bit():  # F62, F65, G72
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(50).bfloat16())
    ema = Ema({"weight": weight}, decay=0.3)
    values = [weight.detach().clone() + 0.01 * k for k in range(6)]
    expected = values[0].double()
    for k, value in enumerate(values):
        weight.data.copy_(value)
        ema.update()
        decay = warm(0.3, 6)[k]
        expected = decay * expected + (1 - decay) * value.double()
    shadow = ema.state_dict()["shadow"]["weight"]
    assert shadow.dtype is torch.float32
    assert torch.allclose(shadow.double(), expected, rtol=1e-6, atol=1e-7)
    before = shadow.clone()
    with ema.applied():
        assert weight.dtype is torch.bfloat16
        assert torch.equal(weight, before.bfloat16())
    assert torch.equal(weight, values[-1])
    assert torch.equal(shadow, before)


def test_an_average_that_starts_again_forgets_what_it_was():
    weight = nn.Parameter(torch.zeros(2))
    ema, fresh = Ema({"weight": weight}, 0.9), nn.Parameter(torch.full((2,), 5.0))
    for value in (1.0, 2.0):
        weight.data.fill_(value)
        ema.update()
    weight.data.fill_(5.0)
    ema.restart()
    assert identical(ema.state_dict(), Ema({"weight": fresh}, 0.9).state_dict())
    weight.data.fill_(6.0)
    ema.update()  # with the decay of a first update
    assert ema.state_dict()["shadow"]["weight"].tolist() == pytest.approx([0.1 * 5 + 0.9 * 6] * 2)


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
