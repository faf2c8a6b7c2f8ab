"""A quadratic penalty of parameters around an anchor, as one node of the graph, for EWC and SI."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import Parameter

Tensors = dict[str, Tensor]


def pull(parameters: Sequence[Tensor], anchors: Sequence[Tensor], weights: Sequence[Tensor], factor: float) -> Tensor:
    """Return `factor * sum weights * (parameters - anchors)^2`, a scalar in fp32, also under autocast.

    Its gradient is `2 * factor * weights * (parameters - anchors)`.
    """
    with torch.autocast(parameters[0].device.type, enabled=False):
        value: Tensor = _Pull.apply(factor, list(anchors), list(weights), *parameters)  # type: ignore[no-untyped-call]
    return value


def pull_gradients(
    parameters: Sequence[Tensor], anchors: Sequence[Tensor], weights: Sequence[Tensor], factor: float
) -> list[Tensor]:
    """Return the gradient of `pull`, without a graph."""
    with torch.no_grad():
        away = torch._foreach_sub(list(parameters), list(anchors))
        halves = torch._foreach_mul(away, list(weights))
        return list(torch._foreach_mul(halves, 2 * factor))


class _Pull(torch.autograd.Function):
    """Three operations on all parameters at once, where autograd would record four for each parameter."""

    @staticmethod
    def forward(ctx: Any, factor: float, anchors: list[Tensor], weights: list[Tensor], *parameters: Tensor) -> Tensor:
        away = torch._foreach_sub(list(parameters), anchors)
        halves = torch._foreach_mul(away, weights)
        ctx.factor = factor
        ctx.save_for_backward(*halves)
        parts = torch._foreach_mul(away, halves)
        return factor * torch.stack([part.sum() for part in parts]).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        scaled = torch._foreach_mul(list(ctx.saved_tensors), 2 * ctx.factor * gradient)
        return None, None, None, *scaled


def copy_full(tensor: Tensor) -> Tensor:
    """Return a detached copy in fp32 or better, since sums over many steps would be lost in lower precision."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32), copy=True)


def copy_matching(what: str, given: Mapping[str, Tensor], parameters: Mapping[str, Parameter]) -> Tensors:
    """Return copies of the given tensors in the order, dtype and device of the parameters.

    Raises:
        ValueError: A name is missing or unknown, or a shape differs.
    """
    odd = sorted(given.keys() ^ parameters.keys())
    if odd:
        raise ValueError(f"{what} must name the same parameters, but got a difference in {odd[0]}. Is it this model's?")
    copies: Tensors = {}
    for name, parameter in parameters.items():
        if given[name].shape != parameter.shape:
            raise ValueError(
                f"{what} of {name} must have shape {tuple(parameter.shape)}, but got {tuple(given[name].shape)}. "
                "Is it this model's?"
            )
        copies[name] = copy_full(given[name]).to(copy_full(parameter))
    return copies
