"""A whole sequence of a CfC as one autograd function.

Forward does the work that cannot be batched over time: a small matrix product per step and the gates. Backward computes
the derivatives of the gates for all steps at once, and runs back through time with the transposed products. Each
weight's gradient is then one product over all steps.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def run_cfc(drive: Tensor, dt: Tensor | None, state: Tensor, recurrent: Tensor) -> Tensor:
    """Run a CfC: h' = f (1 - s) + s g, where f and g are tanh of their heads, and s = sigmoid(t_a dt + t_b).

    All arguments have one dtype, fp32 or fp64.

    Args:
        drive: The inputs' contribution to the heads, shape (T, B, heads * units), one head after another: f, g, t_a and
            t_b, or f, g and t_a + t_b without `dt`.
        dt: Time steps, shape (T, B, 1), or None for steps of 1.
        state: Initial state, shape (B, units).
        recurrent: Weights from the state to the heads, shape (heads * units, units).

    Returns:
        The state after each step, shape (T, B, units).
    """
    with torch.autocast(drive.device.type, enabled=False):
        states: Tensor = _CfCSequence.apply(drive, dt, state, recurrent)  # type: ignore[no-untyped-call]
    return states


class _CfCSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, drive: Tensor, dt: Tensor | None, state: Tensor, recurrent: Tensor) -> Tensor:
        steps, batch, width = drive.shape
        units = state.shape[1]
        states = drive.new_empty(steps, batch, units)
        # Before step t the memory holds sums of weighted inputs, after it f, g, s, or with `dt` f, g, t_a, s.
        heads = drive.new_empty(steps, batch, width // units, units)

        # All steps are sliced at once, which is much faster than one by one.
        inputs, sums, after = drive.unbind(), heads.flatten(2).unbind(), states.unbind()
        tanhs, first, second = heads[:, :, :2].flatten(2).unbind(), heads[:, :, 0].unbind(), heads[:, :, 1].unbind()
        factors, gates = heads[:, :, 2].unbind(), heads[:, :, -1].unbind()
        times = None if dt is None else dt.unbind()
        before, to_heads = state, recurrent.t()

        # The closed form of a liquid neuron is x(t) = (1 - s) g + s h with s = sigmoid(f t) and heads f, g, h (Hasani
        # et al. 2022, arXiv 2106.13898). As in the authors' code, the heads depend on the state before the step, t is
        # its length dt, and f t gets an offset: s = sigmoid(t_a dt + t_b). The paper's g and h are called f and g here.
        for t in range(steps):
            torch.addmm(inputs[t], before, to_heads, out=sums[t])
            tanhs[t].tanh_()
            if times is not None:
                torch.addcmul(gates[t], factors[t], times[t], out=gates[t])
            gates[t].sigmoid_()
            torch.lerp(first[t], second[t], gates[t], out=after[t])
            before = after[t]

        ctx.save_for_backward(dt, state, recurrent, states, heads)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(grad.device.type, enabled=False):
            return _run_backward(grad, *ctx.saved_tensors)


def _run_backward(
    grad: Tensor, dt: Tensor | None, state: Tensor, recurrent: Tensor, states: Tensor, heads: Tensor
) -> tuple[Tensor | None, ...]:
    steps, batch, units = grad.shape
    # With the heads' sums z_t = W h_{t-1} + drive_t and D_t = dh_t / dz_t, which is diagonal in each head:
    #     dL/dz_t = D_t dL/dh_t,    dL/dh_{t-1} = grad_{t-1} + W^T dL/dz_t,    dL/dW = sum_t dL/dz_t h_{t-1}^T.
    grad_heads = _compute_slopes(heads, dt)
    grad_sums = grad_heads.flatten(2)
    # Gradients of the state before each step, and after the last.
    grad_states = grad.new_empty(steps + 1, batch, units)
    grad_states[-1] = grad[-1]
    each, head, flat = grad_states.unbind(), grad_heads.unbind(), grad_sums.unbind()
    wide = grad_states.unsqueeze(2).unbind()
    outside = (torch.zeros_like(grad[0]), *grad.unbind()[:-1])
    for t in range(steps - 1, -1, -1):
        head[t].mul_(wide[t + 1])
        torch.addmm(outside[t], flat[t], recurrent, out=each[t])

    grad_recurrent = grad_sums[0].t() @ state
    grad_recurrent.addmm_(grad_sums[1:].flatten(0, 1).t(), states[:-1].flatten(0, 1))
    grad_dt = None if dt is None else (grad_heads[:, :, -1] * heads[:, :, 2]).sum(-1, keepdim=True)
    return grad_sums, grad_dt, grad_states[0], grad_recurrent


def _compute_slopes(heads: Tensor, dt: Tensor | None) -> Tensor:
    """Return the derivatives of the next state by the heads' sums, for all steps, in the shape of the heads."""
    f, g, s = heads[:, :, 0], heads[:, :, 1], heads[:, :, -1]
    # By f: (1 - f^2)(1 - s). By g: (1 - g^2) s. By t_b: s (1 - s)(g - f), and dt times as much by t_a.
    slopes = torch.empty_like(heads)
    slopes[:, :, 0] = torch.addcmul(f.new_ones(()), f, f, value=-1) * (1 - s)
    slopes[:, :, 1] = torch.addcmul(s, s * g, g, value=-1)
    to_s = torch.addcmul(s, s, s, value=-1).mul_(g - f)
    slopes[:, :, -1] = to_s
    if dt is not None:
        slopes[:, :, 2] = to_s * dt
    return slopes
