"""Exponential moving average of a trial's weights."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter


class Ema:
    """Exponential moving averages of parameters in fp32, updated once per applied update.

    The decay at update k is min(decay, (1 + k) / (10 + k)), so that the random initialization has little weight in
    early averages.

    Args:
        parameters: The parameters by name.
        decay: The weight of the old average, above 0 and below 1.

    Raises:
        ValueError: `decay` is out of range.
    """

    def __init__(self, parameters: Mapping[str, Parameter], decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"ema_decay must be between 0 and 1, but got {decay}.")
        self.decay = decay
        self.updates = 0
        self._live = dict(parameters)
        self._half = any(parameter.dtype.itemsize < 4 for parameter in self._live.values())
        # Copies, since `.float()` returns fp32 weights themselves.
        self._shadow = {name: _to_fp32(parameter.detach()).clone() for name, parameter in self._live.items()}

    @torch.no_grad()
    def restart(self) -> None:
        """Restart the averages from the live weights."""
        self.updates = 0
        for name, parameter in self._live.items():
            self._shadow[name].copy_(parameter)

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages toward the live weights."""
        # average <- decay * average + (1 - decay) * weight = average + (1 - decay) * (weight - average)
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        live = self._get_tensors(self._live)
        if self._half:
            live = [_to_fp32(parameter) for parameter in live]
        torch._foreach_lerp_(self._get_tensors(self._shadow), live, 1 - decay)
        self.updates += 1

    def _get_tensors(self, named: Mapping[str, Tensor]) -> list[Tensor]:
        return list(named.values())

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the weights of the modules by the averages inside the context. Restore them bit for bit at its end.

        Buffers, such as the statistics of batch norm, are not averaged.
        """
        live = [parameter.data for parameter in self._live.values()]
        for name, parameter in self._live.items():
            parameter.data = self._shadow[name].to(parameter.dtype)
        torch.clear_autocast_cache()  # its copies in half precision are of the live weights
        try:
            yield
        finally:
            for parameter, weights in zip(self._live.values(), live, strict=True):
                parameter.data = weights
            torch.clear_autocast_cache()

    def state_dict(self) -> dict[str, Any]:
        """Return the averages and the number of updates. The tensors are not copied."""
        return {"updates": self.updates, "shadow": dict(self._shadow)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned."""
        self.updates = state["updates"]
        for name, shadow in self._shadow.items():
            shadow.copy_(state["shadow"][name])


def _to_fp32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor
