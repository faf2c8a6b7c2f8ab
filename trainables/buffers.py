"""What a forward pass changes beside gradients: batch norm's statistics, the state of a cell."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


class Buffers:
    """The buffers of `modules`, each in the place where it is kept: a module may replace one by a new tensor."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        parts = nn.ModuleDict(modules).modules()
        self._places = [(part, name) for part in parts for name, _ in part.named_buffers(recurse=False)]

    def tensors(self) -> list[Tensor]:
        """The buffers as they are now."""
        return [getattr(part, name) for part, name in self._places]

    def copy(self) -> list[Tensor]:
        """The values of all buffers."""
        return [buffer.clone() for buffer in self.tensors()]

    @torch.no_grad()
    def restore(self, values: Sequence[Tensor]) -> None:
        """Give the buffers the values that `copy` took."""
        for (part, name), value in zip(self._places, values, strict=True):
            buffer = getattr(part, name)
            if buffer.shape == value.shape:
                buffer.detach().copy_(value)
            else:
                setattr(part, name, value)
