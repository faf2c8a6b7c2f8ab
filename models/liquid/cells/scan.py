"""Linear recurrences, and the liquid cell whose gates depend only on its inputs, which is such a recurrence."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from searchlight.models.liquid.cells.cell import Cell
from searchlight.models.liquid.sequence_inputs import prepare_state, promote_to_fp32


def run_linear_scan(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    """Compute h_t = a_t h_{t-1} + b_t, elementwise, in at least fp32.

    It is fastest if time comes first in memory, as in a transposed view of (T, B, U).

    Args:
        a: Factors, shape (B, T, U).
        b: Summands, same shape.
        h0: Initial state, shape (B, U).

    Returns:
        h, shape (B, T, U).
    """
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    h: Tensor = _LinearScan.apply(a.to(dtype).transpose(0, 1), b.to(dtype).transpose(0, 1), h0.to(dtype))  # type: ignore[no-untyped-call]
    return h.transpose(0, 1)


class _LinearScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
        h = scan(a, b, h0)
        ctx.save_for_backward(a, h0, h)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, h0, h = ctx.saved_tensors
        grad_b = reverse_scan(a, grad)
        grad_a = torch.empty_like(grad_b)
        torch.mul(grad_b[0], h0, out=grad_a[0])
        torch.mul(grad_b[1:], h[:-1], out=grad_a[1:])
        return grad_a, grad_b, a[0] * grad_b[0]


def scan(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    """Compute h_t = a_t h_{t-1} + b_t, time first, without autograd.

    Only this function and `reverse_scan` depend on the device: add kernels for a device here.
    """
    return scan_in_sequence(a, b, h0) if is_sequential(b) else scan_by_doubling(a, b, h0)


def reverse_scan(a: Tensor, grad: Tensor) -> Tensor:
    """Compute d_t = grad_t + a_{t+1} d_{t+1}, the gradient of `scan` by b."""
    if not is_sequential(grad):
        later = torch.cat([a[1:], torch.zeros_like(a[:1])])
        return scan_by_doubling(later.flip(0), grad.flip(0), torch.zeros_like(grad[0])).flip(0)
    total = torch.empty(grad.shape, dtype=grad.dtype, device=grad.device)
    each, kept, added = total.unbind(), a.unbind(), grad.unbind()
    each[-1].copy_(added[-1])
    for t in range(len(each) - 2, -1, -1):
        torch.addcmul(added[t], kept[t + 1], each[t + 1], out=each[t])
    return total


def is_sequential(x: Tensor) -> bool:
    """Return whether many small operations are faster than a few large ones on the device of `x`."""
    return x.is_cpu


def scan_in_sequence(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    """Scan with one multiply-add per step, for devices on which starting an operation is cheap."""
    h = torch.empty(b.shape, dtype=b.dtype, device=b.device)
    before = h0
    for kept, added, after in zip(a.unbind(), b.unbind(), h.unbind(), strict=True):
        torch.addcmul(added, kept, before, out=after)
        before = after
    return h


def scan_by_doubling(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    """Scan in log2(T) rounds over all steps (Hillis & Steele 1986), for devices with a high start-up cost."""
    # Steps are affine maps, and their composition is associative: (a2, b2) after (a1, b1) is (a2 a1, a2 b1 + b2).
    # After each round, kept_t and h_t belong to the composition of the last `reach` steps.
    kept, h = a.clone(), b.clone()
    h[0] += a[0] * h0
    reach = 1
    while reach < len(h):
        h[reach:] += kept[reach:] * h[:-reach]
        kept[reach:] = kept[reach:] * kept[:-reach]
        reach *= 2
    return h


class Liquid(Cell):
    """A liquid cell that is gated only by its inputs, and is therefore a linear recurrence.

    h' = a h + (1 - a) tanh(candidate(x)) with a = exp(-softplus(tau) sigmoid(gate(x)) dt): the exact solution of
    dh/dt = rate(x) (tanh(candidate(x)) - h) over a step with constant x. Outputs are the states.

    Args:
        inputs: Features F of the inputs.
        units: Width U of state and outputs.
    """

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.inputs, self.outputs, self.state_size = inputs, units, units
        self.input = nn.Linear(inputs, 2 * units)
        # Time constants of 1 to 100 steps on a log scale, at a gate that is half open.
        rates = torch.logspace(math.log10(2), math.log10(0.02), units)
        self.tau = nn.Parameter(rates + torch.log(-torch.expm1(-rates)))
        nn.init.uniform_(self.input.weight, -math.sqrt(6 / (inputs + units)), math.sqrt(6 / (inputs + units)))
        nn.init.zeros_(self.input.bias)

    def _run(self, x: Tensor, state: Tensor | None, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        # Time first, so that each step is contiguous in memory.
        drive = promote_to_fp32(F.linear(x.transpose(0, 1), self.input.weight, self.input.bias)).transpose(0, 1)
        gate, candidate = drive.chunk(2, dim=-1)
        exponent = gate.sigmoid() * -F.softplus(self.tau)
        if dt is not None:
            exponent = exponent * dt.to(drive.dtype)
        states = run_linear_scan(
            exponent.exp(), -torch.expm1(exponent) * candidate.tanh(), prepare_state(state, drive, self.state_size)
        )
        return states, states[:, -1]
