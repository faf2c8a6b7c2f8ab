"""A whole sequence of a CfC as one autograd function.

Forward does the work that cannot be batched over time: a small matrix product per step (two with a backbone) and the
gates. Backward computes the derivatives of the gates for all steps at once, and runs back through time with the
transposed products. Each weight's gradient is then one product over all steps.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from searchlight.models.liquid.cells.cfc_gates import Gated, Pure


def cfc_sequence(
    drive: Tensor,
    dt: Tensor | None,
    state: Tensor,
    recurrent: Tensor,
    *,
    blend: bool = True,
    backbone: tuple[Tensor, Tensor] | None = None,
    pure: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Run a CfC. All arguments have one dtype, fp32 or fp64.

    Args:
        drive: The inputs' contribution to the first layer, shape (T, B, N): N is the backbone's units, or heads * units
            without a backbone, one head after another.
        dt: Time steps, shape (T, B, 1), or None for steps of 1.
        state: Initial state, shape (B, units).
        recurrent: Weights from the state to the first layer, shape (N, units).
        blend: Mode "default"; False is "no_gate".
        backbone: Weights, shape (heads * units, N), and biases of the heads after N units of tanh.
        pure: Mode "pure", with its rates |w_tau| and levels A, each of shape (units,).

    Returns:
        The state after each step, shape (T, B, units).
    """
    weight, bias = backbone or (None, None)
    rate, level = pure or (None, None)
    with torch.autocast(drive.device.type, enabled=False):
        states: Tensor = _CfCSequence.apply(drive, dt, state, recurrent, weight, bias, rate, level, blend)  # type: ignore[no-untyped-call]
    return states


class _CfCSequence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        drive: Tensor,
        dt: Tensor | None,
        state: Tensor,
        recurrent: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        rate: Tensor | None,
        level: Tensor | None,
        blend: bool,
    ) -> Tensor:
        steps, batch, width = drive.shape
        units = state.shape[1]
        states = drive.new_empty(steps, batch, units)
        first = drive.new_empty(steps, batch, width)
        heads = first if weight is None else drive.new_empty(steps, batch, weight.shape[0])
        gates = _gates(heads.view(*heads.shape[:2], -1, units), dt, rate, level, blend)
        gates.open()
        inputs, layer, sums, after = drive.unbind(), first.unbind(), heads.unbind(), states.unbind()
        before = state
        to_layer = recurrent.t()
        for t in range(steps):
            torch.addmm(inputs[t], before, to_layer, out=layer[t])
            if weight is not None and bias is not None:
                layer[t].tanh_()
                torch.addmm(bias, layer[t], weight.t(), out=sums[t])
            gates.advance(t, after[t])
            before = after[t]
        ctx.blend = blend
        ctx.save_for_backward(dt, state, recurrent, weight, rate, level, states, first, heads)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        dt, state, recurrent, weight, rate, level, states, first, heads = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            return _backward(grad, dt, state, recurrent, weight, rate, level, states, first, heads, ctx.blend)


def _backward(
    grad: Tensor,
    dt: Tensor | None,
    state: Tensor,
    recurrent: Tensor,
    weight: Tensor | None,
    rate: Tensor | None,
    level: Tensor | None,
    states: Tensor,
    first: Tensor,
    heads: Tensor,
    blend: bool,
) -> tuple[Tensor | None, ...]:
    steps, batch, units = grad.shape
    gates = _gates(heads.view(*heads.shape[:2], -1, units), dt, rate, level, blend)
    grad_heads = gates.slopes()
    grad_first = grad_heads.flatten(2) if weight is None else torch.addcmul(first.new_ones(()), first, first, value=-1)
    # Gradients of the state before each step, and after the last.
    grad_states = grad.new_empty(steps + 1, batch, units)
    grad_states[-1] = grad[-1]
    each, head, layer = grad_states.unbind(), grad_heads.unbind(), grad_first.unbind()
    sums, wide = grad_heads.flatten(2).unbind(), grad_states.unsqueeze(2).unbind()
    outside = (torch.zeros_like(grad[0]), *grad.unbind()[:-1])
    for t in range(steps - 1, -1, -1):
        head[t].mul_(wide[t + 1])
        if weight is not None:
            layer[t].mul_(sums[t] @ weight)
        torch.addmm(outside[t], layer[t], recurrent, out=each[t])

    grad_recurrent = grad_first[0].t() @ state
    grad_recurrent.addmm_(grad_first[1:].flatten(0, 1).t(), states[:-1].flatten(0, 1))
    grad_weight = grad_bias = None
    if weight is not None:
        grad_sums = grad_heads.flatten(2).flatten(0, 1)
        grad_weight, grad_bias = grad_sums.t() @ first.flatten(0, 1), grad_sums.sum(0)
    grad_dt = grad_rate = grad_level = None
    if isinstance(gates, Pure):
        grad_dt, grad_rate, grad_level = gates.grads(grad_states[1:])
    elif dt is not None:
        grad_dt = gates.grad_dt(grad_heads)
    return (
        grad_first,
        grad_dt,
        grad_states[0],
        grad_recurrent,
        grad_weight,
        grad_bias,
        grad_rate,
        grad_level,
        None,
    )


def _gates(heads: Tensor, dt: Tensor | None, rate: Tensor | None, level: Tensor | None, blend: bool) -> Gated | Pure:
    if rate is not None and level is not None:
        return Pure(heads, dt, rate, level)
    return Gated(heads, dt, blend)
