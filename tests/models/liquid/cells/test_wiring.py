import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.liquid.cells.wiring import neural_circuit


@given(st.integers(1, 9), st.integers(3, 30), st.floats(0, 0.99), st.data())
@settings(max_examples=30, deadline=None)
def test_every_neuron_hears_and_is_heard(inputs: int, units: int, sparsity: float, data: st.DataObject) -> None:
    outputs = data.draw(st.integers(1, units - 2))
    torch.manual_seed(0)
    layers = neural_circuit(inputs, units, outputs, sparsity)
    assert sum(layer.units for layer in layers) == units
    assert [layer.inputs for layer in layers] == [inputs, layers[0].units, layers[1].units]
    for layer in layers:
        assert layer.mask.shape == (layer.units, layer.inputs + layer.units)
        assert ((layer.mask == 0) | (layer.mask == 1)).all()
        synapses, own = layer.mask[:, : layer.inputs], layer.mask[:, layer.inputs :]
        assert (synapses.sum(1) >= 1).all()
        assert (synapses.sum(0) >= 1).all()
        assert (own.diagonal() == 1).all()


def test_layers_are_motor_neurons_and_of_the_rest_forty_percent_command() -> None:
    layers = neural_circuit(5, 60, 10, 0.5)
    assert [layer.units for layer in layers] == [30, 20, 10]


def test_command_neurons_alone_hear_each_other() -> None:
    torch.manual_seed(0)
    inter, command, motor = (layer.mask[:, layer.inputs :] for layer in neural_circuit(5, 60, 10, 0.5))
    assert torch.equal(inter, torch.eye(30))
    assert torch.equal(motor, torch.eye(10))
    assert command.sum() > 20 * 9


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9])
def test_sparsity_is_the_share_of_synapses_that_are_left_out(sparsity: float) -> None:
    torch.manual_seed(0)
    layers = neural_circuit(40, 100, 20, sparsity)
    kept = torch.cat([layer.mask[:, : layer.inputs].flatten() for layer in layers]).mean().item()
    assert kept == pytest.approx(1 - sparsity, abs=0.02)


def test_the_global_generator_draws_the_wiring() -> None:
    drawn = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        drawn.append(neural_circuit(5, 30, 6, 0.5)[0].mask)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("sizes", [(0, 5, 1), (3, 5, 0), (3, 5, 4)])
def test_circuits_without_a_layer_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"units at least outputs \+ 2"):
        neural_circuit(*sizes, 0.5)


@pytest.mark.parametrize("sparsity", [-0.1, 1.0])
def test_a_sparsity_that_is_none_is_refused(sparsity: float) -> None:
    with pytest.raises(ValueError, match="sparsity must be at least 0 and below 1"):
        neural_circuit(3, 9, 2, sparsity)
