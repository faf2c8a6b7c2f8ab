"""What a forward pass changes beside gradients: batch norm's statistics, the state of a cell.

A module may replace a buffer by another tensor, of another shape too, fill one that is None, or empty one.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trainables.context import Context

LOOKS = 4  # windows after which a part of a module without a buffer is taken to have none: looking takes its time


class SavedBuffer(NamedTuple):
    """A buffer, where it is, and a copy of its values."""

    part: nn.Module
    name: str
    buffer: Tensor
    values: Tensor


class Buffers:
    """The buffers of `modules`."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._parts = list(dict.fromkeys(part for module in modules.values() for part in module.modules()))
        self._watched = self._parts
        self._unseen = LOOKS

    def copy(self) -> list[SavedBuffer]:
        """The values of all buffers."""
        if not self._watched:
            return []
        if self._unseen:
            self._unseen -= 1
            if not self._unseen:
                self._watched = list(dict.fromkeys(part for part, _, _ in self._find_buffers()))
        return [SavedBuffer(part, name, buffer, buffer.clone()) for part, name, buffer in self._find_buffers()]

    @torch.no_grad()
    def restore(self, copied: Sequence[SavedBuffer]) -> None:
        """Give the buffers the values that `copy` took; those that were None then are None again."""
        there = {(id(kept.part), kept.name) for kept in copied}
        for part, name, _ in self._find_buffers():
            if (id(part), name) not in there:
                setattr(part, name, None)
        for part, name, buffer, values in copied:
            # What a module put in the place of its buffer may be the caller's, as a batch: not to be written to.
            if getattr(part, name) is buffer and buffer.shape == values.shape and 0 not in buffer.stride():
                if not torch.equal(buffer, values):  # a graph may hold it, and refuse one that was written to
                    buffer.detach().copy_(values)
            else:
                setattr(part, name, values)

    def broadcast(self, context: Context) -> None:
        """Give the buffers of all ranks those that rank 0 has."""
        if context.world_size == 1:
            return
        buffers = [buffer for part in self._parts for _, buffer in part.named_buffers(recurse=False)]
        shapes = context.gather([tuple(buffer.shape) for buffer in buffers])
        if all(others == shapes[0] for others in shapes):
            context.broadcast(buffers)
        else:  # as the state of a cell has, that is as long as the last batch
            self.set_values(context.broadcast_object(self.get_values()), context.device)

    def get_values(self) -> list[dict[str, Tensor]]:
        """The buffers of each part of the modules, on the CPU."""
        return [{name: buffer.cpu() for name, buffer in part.named_buffers(recurse=False)} for part in self._parts]

    def set_values(self, values: Sequence[Mapping[str, Tensor]], device: torch.device) -> None:
        """Replace all buffers by what `values` gave."""
        for part, own in zip(self._parts, values, strict=True):
            for name in {name for name, _ in part.named_buffers(recurse=False)} - own.keys():
                setattr(part, name, None)
            for name, value in own.items():
                setattr(part, name, value.to(device, copy=True))

    def _find_buffers(self) -> list[tuple[nn.Module, str, Tensor]]:
        return [(part, name, buffer) for part in self._watched for name, buffer in part.named_buffers(recurse=False)]


def resize_buffers(module: nn.Module, saved: Mapping[str, Tensor], device: torch.device) -> None:
    """Give the buffers of `module` the shapes that they have in `saved`, its state, which can then be loaded."""
    state = module.state_dict()
    parameters = dict(module.named_parameters(remove_duplicate=False))
    for name in (state.keys() | saved.keys()) - parameters.keys():
        if name in state and name in saved and state[name].shape == saved[name].shape:
            continue
        path, _, leaf = name.rpartition(".")
        part = module.get_submodule(path)
        if hasattr(part, leaf):  # what the module does not know is an error of the loading, which names it
            setattr(part, leaf, saved[name].to(device, copy=True) if name in saved else None)
