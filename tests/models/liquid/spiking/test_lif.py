from typing import Any

import pytest
import snntorch
import snntorch.surrogate
import torch
from torch import Tensor

from searchlight.models.liquid.spiking import LIF, SURROGATES

BATCH, STEPS, UNITS = 3, 12, 4


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def currents() -> Tensor:
    """Strong enough for every neuron to fire and to rest."""
    return 0.4 + 0.6 * random(BATCH, STEPS, UNITS)


def test_a_membrane_at_its_threshold_does_not_fire() -> None:
    lif = LIF(1, decay=0.5, threshold=1.0, learn_decay=False)
    spikes, membrane = lif(torch.tensor([[[1.0], [0.5], [0.75]]]))
    assert spikes.flatten().tolist() == [0, 0, 1]
    assert membrane.item() == 0.25


def test_spikes_are_those_of_snntorch() -> None:
    lif = LIF(UNITS, decay=0.85, threshold=0.7, learn_decay=False)
    peer = snntorch.Leaky(beta=0.85, threshold=0.7, reset_delay=False, reset_mechanism="subtract")
    # Of a membrane that is still above threshold after its reset snntorch takes it a second time.
    current, membrane, spikes = currents().clamp(max=0.8), torch.zeros(BATCH, UNITS), []
    for t in range(STEPS):
        fired, membrane = peer(current[:, t], membrane)
        spikes.append(fired)
    ours, end = lif(current)
    assert torch.equal(ours, torch.stack(spikes, dim=1))
    assert 0.1 < ours.mean() < 0.9
    torch.testing.assert_close(end, membrane)


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, distance: Tensor, surrogate: str, slope: float) -> Tensor:
        ctx.surrogate, ctx.slope = surrogate, slope
        ctx.save_for_backward(distance)
        return (distance > 0).to(distance)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad * SURROGATES[ctx.surrogate].derivative(ctx.saved_tensors[0], ctx.slope), None, None


def plain_loop(lif: LIF, current: Tensor, state: Tensor, dt: Tensor | None) -> tuple[Tensor, Tensor]:
    v, spikes, membranes = state, [], []
    for t in range(current.shape[1]):
        v = (lif.decay if dt is None else lif.decay ** dt[:, t]) * v + current[:, t]
        fired = Spike.apply(v - lif.threshold, lif.surrogate, lif.slope)
        v = v - lif.threshold * fired.detach()
        spikes.append(fired)
        membranes.append(v)
    return torch.stack(spikes, dim=1), torch.stack(membranes, dim=1)


@pytest.mark.parametrize("surrogate", list(SURROGATES))
@pytest.mark.parametrize(("batch", "timed"), [(1, True), (BATCH, False), (BATCH, True)])
@pytest.mark.parametrize("doubling", [False, True])
def test_gradients_are_those_of_a_plain_loop(surrogate, timed, batch, doubling, monkeypatch) -> None:
    if doubling:  # what devices other than CPUs do
        monkeypatch.setattr("searchlight.models.liquid.cells.scan.is_sequential", lambda _: False)
    lif = LIF(UNITS, surrogate=surrogate, learn_threshold=True).double()
    torch.nn.init.normal_(lif.raw_decay)
    current, state = currents()[:batch].double(), random(batch, UNITS, seed=1).double()
    dt = random(batch, STEPS, 1, seed=2).double().abs() + 0.1
    tensors = [each.requires_grad_() for each in ((current, state, dt) if timed else (current, state))]
    weights = random(2, batch, STEPS, UNITS, seed=3).double()
    found = []
    for run in (lif.run, lambda *given: plain_loop(lif, *given)):
        spikes, membranes = run(current, state, dt if timed else None)
        value = (weights[0] * spikes).sum() + (weights[1] * membranes).square().sum()
        found.append([spikes, membranes, *torch.autograd.grad(value, [*tensors, *lif.parameters()])])
    torch.testing.assert_close(found[0], found[1])
    spikes, end = lif(current, state, dt if timed else None)
    torch.testing.assert_close((spikes, end), (found[0][0], found[0][1][:, -1]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_membranes_are_fp32_under_autocast(dtype: torch.dtype) -> None:
    lif, current = LIF(UNITS), currents().to(dtype)
    expected = lif(current.float())
    with torch.autocast("cpu", dtype=dtype):
        found = lif(current)
        found[0].sum().backward()
    assert found[0].dtype == found[1].dtype == torch.float32
    assert torch.equal(found[0], expected[0])
    assert lif.raw_decay.grad.dtype == torch.float32


def test_learned_decay_and_threshold_stay_in_range() -> None:
    lif = LIF(2, learn_threshold=True)
    for value in (-1e3, 1e3):
        torch.nn.init.constant_(lif.raw_decay, value)
        torch.nn.init.constant_(lif.raw_threshold, value)
        assert ((lif.decay >= 0) & (lif.decay <= 1)).all()
        assert (lif.threshold >= 0).all()


def test_decay_and_threshold_are_learned_if_asked_for() -> None:
    lif = LIF(3, decay=0.7, threshold=0.4)
    assert lif.decay.tolist() == pytest.approx([0.7] * 3)
    assert [name for name, _ in lif.named_parameters()] == ["raw_decay"]
    lif = LIF(3, decay=0.7, threshold=0.4, learn_decay=False, learn_threshold=True)
    assert lif.threshold.tolist() == pytest.approx([0.4] * 3)
    assert [name for name, _ in lif.named_parameters()] == ["raw_threshold"]


def test_other_shapes_are_refused() -> None:
    x = currents()
    wrong = {"state": (x, torch.zeros(UNITS)), "dt": (x, None, torch.ones(BATCH, STEPS)), "x": (x[0],)}
    for name, given in wrong.items():
        with pytest.raises(ValueError, match=f"^{name} must have shape"):
            LIF(UNITS)(*given)


@pytest.mark.parametrize(
    ("name", "peer"), [("atan", snntorch.surrogate.atan()), ("fast_sigmoid", snntorch.surrogate.fast_sigmoid(25))]
)
def test_a_surrogate_of_the_usual_slope_is_that_of_snntorch(name: str, peer: object) -> None:
    distance = torch.linspace(-2, 2, 41, requires_grad=True)
    peer(distance).sum().backward()
    scale = distance.grad.max()
    surrogate = SURROGATES[name]
    torch.testing.assert_close(surrogate.derivative(distance.detach(), surrogate.slope), distance.grad / scale)
    assert scale.item() == pytest.approx(1, abs=1e-5)
    steep, wide = (surrogate.derivative(a * distance.detach(), b * surrogate.slope) for a, b in ((1, 2), (2, 1)))
    assert torch.equal(steep, wide), "the slope scales the distance"
