"""What all cells have in common, and the scan and the wiring that they are made of."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from searchlight.models.liquid.cells import CELLS, NCP, Liquid, run_linear_scan
from searchlight.models.liquid.cells.scan import scan_by_doubling, scan_in_sequence
from searchlight.models.liquid.cells.wiring import draw_circuit

KINDS = list(CELLS)
FEATURES, UNITS = 3, 8


def cell_of(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return CELLS[kind](FEATURES, UNITS)


def sequences(batch: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs, and time steps that differ from sample to sample and from step to step."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, steps, FEATURES, generator=generator)
    return x, 0.1 + 2 * torch.rand(batch, steps, 1, generator=generator)


@pytest.mark.parametrize("kind", KINDS)
def test_no_time_steps_are_steps_of_one(kind: str) -> None:
    cell = cell_of(kind)
    x, dt = sequences(2, 5)
    torch.testing.assert_close(cell(x), cell(x, torch.zeros(2, UNITS), torch.ones_like(dt)))
    assert not torch.allclose(cell(x)[0], cell(x, None, dt)[0])


@pytest.mark.parametrize(
    ("x", "state", "dt", "message"),
    [
        ((4, 3), (4, UNITS), (4, 1, 1), r"x must have shape \(batch, time, 3\).* got \(4, 3\)"),
        ((2, 4, 4), (2, UNITS), (2, 4, 1), r"got \(2, 4, 4\)"),
        ((2, 0, 3), (2, UNITS), (2, 0, 1), r"at least one time step, but got \(2, 0, 3\)"),
        ((2, 4, 3), (1, UNITS), (2, 4, 1), r"state must have shape \(2, 8\), but got \(1, 8\)"),
        ((2, 4, 3), (2, UNITS + 1), (2, 4, 1), r"got \(2, 9\)"),
        ((2, 4, 3), (2, UNITS), (2, 4), r"dt must have shape \(2, 4, 1\), but got \(2, 4\)"),
        ((2, 4, 3), (2, UNITS), (1, 4, 1), r"got \(1, 4, 1\)"),
        ((2, 4, 3), (2, UNITS), (2, 4, UNITS), r"got \(2, 4, 8\)"),
    ],
)
def test_other_shapes_are_refused_and_not_broadcast(x: tuple, state: tuple, dt: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cell_of("cfc")(torch.zeros(x), torch.zeros(state), torch.ones(dt))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_and_wiring_travel_in_a_checkpoint(kind: str) -> None:
    cell = cell_of(kind)
    torch.manual_seed(5)
    other = CELLS[kind](FEATURES, UNITS)
    x, dt = sequences(2, 4)
    assert not torch.equal(other(x, None, dt)[0], cell(x, None, dt)[0])
    other.load_state_dict(cell.state_dict())
    assert torch.equal(other(x, None, dt)[0], cell(x, None, dt)[0])


def parts(batch: int, steps: int, units: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    a = torch.rand(batch, steps, units, generator=generator, dtype=torch.double)
    b = torch.randn(batch, steps, units, generator=generator, dtype=torch.double)
    return a, b, torch.randn(batch, units, generator=generator, dtype=torch.double)


@given(st.integers(1, 3), st.integers(1, 17), st.integers(1, 4), st.integers(0, 99))
@settings(max_examples=20)
def test_a_scan_is_its_recurrence_in_sequence_and_by_doubling(batch: int, steps: int, units: int, seed: int) -> None:
    a, b, h = parts(batch, steps, units, seed)
    expected, before = [], h
    for t in range(steps):
        before = a[:, t] * before + b[:, t]
        expected.append(before)
    wanted = torch.stack(expected, dim=1)
    torch.testing.assert_close(run_linear_scan(a, b, h), wanted)
    first = a.transpose(0, 1), b.transpose(0, 1), h
    for form in (scan_in_sequence, scan_by_doubling):
        torch.testing.assert_close(form(*first).transpose(0, 1), wanted)
    torch.testing.assert_close((a, b, h), parts(batch, steps, units, seed), rtol=0, atol=0)


@pytest.mark.parametrize("doubling", [False, True])
def test_gradients_are_right(doubling: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if doubling:  # what devices other than CPUs do
        monkeypatch.setattr("searchlight.models.liquid.cells.scan.is_sequential", lambda _: False)
    for batch, steps in ((1, 1), (1, 6), (3, 5)):
        assert torch.autograd.gradcheck(run_linear_scan, [each.requires_grad_() for each in parts(batch, steps, 2)])


def test_half_precision_is_added_up_in_fp32() -> None:
    ones = torch.ones(1, 600, 1, dtype=torch.bfloat16)
    h = run_linear_scan(ones, ones, torch.zeros(1, 1))
    assert h.dtype == torch.float32
    assert h[0, -1].item() == 600  # in bfloat16 it would stay at 256


def test_two_half_steps_are_one_whole_step() -> None:
    cell = Liquid(3, 4).double()
    x, h = parts(2, 5, 3)[0], parts(2, 1, 4)[2]
    dt = torch.rand(2, 5, 1, dtype=torch.double) + 0.1
    whole, end = cell(x, h, dt)
    halves, last = cell(x.repeat_interleave(2, dim=1), h, dt.repeat_interleave(2, dim=1) / 2)
    torch.testing.assert_close(halves[:, 1::2], whole)
    torch.testing.assert_close(last, end)


def test_a_step_moves_the_state_toward_its_candidate() -> None:
    cell = Liquid(3, 4).double()
    x, h = parts(2, 1, 3)[0], parts(2, 1, 4)[2]
    assert torch.equal(cell(x, h, x.new_zeros(2, 1, 1))[1], h)
    candidate = cell.input(x)[:, 0, 4:].tanh()
    torch.testing.assert_close(cell(x, h, x.new_full((2, 1, 1), 1e6))[1], candidate)


def test_time_constants_start_from_one_step_to_a_hundred() -> None:
    cell = Liquid(3, 16)
    rates = torch.nn.functional.softplus(cell.tau) / 2
    torch.testing.assert_close(rates[[0, -1]], torch.tensor([1.0, 0.01]))
    assert (rates.diff() < 0).all()


@given(st.integers(1, 9), st.integers(3, 30), st.floats(0, 0.99), st.data())
@settings(max_examples=30)
def test_every_neuron_hears_and_is_heard(inputs: int, units: int, sparsity: float, data: st.DataObject) -> None:
    outputs = data.draw(st.integers(1, units - 2))
    torch.manual_seed(0)
    layers = draw_circuit(inputs, units, outputs, sparsity)
    assert sum(layer.units for layer in layers) == units
    assert [layer.inputs for layer in layers] == [inputs, layers[0].units, layers[1].units]
    for layer in layers:
        assert layer.mask.shape == (layer.units, layer.inputs + layer.units)
        assert ((layer.mask == 0) | (layer.mask == 1)).all()
        synapses, own = layer.mask[:, : layer.inputs], layer.mask[:, layer.inputs :]
        assert (synapses.sum(1) >= 1).all()
        assert (synapses.sum(0) >= 1).all()
        assert (own.diagonal() == 1).all()


def test_command_neurons_are_forty_percent_and_hear_each_other() -> None:
    layers = draw_circuit(5, 60, 10, 0.5)
    assert [layer.units for layer in layers] == [30, 20, 10]
    inter, command, motor = (layer.mask[:, layer.inputs :] for layer in layers)
    assert torch.equal(inter, torch.eye(30))
    assert torch.equal(motor, torch.eye(10))
    assert command.sum() > 20 * 9


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9])
def test_sparsity_is_the_share_of_missing_synapses(sparsity: float) -> None:
    layers = draw_circuit(40, 100, 20, sparsity)
    kept = torch.cat([layer.mask[:, : layer.inputs].flatten() for layer in layers]).mean().item()
    assert kept == pytest.approx(1 - sparsity, abs=0.02)


def test_layer_after_layer_is_step_after_step() -> None:
    cell = NCP(3, 12, 2)
    x, dt = torch.randn(2, 6, 3), torch.rand(2, 6, 1) + 0.1
    outputs, end = cell(x, None, dt)
    states = [torch.zeros(2, width) for width in cell.widths]
    for t in range(6):
        signal = x[:, t : t + 1]
        for i, layer in enumerate(cell.layers):
            signal, states[i] = layer(signal, states[i], dt[:, t : t + 1])
        torch.testing.assert_close(outputs[:, t], signal[:, 0])
    torch.testing.assert_close(end, torch.cat(states, dim=1))


def test_outputs_are_the_motor_neurons_a_quarter_of_all() -> None:
    cell = NCP(3, 16)
    outputs, state = cell(torch.randn(2, 5, 3))
    assert cell.outputs == 4
    assert torch.equal(outputs[:, -1], state[:, -4:])
