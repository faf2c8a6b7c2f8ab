"""Synaptic intelligence: a parameter's importance is its contribution to the fall of a task's loss."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from searchlight.models.liquid.continual.quadratic import (
    Tensors,
    copy_full,
    copy_matching,
    pull,
    pull_gradients,
)

DAMPING = 0.1  # xi, which bounds the importance of a parameter that hardly moved


class SI:
    """Path-integral importance, accumulated during training (Zenke, Poole & Ganguli 2017, arXiv 1703.04200).

    For every update, call `begin_step`, the optimizer's step, then `finish_step`, or `forget_step` if the update was
    not applied. `compute_penalty` must be part of the loss. Its share of the gradient is not counted.

    Args:
        parameters: The parameters to consolidate, by name.
        strength: c. It must be searched over many decades.
    """

    def __init__(self, parameters: Mapping[str, Parameter], strength: float) -> None:
        self.strength = strength
        self._parameters = dict(parameters)
        self._importance: Tensors = {}  # Omega, of the finished tasks
        self._path: Tensors = {}  # omega, of the current task; empty before its first step
        self._anchor: Tensors = {}  # the weights at the start of the current task
        self._step: tuple[list[Tensor], list[Tensor]] | None = None  # gradients and weights before the step

    def compute_penalty(self) -> Tensor:
        """Return `strength * sum Omega * (theta - theta*)^2`, a scalar in fp32; 0 before the first consolidation.

        Add it to a loss once, independent of the number of samples.
        """
        parameters = list(self._parameters.values())
        if not self._importance or not self.strength:
            return copy_full(parameters[0]).new_zeros(())
        return pull(parameters, list(self._anchor.values()), list(self._importance.values()), self.strength)

    @torch.no_grad()
    def begin_step(self) -> None:
        """Store the task's gradients and the weights.

        `.grad` must hold the gradients of the whole window and of all ranks, unscaled and not clipped, with
        `compute_penalty` in their loss. A parameter without a gradient counts 0.
        """
        if not self._anchor:  # not earlier, since weights may be moved or synchronized before the first step
            self._anchor = self._copy_weights()
        if not self._path:
            self._path = {name: torch.zeros_like(anchor) for name, anchor in self._anchor.items()}
        parameters = list(self._parameters.values())
        gradients = [
            torch.zeros_like(path) if parameter.grad is None else copy_full(parameter.grad)
            for parameter, path in zip(parameters, self._path.values(), strict=True)
        ]
        if self._importance and self.strength:
            anchors, importances = list(self._anchor.values()), list(self._importance.values())
            torch._foreach_sub_(gradients, pull_gradients(parameters, anchors, importances, self.strength))
        self._step = gradients, list(self._copy_weights().values())

    @torch.no_grad()
    def finish_step(self) -> None:
        """Count the effect of the applied update: minus the gradient times the change, the fall of the loss.

        Raises:
            RuntimeError: There was no `begin_step`.
        """
        if self._step is None:
            raise RuntimeError("finish_step must follow begin_step, but got none. Call it ahead of the optimizer.")
        # omega_k -= g_k (theta_k' - theta_k): to first order, the share of parameter k in the fall of the loss. The sum
        # over the updates of a task is the path integral of the gradient.
        gradients, before = self._step
        way = torch._foreach_sub(before, list(self._parameters.values()))
        torch._foreach_addcmul_(list(self._path.values()), gradients, way)
        self._step = None

    def forget_step(self) -> None:
        """Discard an update that was not applied."""
        self._step = None

    @torch.no_grad()
    def consolidate(self) -> None:
        """Convert the path of the task to importance, and anchor the parameters, at the end of a task.

        A task without an applied update adds nothing.
        """
        self._step = None
        now = self._copy_weights()
        if not self._importance:
            self._importance = {name: torch.zeros_like(weights) for name, weights in now.items()}
        for name, path in self._path.items():
            # Omega_k += max(omega_k, 0) / (d_k^2 + xi), where d_k is the change of the weight over the task. Without
            # xi, Omega_k d^2 falls by omega_k over d_k. A negative Omega_k would push away from the anchor.
            gained = path.relu() / ((now[name] - self._anchor[name]).square() + DAMPING)
            self._importance[name] = self._importance[name] + gained
        self._anchor, self._path = now, {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state without an unfinished update."""
        return {"importance": dict(self._importance), "path": dict(self._path), "anchor": dict(self._anchor)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state, whose names and shapes must be those of the parameters."""
        loaded = {
            name: copy_matching(name, state[name], self._parameters) if state[name] else {}
            for name in ("importance", "path", "anchor")
        }
        self._importance, self._path, self._anchor = loaded["importance"], loaded["path"], loaded["anchor"]
        self._step = None

    def _copy_weights(self) -> Tensors:
        return {name: copy_full(parameter) for name, parameter in self._parameters.items()}
