"""Test that averaged weights follow their closed form, and go in and out of the modules without a trace."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from searchlight.trainables.training.trainer import TrialTrainer
from searchlight.trainables.update import Ema
from tests.trainables.toy_models import Regression, RegressionConfig, identical


def shadow(ema: Ema) -> Tensor:
    return ema.state_dict()["shadow"]["weight"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_average_has_its_closed_form_and_swaps_exactly(dtype):  # F62, F64, F65, G72, C103
    weight = nn.Parameter(torch.randn(50).to(dtype))
    ema = Ema({"weight": weight}, decay=0.3)  # reached at the fourth update
    decays = [min(0.3, (1 + k) / (10 + k)) for k in range(9)]
    assert (decays[0], decays[-1]) == (0.1, 0.3)
    expected = weight.detach().double().clone()
    for decay in decays:
        weight.data.copy_(torch.randn(50))
        ema.update()
        expected = decay * expected + (1 - decay) * weight.detach().double()
    average = shadow(ema).clone()
    assert average.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    torch.testing.assert_close(average.double(), expected, rtol=1e-6, atol=1e-7)
    assert ema.updates == 9
    live = weight.detach().clone()

    def evaluate() -> None:
        with ema.applied():
            assert identical(weight.detach(), average.to(dtype))
            raise OSError("evaluation failed")

    with pytest.raises(OSError, match="evaluation failed"):
        evaluate()
    assert identical(weight.detach(), live)
    weight.data.fill_(2.0)
    assert identical(shadow(ema), average)  # which shares no memory with the weights
    ema.restart()
    assert identical(ema.state_dict(), Ema({"weight": weight}, 0.9).state_dict())
    weight.data.fill_(3.0)
    assert (shadow(ema) == 2.0).all()
    ema.update()  # with the decay of a first update
    assert shadow(ema).tolist() == pytest.approx([0.1 * 2 + 0.9 * 3] * 50)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_evaluation_inside_a_window_leaves_it_as_it_was(precision):  # F65, F67
    class Curious(Regression):
        def loss(self, batch: Any) -> tuple[Tensor, int]:
            if not self.curious:
                return super().loss(batch)
            own = self.gradients()
            before = training.evaluate()["val/half"]
            loss = super().loss(batch)
            assert training.evaluate()["val/half"] == before, "half-precision copies of the live weights were used"
            assert identical(own, self.gradients())
            seen.append(len(own))
            return loss

        def gradients(self) -> list[Tensor]:
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


@pytest.mark.parametrize("decay", [0.0, 1.0, math.nan])
def test_decay_outside_0_to_1_raises_value_error(decay):
    with pytest.raises(ValueError, match="ema_decay must be between 0 and 1"):
        Ema({}, decay)
