"""What all cells have in common."""

import pytest
import torch
from torch import nn

from models.liquid.cells import CELLS, CfC, make_cell

KINDS = list(CELLS)
FEATURES, UNITS = 3, 8


def cell_of(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return make_cell(kind, FEATURES, UNITS)


def sequences(batch: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs, and time steps that differ from sample to sample and from step to step."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, steps, FEATURES, generator=generator)
    return x, 0.1 + 2 * torch.rand(batch, steps, 1, generator=generator)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("batch", "steps"), [(1, 1), (1, 5), (4, 1), (4, 5)])
def test_any_batch_and_any_length(kind: str, batch: int, steps: int) -> None:  # C96
    cell = cell_of(kind)
    x, dt = sequences(batch, steps)
    for times in (None, dt):
        outputs, state = cell(x, None, times)
        assert outputs.shape == (batch, steps, cell.outputs)
        assert state.shape == (batch, cell.state_size) == (batch, UNITS)
        assert outputs.isfinite().all()
        alone, end = cell(x[-1:], None, None if times is None else times[-1:])
        torch.testing.assert_close((alone[0], end[0]), (outputs[-1], state[-1]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_moves_and_the_inputs_move_it(kind: str) -> None:  # C96
    cell = cell_of(kind)
    x, _ = sequences(2, 6)
    outputs, _ = cell(x)
    assert (outputs.diff(dim=1).abs().amax(dim=(0, 2)) > 1e-4).all()
    assert not torch.allclose(outputs[0], outputs[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("timed", [False, True])
def test_a_sequence_cut_in_two_goes_on_where_it_was_cut(kind: str, timed: bool) -> None:
    cell = cell_of(kind)
    x, dt = sequences(3, 7)
    times = dt if timed else None
    whole, end = cell(x, None, times)
    first, between = cell(x[:, :3], None, dt[:, :3] if timed else None)
    second, last = cell(x[:, 3:], between, dt[:, 3:] if timed else None)
    torch.testing.assert_close((torch.cat([first, second], dim=1), last), (whole, end))


@pytest.mark.parametrize("kind", KINDS)
def test_no_time_steps_are_steps_of_one(kind: str) -> None:
    cell = cell_of(kind)
    x, dt = sequences(2, 5)
    torch.testing.assert_close(cell(x), cell(x, torch.zeros(2, UNITS), torch.ones_like(dt)))
    assert not torch.allclose(cell(x)[0], cell(x, None, dt)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_each_sample_has_its_own_time_steps_where_batch_and_units_are_as_many(kind: str) -> None:
    cell = cell_of(kind)
    x, dt = sequences(UNITS, 4)
    outputs, _ = cell(x, None, dt)
    alone = torch.cat([cell(x[i : i + 1], None, dt[i : i + 1])[0] for i in range(UNITS)])
    torch.testing.assert_close(outputs, alone)


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_later_changes_nothing_before(kind: str) -> None:  # C97
    cell = cell_of(kind)
    x, dt = sequences(2, 6)
    other, longer = x.clone(), dt.clone()
    other[:, 4:], longer[:, 4:] = 7.0, 5.0
    outputs, changed = cell(x, None, dt)[0], cell(other, None, longer)[0]
    assert torch.equal(outputs[:, :4], changed[:, :4])
    assert not torch.allclose(outputs[:, 4:], changed[:, 4:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_states_are_fp32_under_autocast_and_so_are_gradients(kind: str, dtype: torch.dtype) -> None:
    cell = cell_of(kind)
    x, dt = sequences(2, 20)
    exact = cell(x, None, dt)[0]
    with torch.autocast("cpu", dtype=dtype):
        outputs, state = cell(x.to(dtype), None, dt)
        again, _ = cell(x.to(dtype), state, dt)
        again.sum().backward()
    assert outputs.dtype == state.dtype == again.dtype == torch.float32
    torch.testing.assert_close(outputs, exact, rtol=0, atol=0.1)
    for name, parameter in cell.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_run_is_the_same_to_the_bit(kind: str) -> None:
    x, dt = sequences(3, 5)
    runs = []
    for _ in range(2):
        cell = cell_of(kind)
        outputs, state = cell(x, None, dt)
        outputs.square().sum().backward()
        runs.append([outputs, state, *(parameter.grad for parameter in cell.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("x", "state", "dt", "message"),
    [
        ((4, FEATURES), None, None, r"x must have shape \(batch, time, 3\).* got \(4, 3\)"),
        ((2, 4, FEATURES + 1), None, None, r"got \(2, 4, 4\)"),
        ((2, 0, FEATURES), None, None, r"at least one time step, but got \(2, 0, 3\)"),
        ((2, 4, FEATURES), (1, UNITS), None, r"state must have shape \(2, 8\), but got \(1, 8\)"),
        ((2, 4, FEATURES), (2, UNITS + 1), None, r"got \(2, 9\)"),
        ((2, 4, FEATURES), None, (2, 4), r"dt must have shape \(2, 4, 1\), but got \(2, 4\)"),
        ((2, 4, FEATURES), None, (2, 1), r"got \(2, 1\)"),
        ((2, 4, FEATURES), None, (1, 4, 1), r"got \(1, 4, 1\)"),
        ((2, 4, FEATURES), None, (2, 4, UNITS), r"got \(2, 4, 8\)"),
    ],
)
def test_other_shapes_are_refused_and_not_broadcast(
    kind: str, x: tuple[int, ...], state: tuple[int, ...] | None, dt: tuple[int, ...] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        cell_of(kind)(
            torch.zeros(x), None if state is None else torch.zeros(state), None if dt is None else torch.ones(dt)
        )


def test_cells_go_by_their_names() -> None:
    assert isinstance(make_cell("cfc", 2, 5), CfC)
    with pytest.raises(ValueError, match=r"cell must be one of cfc, liquid, ltc, ncp, but got 'lstm'"):
        make_cell("lstm", 2, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_below_one_are_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        make_cell(kind, 0, 8)
    with pytest.raises(ValueError, match="at least"):
        make_cell(kind, 3, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_and_wiring_travel_in_a_checkpoint(kind: str) -> None:
    cell = cell_of(kind)
    torch.manual_seed(5)
    other = make_cell(kind, FEATURES, UNITS)
    x, dt = sequences(2, 4)
    assert not torch.equal(other(x, None, dt)[0], cell(x, None, dt)[0])
    other.load_state_dict(cell.state_dict())
    assert torch.equal(other(x, None, dt)[0], cell(x, None, dt)[0])
