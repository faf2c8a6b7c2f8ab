"""Exponential moving average of a trial's weights."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter


class Ema:
    """fp32 averages of `parameters`, moved once per applied update.

    The decay is warmed up, min(decay, (1 + k) / (10 + k)) at update k, so that early averages are not held
    back by the random start.

    Raises:
        ValueError: decay is not in (0, 1).
    """

    def __init__(self, parameters: Mapping[str, Parameter], decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"ema_decay must be between 0 and 1, but got {decay}.")
        self.decay = decay
        self._live = dict(parameters)
        self._shadow: dict[str, Tensor] = {}
        self.restart()

    @torch.no_grad()
    def restart(self) -> None:
        """Begin with the live weights as they are."""
        self.updates = 0
        for name, parameter in self._live.items():
            dtype = torch.promote_types(parameter.dtype, torch.float32)
            self._shadow[name] = parameter.detach().to(dtype, copy=True)

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages towards the live weights."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        live = [parameter.to(self._shadow[name].dtype) for name, parameter in self._live.items()]
        torch._foreach_lerp_(list(self._shadow.values()), live, 1 - decay)
        self.updates += 1

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The modules hold the averages inside, and bit for bit their own weights again afterwards.

        Buffers, as the statistics of batch norm, are not averaged: they stay the live ones.
        """
        own = [parameter.data for parameter in self._live.values()]
        for name, parameter in self._live.items():
            parameter.data = self._shadow[name].to(parameter.dtype)
        try:
            yield
        finally:
            for parameter, weights in zip(self._live.values(), own, strict=True):
                parameter.data = weights

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "shadow": dict(self._shadow)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.updates = state["updates"]
        for name, shadow in self._shadow.items():
            shadow.copy_(state["shadow"][name])
