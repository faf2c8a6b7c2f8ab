"""Shape and precision of the inputs of recurrent layers."""

import torch
from torch import Tensor


def check_sequence(x: Tensor, features: int, state: Tensor | None, width: int, dt: Tensor | None) -> None:
    """Check shapes that would otherwise be broadcast silently.

    Args:
        x: The inputs, must have shape (B, T, features) with at least one step.
        features: Inputs of the layer.
        state: The initial state, must have shape (B, width).
        width: Units of the layer's state.
        dt: Time that each step takes, must have shape (B, T, 1).

    Raises:
        ValueError: If a shape is wrong.
    """
    if x.dim() != 3 or x.shape[2] != features or x.shape[1] == 0:
        raise ValueError(
            f"x must have shape (batch, time, {features}) and at least one time step, but got {tuple(x.shape)}. "
            "Put batch first, also a batch of one."
        )
    batch, steps, _ = x.shape
    if state is not None and state.shape != (batch, width):
        raise ValueError(
            f"state must have shape ({batch}, {width}), but got {tuple(state.shape)}. "
            "Pass the state that the same layer returned, or None to start at rest."
        )
    if dt is not None and dt.shape != (batch, steps, 1):
        raise ValueError(
            f"dt must have shape ({batch}, {steps}, 1), but got {tuple(dt.shape)}. "
            "Give one time step for each sample and step, such as dt.view(batch, time, 1)."
        )


def promote_to_fp32(x: Tensor) -> Tensor:
    """Cast to at least fp32, since a recurrence sums over hundreds of steps."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def prepare_state(state: Tensor | None, x: Tensor, width: int) -> Tensor:
    """Return `state` in the dtype of `x`, at least fp32, or zeros of shape (B, width)."""
    if state is None:
        return x.new_zeros(x.shape[0], width)
    return state.to(x.dtype)
