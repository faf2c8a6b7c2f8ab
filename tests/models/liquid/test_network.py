"""The whole network: what is true of its cells and neurons is true of it, plastic synapses included."""

import pytest
import torch
from torch import Tensor

from models.liquid.cells import CELLS
from tests.models.liquid.nets import network

STEPS = 7
every_cell = pytest.mark.parametrize("cell", CELLS)
every_time = pytest.mark.parametrize("timed", [False, True], ids=["even", "irregular"])


def sequences(batch: int, timed: bool) -> tuple[Tensor, Tensor | None]:
    return torch.randn(batch, STEPS, 3), torch.rand(batch, STEPS, 1) + 0.3 if timed else None


@every_time
@every_cell
def test_what_comes_later_changes_nothing_of_what_was_answered(cell: str, timed: bool) -> None:  # C97
    net = network(cell=cell)
    x, dt = sequences(2, timed)
    before = net(x, dt).outputs
    for step in range(STEPS - 1):
        later, later_dt = x.clone(), None if dt is None else dt.clone()
        later[:, step + 1 :] = torch.randn(2, STEPS - step - 1, 3)
        if later_dt is not None:
            later_dt[:, step + 1 :] *= 3
        after = net(later, later_dt).outputs
        assert torch.allclose(after[:, : step + 1], before[:, : step + 1], atol=1e-5)
        assert (after[:, step + 1] - before[:, step + 1]).abs().max() > 1e-3


@every_time
@every_cell
@pytest.mark.parametrize("batch", [1, 3])
def test_a_sequence_that_is_cut_in_two_is_the_uncut_one(cell: str, batch: int, timed: bool) -> None:  # C97
    net = network(cell=cell)
    x, dt = sequences(batch, timed)
    whole = net(x, dt)
    for cut in (1, 4):
        first = net(x[:, :cut], None if dt is None else dt[:, :cut])
        second = net(x[:, cut:], None if dt is None else dt[:, cut:], first.state)
        assert torch.allclose(torch.cat([first.outputs, second.outputs], 1), whole.outputs, atol=1e-5)
        for layer, reached in zip(second.state, whole.state, strict=True):
            assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(layer, reached, strict=True))
    assert not torch.allclose(net(x[:, 4:], None if dt is None else dt[:, 4:]).outputs, whole.outputs[:, 4:], atol=1e-3)


@every_cell
def test_a_sequence_is_answered_alike_alone_and_among_others(cell: str) -> None:
    net = network(cell=cell)
    x, dt = sequences(3, timed=True)
    assert dt is not None
    together = net(x, dt)
    for row in range(3):
        alone = net(x[row : row + 1], dt[row : row + 1])
        assert torch.allclose(alone.outputs[0], together.outputs[row], atol=1e-5)


@every_cell
def test_every_parameter_learns(cell: str) -> None:
    net = network(cell=cell)
    net(*sequences(2, timed=True)).outputs.square().sum().backward()
    silent = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_cell
def test_in_half_precision_what_is_carried_and_answered_is_fp32(cell: str, dtype: torch.dtype) -> None:
    net = network(cell=cell)
    x, _ = sequences(2, timed=False)
    full = net(x)
    with torch.autocast("cpu", dtype=dtype):
        half = net(x)
    assert half.outputs.dtype is torch.float32
    assert {part.dtype for layer in half.state for part in layer} == {torch.float32}
    assert (half.outputs - full.outputs).abs().mean() < 0.2 * full.outputs.abs().mean()


def test_an_answer_for_a_sequence_is_made_of_the_mean_over_its_steps() -> None:
    x, _ = sequences(2, timed=False)
    net = network(answers="sequence")
    steps = network(answers="step")
    steps.load_state_dict(net.state_dict())
    assert net(x).outputs.shape == (2, 4)
    assert torch.allclose(net(x).outputs, steps(x).outputs.mean(1), atol=1e-5)  # the head is linear


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_bytes_are_symbols_of_any_type_and_pixels_are_numbers(dtype: torch.dtype) -> None:
    symbols = torch.randint(256, (2, STEPS))
    net = network(features=0, outputs=256)
    assert torch.equal(net(symbols.to(dtype)).outputs, net(symbols).outputs)
    pixels = torch.randint(16, (2, STEPS, 3))
    net = network()
    assert torch.equal(net(pixels.to(dtype)).outputs, net(pixels.float()).outputs)


def test_rates_are_spikes_per_neuron_and_step_of_both_layers_of_each_block() -> None:
    rates = network()(*sequences(3, timed=False)).rates
    assert rates.shape == (4,)
    assert ((rates > 0) & (rates < 1)).all()
    assert rates.requires_grad


def test_plastic_synapses_see_what_is_trained_on_and_nothing_else() -> None:  # C99
    net = network()
    x, _ = sequences(3, timed=False)

    def pending() -> list[float]:
        return [float(synapses.pending()[-1][0]) for synapses in net.synapses()]

    with torch.no_grad():
        net(x)
    net.eval()
    net(x)
    assert pending() == [0, 0]
    net.train()
    net(x)
    net(x[:2])
    assert pending() == [5, 5]


def test_without_a_rule_there_are_no_plastic_synapses() -> None:
    net = network(synapses=None)
    assert net.synapses() == []
    assert not any("synapses" in name for name in net.state_dict())
    assert net(*sequences(1, timed=True)).outputs.isfinite().all()


def test_membranes_of_both_layers_decay_with_the_time_that_passes() -> None:
    net = network()
    x, _ = sequences(2, timed=False)
    whole = net(x, torch.full((2, STEPS, 1), 1e3))  # in which a membrane forgets all that it had
    last = net(x[:, -1:])
    assert torch.allclose(whole.state[0].first, last.state[0].first, atol=1e-6)
    assert torch.allclose(whole.state[0].second, last.state[0].second, atol=1e-6)
    assert not torch.allclose(net(x).state[0].first, last.state[0].first, atol=1e-2)
