"""The whole network: what is true of its cells and neurons is true of it, plastic synapses included."""

import pytest
import torch
from torch import Tensor

from searchlight.models.liquid.cells import CELLS
from tests.models.liquid.nets import network

STEPS = 7
every_cell = pytest.mark.parametrize("cell", CELLS)
every_time = pytest.mark.parametrize("timed", [False, True], ids=["even", "irregular"])


def sequences(batch: int, timed: bool) -> tuple[Tensor, Tensor | None]:
    return torch.randn(batch, STEPS, 3), torch.rand(batch, STEPS, 1) + 0.3 if timed else None


@every_time
@every_cell
def test_later_steps_change_no_earlier_answer(cell: str, timed: bool) -> None:
    net = network(cell=cell)
    x, dt = sequences(2, timed)
    before = net(x, dt).outputs
    for step in range(STEPS - 1):
        later, later_dt = x.clone(), dt if dt is None else dt.clone()
        later[:, step + 1 :] = torch.randn(2, STEPS - step - 1, 3)
        if timed:
            later_dt[:, step + 1 :] *= 3
        after = net(later, later_dt).outputs
        assert torch.allclose(after[:, : step + 1], before[:, : step + 1], atol=1e-5)
        assert (after[:, step + 1] - before[:, step + 1]).abs().max() > 1e-3


@every_time
@every_cell
def test_a_sequence_cut_in_two_is_the_uncut_one(cell: str, timed: bool) -> None:
    net = network(cell=cell)
    for batch in (1, 3):
        x, dt = sequences(batch, timed)
        whole = net(x, dt)
        for cut in (1, 4):
            first = net(x[:, :cut], dt[:, :cut] if timed else None)
            second = net(x[:, cut:], dt[:, cut:] if timed else None, first.state)
            assert torch.allclose(torch.cat([first.outputs, second.outputs], 1), whole.outputs, atol=1e-5)
            for layer, reached in zip(second.state, whole.state, strict=True):
                assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(layer, reached, strict=True))
        alone = net(x[:, 4:], dt[:, 4:] if timed else None)
        assert not torch.allclose(alone.outputs, whole.outputs[:, 4:], atol=1e-3)


@every_cell
def test_sequences_are_independent_and_every_parameter_learns(cell: str) -> None:
    net = network(cell=cell)
    x, dt = sequences(3, timed=True)
    together = net(x, dt)
    for row in range(3):
        alone = net(x[row, None], dt[row, None])
        assert torch.allclose(alone.outputs[0], together.outputs[row], atol=1e-5)
    together.outputs.square().sum().backward()
    assert [name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()] == []


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


def test_an_answer_for_a_sequence_is_the_mean_over_its_steps() -> None:
    x, _ = sequences(2, timed=False)
    net, steps = network(answers="sequence"), network(answers="step")
    steps.load_state_dict(net.state_dict())
    assert net(x).outputs.shape == (2, 4)
    assert torch.allclose(net(x).outputs, steps(x).outputs.mean(1), atol=1e-5)  # the head is linear


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_bytes_are_symbols_and_pixels_are_numbers(dtype: torch.dtype) -> None:
    symbols, net = torch.randint(256, (2, STEPS)), network(features=0, outputs=256)
    assert torch.equal(net(symbols.to(dtype)).outputs, net(symbols).outputs)
    pixels, net = torch.randint(16, (2, STEPS, 3)), network()
    assert torch.equal(net(pixels.to(dtype)).outputs, net(pixels.float()).outputs)


@pytest.mark.parametrize("options", [{}, {"synapses": None}], ids=["plastic", "not plastic"])
def test_rates_are_spikes_per_neuron_and_step(options: dict) -> None:
    net = network(**options)
    rates = net(*sequences(3, timed=False)).rates
    assert rates.shape == (4,)  # both layers of each block
    assert ((rates > 0) & (rates < 1)).all()
    assert rates.requires_grad
    assert len(net.list_synapses()) == (0 if options else 2)


def test_plastic_synapses_observe_training_steps_alone() -> None:
    net = network()
    x, _ = sequences(3, timed=False)
    with torch.no_grad():
        net(x)
    net.eval()
    net(x)
    assert [synapses.get_pending()[-1][0].item() for synapses in net.list_synapses()] == [0, 0]
    net.train()
    net(x)
    net(x[:2])
    assert [synapses.get_pending()[-1][0].item() for synapses in net.list_synapses()] == [5, 5]


def test_membranes_of_both_layers_decay_with_time() -> None:
    net = network()
    x, _ = sequences(2, timed=False)
    whole = net(x, torch.full((2, STEPS, 1), 1e3)).state[0]  # in which a membrane forgets all that it had
    last = net(x[:, -1:]).state[0]
    assert torch.allclose(whole.first, last.first, atol=1e-6)
    assert torch.allclose(whole.second, last.second, atol=1e-6)
    assert not torch.allclose(net(x).state[0].first, last.first, atol=1e-2)
