import torch

from models.liquid.cells import NCP


def test_layer_after_layer_is_step_after_step() -> None:
    torch.manual_seed(0)
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


def test_every_input_reaches_an_output() -> None:
    torch.manual_seed(0)
    cell = NCP(6, 16, 2, sparsity=0.8)
    x = torch.randn(1, 4, 6, requires_grad=True)
    cell(x)[0][:, -1].sum().backward()
    assert (x.grad.abs().amax(dim=1) > 0).all()
