"""What a forward pass changes beside gradients: batch norm's statistics, the state of a cell."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


class Buffers:
    """The buffers of `modules`, each in the place where it is kept: a module may replace one by a new tensor."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        parts = nn.ModuleDict(modules).modules()
        self._places = [(part, name) for part in parts for name, _ in part.named_buffers(recurse=False)]
        self._known = self._now()

    def tensors(self) -> list[Tensor]:
        """The buffers as they are now."""
        return [buffer for buffer in self._now() if buffer is not None]

    def copy(self) -> list[Tensor | None]:
        """The values of all buffers; None for one that a module has emptied."""
        self._known = self._now()
        return [None if buffer is None else buffer.clone() for buffer in self._known]

    @torch.no_grad()
    def restore(self, values: Sequence[Tensor | None]) -> None:
        """Give the buffers the values that `copy` took."""
        for (part, name), known, value in zip(self._places, self._known, values, strict=True):
            same = known is not None and value is not None and known.shape == value.shape
            if same and getattr(part, name) is known:
                known.detach().copy_(value)
            else:  # what a module put in the place of its buffer may be the caller's, as a batch: not to be written to
                setattr(part, name, value)

    def _now(self) -> list[Tensor | None]:
        return [getattr(part, name) for part, name in self._places]
