import math
from typing import Any

import pytest
import snntorch
import torch
from torch import Tensor

from models.liquid.spiking import LIF, SURROGATES

BATCH, STEPS, UNITS = 3, 12, 4


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def currents() -> Tensor:
    """Strong enough for every neuron to fire and to rest."""
    return 0.4 + 0.6 * random(BATCH, STEPS, UNITS)


def test_a_constant_current_fires_the_known_train() -> None:  # C95
    lif = LIF(1, decay=0.9, threshold=1.0, learn_decay=False)
    spikes, membrane = lif(torch.full((1, 12, 1), 0.3))
    assert spikes.flatten().tolist() == [0, 0, 0, 1] * 3
    # Four steps add 3 (1 - 0.9^4) to 0.9^4 of what is left over, and the spike takes 1.
    left = 0.0
    for _ in range(3):
        left = 0.9**4 * left + 3 * (1 - 0.9**4) - 1
    assert membrane.item() == pytest.approx(left, abs=1e-6)


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
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("batch", [1, BATCH])
@pytest.mark.parametrize("doubling", [False, True])
def test_gradients_are_those_of_a_plain_loop(
    surrogate: str, timed: bool, batch: int, doubling: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if doubling:  # what devices other than CPUs do
        monkeypatch.setattr("models.liquid.cells.scan.in_sequence", lambda _: False)
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


def test_the_last_membrane_carries_a_gradient_and_spikes_alone_do() -> None:
    for part in (0, 1):
        lif, current = LIF(UNITS), currents().requires_grad_()
        lif(current)[part].sum().backward()
        assert current.grad.abs().sum() > 0
        assert lif.raw_decay.grad.abs().sum() > 0


@pytest.mark.parametrize("timed", [False, True])
def test_a_sequence_cut_in_two_goes_on_where_it_was_cut(timed: bool) -> None:
    lif, current = LIF(UNITS), currents()
    dt = 0.1 + random(BATCH, STEPS, 1).abs()
    whole, end = lif(current, None, dt if timed else None)
    first, between = lif(current[:, :5], None, dt[:, :5] if timed else None)
    second, last = lif(current[:, 5:], between, dt[:, 5:] if timed else None)
    assert torch.equal(torch.cat([first, second], dim=1), whole)
    assert torch.equal(last, end)
    assert end.shape == (BATCH, UNITS)


def test_what_flows_later_changes_nothing_before() -> None:  # C97
    lif, current = LIF(UNITS), currents()
    other = current.clone()
    other[:, 7:] += 3
    before, after = lif.run(current), lif.run(other)
    assert torch.equal(before[0][:, :7], after[0][:, :7])
    assert torch.equal(before[1][:, :7], after[1][:, :7])
    assert not torch.equal(before[1][:, 7], after[1][:, 7])


def test_a_membrane_without_current_decays_by_time() -> None:
    lif = LIF(1, decay=0.8, threshold=5.0)
    dt = torch.tensor([[[0.5], [2.0]]])
    membrane = lif(torch.zeros(1, 2, 1), torch.ones(1, 1), dt)[1]
    assert membrane.item() == pytest.approx(0.8**2.5)


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


def test_decay_and_threshold_stay_in_their_ranges_while_they_are_learned() -> None:
    lif = LIF(2, learn_threshold=True)
    for value in (-1e3, 1e3):
        torch.nn.init.constant_(lif.raw_decay, value)
        torch.nn.init.constant_(lif.raw_threshold, value)
        assert ((lif.decay >= 0) & (lif.decay <= 1)).all()
        assert (lif.threshold >= 0).all()


def test_values_are_those_asked_for_and_learned_if_asked_for() -> None:
    lif = LIF(3, decay=0.7, threshold=0.4)
    assert lif.decay.tolist() == pytest.approx([0.7] * 3)
    assert [name for name, _ in lif.named_parameters()] == ["raw_decay"]
    lif = LIF(3, decay=0.7, threshold=0.4, learn_decay=False, learn_threshold=True)
    assert lif.threshold.tolist() == pytest.approx([0.4] * 3)
    assert [name for name, _ in lif.named_parameters()] == ["raw_threshold"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decay": 1.0}, "decay must be between 0 and 1, but got 1.0"),
        ({"decay": 0.0}, "decay must be"),
        ({"threshold": 0.0}, "threshold must be above 0, but got 0.0"),
        ({"surrogate": "step"}, "surrogate must be one of atan, fast_sigmoid, but got 'step'"),
        ({"slope": -1.0}, "slope must be above 0, but got -1.0"),
        ({"slope": math.nan}, "slope must be above 0, but got nan"),
    ],
)
def test_other_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LIF(3, **options)


def test_other_shapes_are_refused() -> None:
    lif = LIF(UNITS)
    with pytest.raises(ValueError, match="state must have shape"):
        lif(currents(), torch.zeros(UNITS))
    with pytest.raises(ValueError, match="dt must have shape"):
        lif(currents(), None, torch.ones(BATCH, STEPS))
    with pytest.raises(ValueError, match="x must have shape"):
        lif(currents()[0])
