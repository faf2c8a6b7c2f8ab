import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.liquid.cells import Liquid, linear_scan
from models.liquid.cells.scan import scan_by_doubling, scan_in_sequence


def parts(batch: int, steps: int, units: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    a = torch.rand(batch, steps, units, generator=generator, dtype=torch.double)
    b = torch.randn(batch, steps, units, generator=generator, dtype=torch.double)
    return a, b, torch.randn(batch, units, generator=generator, dtype=torch.double)


@given(st.integers(1, 3), st.integers(1, 17), st.integers(1, 4), st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_a_scan_is_its_recurrence_in_sequence_and_by_doubling(batch: int, steps: int, units: int, seed: int) -> None:
    a, b, h = parts(batch, steps, units, seed)
    expected, before = [], h
    for t in range(steps):
        before = a[:, t] * before + b[:, t]
        expected.append(before)
    wanted = torch.stack(expected, dim=1)
    torch.testing.assert_close(linear_scan(a, b, h), wanted)
    first = a.transpose(0, 1), b.transpose(0, 1), h
    for form in (scan_in_sequence, scan_by_doubling):
        torch.testing.assert_close(form(*first).transpose(0, 1), wanted)
    torch.testing.assert_close((a, b, h), parts(batch, steps, units, seed), rtol=0, atol=0)


@pytest.mark.parametrize(("batch", "steps"), [(1, 1), (1, 6), (3, 5)])
@pytest.mark.parametrize("doubling", [False, True])
def test_gradients_are_right(batch: int, steps: int, doubling: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if doubling:  # what devices other than CPUs do
        monkeypatch.setattr("models.liquid.cells.scan.in_sequence", lambda _: False)
    assert torch.autograd.gradcheck(linear_scan, [each.requires_grad_() for each in parts(batch, steps, 2)])


def test_half_precision_is_added_up_in_fp32() -> None:
    ones = torch.ones(1, 600, 1, dtype=torch.bfloat16)
    h = linear_scan(ones, ones, torch.zeros(1, 1))
    assert h.dtype == torch.float32
    assert h[0, -1].item() == 600  # in bfloat16 it would stay at 256


def test_a_scan_of_other_shapes_is_refused() -> None:
    a, b, h = parts(2, 3, 4)
    for given_parts in ((a, b[:, :1], h), (a, b, h[:1]), (a[:, :0], b[:, :0], h), (a[0], b[0], h[0])):
        with pytest.raises(ValueError, match="must have one shape"):
            linear_scan(*given_parts)


def liquid() -> Liquid:
    torch.manual_seed(0)
    return Liquid(3, 4).double()


def test_two_half_steps_are_one_whole_step() -> None:
    cell = liquid()
    x, _, h = parts(2, 5, 3)[0], None, parts(2, 1, 4)[2]
    dt = torch.rand(2, 5, 1, dtype=torch.double) + 0.1
    whole, end = cell(x, h, dt)
    halves, last = cell(x.repeat_interleave(2, dim=1), h, dt.repeat_interleave(2, dim=1) / 2)
    torch.testing.assert_close(halves[:, 1::2], whole)
    torch.testing.assert_close(last, end)


def test_a_step_of_no_time_changes_nothing_and_a_long_one_ends_at_the_candidate() -> None:
    cell = liquid()
    x, h = parts(2, 1, 3)[0], parts(2, 1, 4)[2]
    assert torch.equal(cell(x, h, x.new_zeros(2, 1, 1))[1], h)
    candidate = cell.input(x)[:, 0, 4:].tanh()
    torch.testing.assert_close(cell(x, h, x.new_full((2, 1, 1), 1e6))[1], candidate)


def test_gradients_of_the_liquid_cell_are_right() -> None:
    cell = liquid()
    x, h, dt = parts(2, 4, 3)[0], parts(2, 1, 4)[2], parts(2, 4, 1)[0] + 0.1
    tensors = [each.requires_grad_() for each in (x, h, dt)]
    assert torch.autograd.gradcheck(lambda *given: cell(*given[:3]), tensors + list(cell.parameters()))


def test_units_start_with_time_constants_from_one_step_to_a_hundred() -> None:
    cell = Liquid(3, 16)
    rates = torch.nn.functional.softplus(cell.tau) / 2
    torch.testing.assert_close(rates[[0, -1]], torch.tensor([1.0, 0.01]))
    assert (rates.diff() < 0).all()
