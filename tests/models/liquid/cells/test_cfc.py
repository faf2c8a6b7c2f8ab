import ncps.torch
import pytest
import torch
from torch import Tensor, nn

from models.liquid.cells import CfC

MODES = ["default", "no_gate", "pure"]


def cfc(mode: str, inputs: int = 3, units: int = 4, **options: object) -> CfC:
    torch.manual_seed(0)
    cell = CfC(inputs, units, mode=mode, **options).double()
    if mode == "pure":
        nn.init.uniform_(cell.w_tau, 0.2, 1)
        nn.init.uniform_(cell.level, 0.5, 1.5)
    return cell


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(sum(shape)))


def times(batch: int, steps: int) -> Tensor:
    return random(batch, steps, 1).abs() + 0.1


def peer(cell: CfC, mask: Tensor | None = None) -> ncps.torch.CfCCell:
    """The cell of ncps, a step at a time, with the same weights."""
    backbone = 0 if cell.head is None else cell.head.in_features
    other = ncps.torch.CfCCell(
        cell.inputs,
        cell.state_size,
        mode=cell.mode,
        backbone_units=backbone,
        backbone_layers=int(backbone > 0),
        sparsity_mask=None if mask is None else mask.T.numpy(),
    ).double()
    joined = torch.cat([cell.input.weight, cell.recurrent.weight], dim=1)
    weights, biases = joined, cell.input.bias
    if cell.head is not None:
        other.backbone[0].weight.data, other.backbone[0].bias.data = joined.data, cell.input.bias.data
        weights, biases = cell.head.weight, cell.head.bias
    if mask is not None:  # ncps wires f and g only
        weights = weights * mask.repeat(cell.heads, 1)
    names = ["ff1"] if cell.mode == "pure" else ["ff1", "ff2", "time_a", "time_b"]
    for name, weight, bias in zip(names, weights.chunk(len(names)), biases.chunk(len(names)), strict=True):
        getattr(other, name).weight.data, getattr(other, name).bias.data = weight.data, bias.data
    if cell.mode == "pure":
        other.w_tau.data, other.A.data = cell.w_tau.data[None], cell.level.data[None]
    return other


def step_by_step(cell: nn.Module, x: Tensor, state: Tensor, dt: Tensor | None) -> tuple[Tensor, Tensor]:
    outputs = []
    for t in range(x.shape[1]):
        output, state = cell(x[:, t], state, 1.0 if dt is None else dt[:, t])
        outputs.append(output)
    return torch.stack(outputs, dim=1), state


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backbone", [0, 6])
@pytest.mark.parametrize("timed", [False, True])
def test_a_sequence_is_what_ncps_makes_of_it(mode: str, backbone: int, timed: bool) -> None:
    cell = cfc(mode, backbone=backbone)
    batch = 1 if timed else 3
    x, state = random(batch, 7, 3), random(batch, 4)
    dt = times(batch, 7) if timed else None
    torch.testing.assert_close(cell(x, state, dt), step_by_step(peer(cell), x, state, dt), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_a_wired_sequence_is_what_ncps_makes_of_it(mode: str) -> None:
    mask = (random(4, 3 + 4) > 0).double()
    cell = cfc(mode, mask=mask)
    x, state = random(3, 7, 3), random(3, 4)
    torch.testing.assert_close(cell(x, state), step_by_step(peer(cell, mask), x, state, None), rtol=0, atol=1e-7)


def test_gradients_are_those_of_ncps() -> None:
    cell = cfc("default", backbone=6)
    other = peer(cell)
    x, state = random(3, 7, 3), random(3, 4)
    cell(x, state)[0].square().sum().backward()
    step_by_step(other, x, state, None)[0].square().sum().backward()
    joined = torch.cat([cell.input.weight.grad, cell.recurrent.weight.grad], dim=1)
    torch.testing.assert_close(joined, other.backbone[0].weight.grad, rtol=0, atol=1e-10)
    heads = [other.ff1, other.ff2, other.time_a, other.time_b]
    torch.testing.assert_close(
        cell.head.weight.grad, torch.cat([head.weight.grad for head in heads]), rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backbone", [0, 3])
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_gradients_are_right(mode: str, backbone: int, timed: bool, batch: int) -> None:
    cell = cfc(mode, inputs=2, units=3, backbone=backbone)
    tensors = [random(batch, 4, 2), random(batch, 3)] + ([times(batch, 4)] if timed else [])
    parameters = [parameter.detach().clone() for parameter in cell.parameters()]
    names = [name for name, _ in cell.named_parameters()]

    def run(*given: Tensor) -> tuple[Tensor, Tensor]:
        weights = dict(zip(names, given[len(tensors) :], strict=True))
        return torch.func.functional_call(cell, weights, given[: len(tensors)])

    assert torch.autograd.gradcheck(run, [each.requires_grad_() for each in tensors + parameters])


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_right_with_a_mask_and_zero_where_there_is_no_synapse(mode: str) -> None:
    mask = (random(3, 2 + 3) > 0).double()
    cell = cfc(mode, inputs=2, units=3, mask=mask)
    x, state, dt = random(2, 4, 2), random(2, 3), times(2, 4)
    assert torch.autograd.gradcheck(
        lambda *given: cell(*given[:3]), [each.requires_grad_() for each in (x, state, dt)] + list(cell.parameters())
    )
    cell(x, state, dt)[0].sum().backward()
    left_out = (mask == 0).repeat(cell.heads, 1)
    assert (cell.input.weight.grad[left_out[:, :2]] == 0).all()
    assert (cell.recurrent.weight.grad[left_out[:, 2:]] == 0).all()
    assert (cell.input.weight.grad[~left_out[:, :2]] != 0).all()


def test_a_unit_does_not_hear_what_its_wiring_leaves_out() -> None:
    mask = torch.ones(4, 3 + 4)
    mask[2, 1] = 0
    mask[2, 3 + 1] = 0
    cell = cfc("default", mask=mask)
    x, state = random(1, 1, 3), random(1, 4)
    other_x, other_state = x.clone(), state.clone()
    other_x[..., 1] += 1
    other_state[:, 1] += 1
    changed = (cell(other_x, other_state)[1] != cell(x, state)[1])[0]
    assert changed.tolist() == [True, True, False, True]


def test_in_no_time_the_gate_is_the_part_that_time_does_not_scale() -> None:  # C96
    cell = cfc("default")
    x, state = random(3, 1, 3), random(3, 4)
    f, g, _, b = (cell.input(x[:, 0]) + cell.recurrent(state)).chunk(4, dim=1)
    gate = b.sigmoid()
    expected = f.tanh() * (1 - gate) + gate * g.tanh()
    torch.testing.assert_close(cell(x, state, torch.zeros(3, 1, 1, dtype=torch.double))[1], expected)


def test_a_pure_unit_forgets_its_state_but_for_its_level() -> None:
    cell = cfc("pure")
    end = cell(random(2, 1, 3), random(2, 4), torch.full((2, 1, 1), 1e4, dtype=torch.double))[1]
    torch.testing.assert_close(end, cell.level.expand(2, 4))


def test_a_changed_output_is_noticed_before_it_spoils_gradients() -> None:
    outputs, _ = cfc("default")(random(2, 4, 3))
    outputs.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.sum().backward()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "gru"}, "mode must be one of default, no_gate, pure, but got 'gru'"),
        ({"backbone": -1}, "backbone at least 0"),
        ({"mask": torch.ones(3, 7)}, r"mask must have shape \(4, 7\) and no backbone, but got \(3, 7\)"),
        ({"mask": torch.ones(4, 7), "backbone": 5}, "and no backbone"),
    ],
)
def test_other_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CfC(3, 4, **options)
