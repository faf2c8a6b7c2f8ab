"""What goes into recurrent layers: its shape and its precision."""

import torch
from torch import Tensor


def check_sequence(x: Tensor, features: int, state: Tensor | None, width: int, dt: Tensor | None) -> None:
    """Refuse what broadcasting would turn into another sequence without a word.

    Args:
        x: The inputs, should have shape (B, T, features) with at least one step.
        features: Inputs of the layer.
        state: Where the sequence starts, should have shape (B, width).
        width: Units that the layer carries from step to step.
        dt: Time that each step takes, should have shape (B, T, 1).

    Raises:
        ValueError: If a shape is another one.
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


def at_least_fp32(x: Tensor) -> Tensor:
    """Recurrence adds up over hundreds of steps, and does not do so in half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def initial_state(state: Tensor | None, x: Tensor, width: int) -> Tensor:
    """`state`, or rest: zeros of shape (B, width), in the dtype of `x`, which is at least fp32."""
    if state is None:
        return x.new_zeros(x.shape[0], width)
    return state.to(x.dtype)
