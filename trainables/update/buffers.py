"""Copies of module buffers, such as the statistics of batch norm or the state of a recurrent cell.

A forward pass may replace a buffer by a tensor of another shape, set one that was None, or set one to None.
"""

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from searchlight.trainables import private_api
from searchlight.trainables.context import Context

LOOKS = 4  # windows after which a submodule without a buffer is no longer checked, since checks are slow


class SavedBuffer(NamedTuple):
    """A buffer, the submodule and name that it has, and a copy of its values."""

    part: nn.Module
    name: str
    buffer: Tensor
    values: Tensor


def _count_writes(buffer: Tensor) -> int:
    """Return how often a buffer was written to. Torch does not count it for those made in inference mode."""
    return -1 if buffer.is_inference() else private_api.get_tensor_version(buffer)


class _Writes:
    """The writes to a buffer so far."""

    def __init__(self, buffer: Tensor) -> None:
        self._buffer = weakref.ref(buffer)  # modules may replace it, and it takes memory
        self._count = _count_writes(buffer)

    def are_all_of(self, buffer: Tensor) -> bool:
        """Return whether there was none since, and `buffer` is the same."""
        return self._buffer() is buffer and _count_writes(buffer) == self._count


class Buffers:
    """Copies the buffers of `modules`, and writes copies back.

    A window that is skipped or audited must leave no trace in them.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._parts = list(dict.fromkeys(part for module in modules.values() for part in module.modules()))
        self._watched = self._parts
        self._unseen = LOOKS
        self._modules = dict(modules)
        self._built = {name: _Writes(buffer) for name, buffer in self._list_named()}

    @torch.no_grad()
    def copy(self) -> list[SavedBuffer]:
        """Return a copy of the values of all buffers."""
        if not self._watched:
            return []
        if self._unseen:
            self._unseen -= 1
            if not self._unseen:
                self._watched = list(dict.fromkeys(part for part, _, _ in self._find_buffers()))
        found = self._find_buffers()
        copies = torch._foreach_clone([buffer for *_, buffer in found]) if found else ()  # in few launches on a GPU
        return [SavedBuffer(*known, values) for known, values in zip(found, copies, strict=True)]

    @torch.no_grad()
    def restore(self, copied: Sequence[SavedBuffer]) -> None:
        """Restore the values that `copy` returned. Buffers that were None become None again."""
        there = {(id(kept.part), kept.name) for kept in copied}
        for part, name, _ in self._find_buffers():
            if (id(part), name) not in there:
                setattr(part, name, None)
        kept: list[tuple[Tensor, Tensor]] = []
        for part, name, buffer, values in copied:
            # A module may have replaced its buffer by a tensor of the caller, such as a batch. Do not write to that.
            if getattr(part, name) is buffer and _can_be_written(buffer, values):
                kept.append((buffer, values))
            else:
                setattr(part, name, values)
        for buffer, values in _select_changed(kept):
            buffer.detach().copy_(values)

    def broadcast(self, context: Context) -> None:
        """Copy the buffers of rank 0 to all ranks."""
        if context.world_size == 1:
            return
        buffers = [buffer for part in self._parts for _, buffer in part.named_buffers(recurse=False)]
        shapes = context.gather([tuple(buffer.shape) for buffer in buffers])
        if all(others == shapes[0] for others in shapes):
            context.broadcast(buffers)
        else:  # the state of a recurrent cell has the size of the last batch
            self.set_values(context.broadcast_object(self.get_values()), context.device)

    def get_values(self) -> list[dict[str, Tensor]]:
        """Return the buffers of each submodule by name, on the CPU."""
        return [{name: buffer.cpu() for name, buffer in part.named_buffers(recurse=False)} for part in self._parts]

    @torch.no_grad()
    def set_values(self, values: Sequence[Mapping[str, Tensor]], device: torch.device) -> None:
        """Set all buffers to `values`, as `get_values` returns them."""
        pairs = [*zip(self._parts, values, strict=True)]
        for part, saved_part in pairs:
            for name in {name for name, _ in part.named_buffers(recurse=False)} - saved_part.keys():
                setattr(part, name, None)

        _set([(part, name, value) for part, saved_part in pairs for name, value in saved_part.items()], device)

    def get_temporary_values(self) -> dict[str, Tensor | None]:
        """Return the buffers that no state dict has and that changed since this object was created, on the CPU.

        The others, such as masks and tables of positions, are as `build` makes them.
        """
        now = dict(self._list_named())
        kept = {f"{key}.{name}" for key, module in self._modules.items() for name in module.state_dict()}
        changed: dict[str, Tensor | None] = {
            name: buffer.cpu()
            for name, buffer in now.items()
            if name not in kept and not (name in self._built and self._built[name].are_all_of(buffer))
        }
        return changed | {name: None for name in self._built.keys() - now.keys() - kept}

    @torch.no_grad()
    def set_temporary_values(self, values: Mapping[str, Tensor | None], device: torch.device) -> None:
        """Set the buffers that `get_temporary_values` has returned."""
        chosen = []
        for path, value in values.items():
            key = max((key for key in self._modules if path.startswith(f"{key}.")), key=len)
            part, _, name = path.removeprefix(f"{key}.").rpartition(".")
            chosen.append((self._modules[key].get_submodule(part), name, value))
        _set(chosen, device)

    def _list_named(self) -> Iterator[tuple[str, Tensor]]:
        for key, module in self._modules.items():
            for name, buffer in module.named_buffers(remove_duplicate=False):
                yield f"{key}.{name}", buffer

    def _find_buffers(self) -> list[tuple[nn.Module, str, Tensor]]:
        return [(part, name, buffer) for part in self._watched for name, buffer in part.named_buffers(recurse=False)]


def _can_be_written(buffer: Tensor, values: Tensor) -> bool:
    is_alike = (buffer.shape, buffer.dtype, buffer.layout) == (values.shape, values.dtype, values.layout)
    return is_alike and buffer.layout == torch.strided and 0 not in buffer.stride()


def _set(values: Iterable[tuple[nn.Module, str, Tensor | None]], device: torch.device) -> None:
    """Set buffers of modules by name, in their own memory where it can be, since others may refer to it."""
    written = []
    for part, name, value in values:
        buffer = getattr(part, name, None)
        if buffer is None or value is None or buffer.is_inference() or not _can_be_written(buffer, value):
            setattr(part, name, None if value is None else value.to(device, copy=True))
        else:
            buffer.detach().copy_(value)
            written.append((part, name, buffer, value))
    for part, name, buffer, value in written:
        copied = value.to(device, copy=True)
        is_written = torch.equal(_view_bits(buffer), _view_bits(copied))
        if not is_written:  # `build` made it share memory with another one, and training did not
            setattr(part, name, copied)


def _select_changed(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Return the pairs whose tensors differ, since backward raises if a saved tensor was written to.

    A GPU is waited for once, and not for each pair.
    """
    on_gpu = [pair for pair in pairs if pair[0].device.type != "cpu"]
    changed = [pair for pair in pairs if pair[0].device.type == "cpu" and not torch.equal(*map(_view_bits, pair))]
    if on_gpu:
        home = on_gpu[0][0].device
        flags = torch.stack([_differ(*pair).to(home) for pair in on_gpu]).tolist()
        changed += [pair for pair, differs in zip(on_gpu, flags, strict=True) if differs]
    return changed


def _differ(first: Tensor, second: Tensor) -> Tensor:
    return (_view_bits(first) != _view_bits(second)).any()


def _view_bits(values: Tensor) -> Tensor:
    """Return bytes that can be compared: NaN equals no number, itself included, and fp8 has no comparison."""
    return values.contiguous().reshape(-1).view(torch.uint8)


def resize_buffers(module: nn.Module, saved: Mapping[str, Tensor], device: torch.device) -> None:
    """Resize the buffers of `module` to their shapes in `saved`, so that this state dict can be loaded."""
    state = module.state_dict()
    parameters = dict(module.named_parameters(remove_duplicate=False))
    for name in (state.keys() | saved.keys()) - parameters.keys():
        values = [each[name] for each in (state, saved) if name in each]
        if not all(isinstance(value, Tensor) for value in values):  # an extra state, which the module itself loads
            continue
        if len(values) == 2 and values[0].shape == values[1].shape:
            continue
        path, _, leaf = name.rpartition(".")
        part = module.get_submodule(path)
        if hasattr(part, leaf):  # load_state_dict reports names that the module does not have
            setattr(part, leaf, saved[name].to(device, copy=True) if name in saved else None)
