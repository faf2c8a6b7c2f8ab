"""The mode that sees each operator, also those of the backward pass, and applies CUDA's rules to its tensors."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from searchlight.trainables.preflight.shadow_device import rules
from searchlight.trainables.preflight.shadow_device.device import ShadowDevice
from searchlight.trainables.preflight.shadow_device.generators import check_generator
from searchlight.trainables.preflight.shadow_device.storages import Place, WrongDevice
from searchlight.trainables.private_api import DispatchMode, get_backward_id, get_storage_id

TWO_DEVICES = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"


class OperatorMode(DispatchMode):  # type: ignore[misc]  # private, so that its type is Any
    """Runs each operator on the CPU, and tags its results. Raises WrongDevice where CUDA would raise.

    Attributes:
        making: Where new tensors are made, if a function that makes them runs.
        depth: The number of torch's functions that run. Without any, C++ code makes no tensor of its own.

    Args:
        device: The simulated GPU, which counts what the CPU waits for.
    """

    def __init__(self, device: ShadowDevice) -> None:
        super().__init__()
        self.tags, self._device = device.tags, device
        self.making: Place | None = None
        self.depth = 0
        self._rules: dict[str, rules.Rule] = {}

    @contextmanager
    def make_in(self, place: Place | None) -> Iterator[None]:
        """Let new tensors be in `place`."""
        before, self.making = self.making, place
        try:
            yield
        finally:
            self.making = before

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled inside, and what torch wraps around each call costs more than it

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, func.name().partition(".")[0]
        given = list(iterate_tensors((*args, *kwargs.values())))
        places = [self.tags.get(tensor) for tensor in given]
        is_on_gpu = "cuda" in places
        if is_on_gpu:
            self._check(func.name(), args, given, places)
            if read := rules.find_read(name, args):
                self._device.count_wait(read)
        if self.making is not None:
            place: Place = self.making
        elif is_on_gpu:
            place = "cuda"
        elif given:
            place = "any" if all(place == "any" for place in places) else "cpu"
        else:
            is_inside = self.depth or get_backward_id() != -1 or dist.is_initialized()  # whose buckets are made in C++
            place = "any" if is_inside else "cpu"
        if place != "any":
            for value in (*args, *kwargs.values()):
                if isinstance(value, torch.Generator):
                    check_generator(value, place)
        result = func(*args, **kwargs)
        if name == "aten::copy_":  # what is written to stays where it is
            if places == ["any", "cuda"]:
                self.tags.put(given[0], "cuda")
            elif places == ["cpu", "cuda"] and not any(args[2:]):
                self._device.count_wait("a copy to the CPU")
            return result
        if is_on_gpu:  # so is what torch made for it
            for tensor, found in zip(given, places, strict=True):
                if found == "any":
                    self.tags.put(tensor, "cuda")
        if name.startswith("aten::_foreach") and is_on_gpu and isinstance(result, list | tuple):
            for row, tensor in zip(_iterate_rows(args), result, strict=False):
                row_place: Place = "cuda" if any(self.tags.get(each) == "cuda" for each in row) else "cpu"
                self._tag_results(name, row, tensor, row_place, is_on_gpu)
        elif place != "cpu" or is_on_gpu:
            self._tag_results(name, given, result, place, is_on_gpu)
        return result

    def _tag_results(self, name: str, given: Sequence[Tensor], result: Any, place: Place, is_on_gpu: bool) -> None:
        known = {_identify(tensor) for tensor in given}
        for index, tensor in enumerate(iterate_tensors((result,))):
            if _identify(tensor) in known:  # a view, or what was written to: a sparse one gets new storages then
                if is_on_gpu and self.tags.get(tensor) == "cpu" and tensor.layout is not torch.strided:
                    self.tags.put(tensor, "cuda")
                continue
            is_length = name == "aten::_pack_padded_sequence" and index == 1  # the sizes of batches stay on the CPU
            self.tags.put(tensor, "cpu" if is_length else place)

    def _check(self, overload: str, args: tuple[Any, ...], given: Sequence[Tensor], places: Sequence[Place]) -> None:
        name = overload.partition(".")[0]
        if name == "aten::_pack_padded_sequence":
            if places[1] == "cuda":
                raise WrongDevice("'lengths' argument should be a 1D CPU int64 tensor, but got 1D cuda:0 Long tensor")
            return
        if missing := rules.find_missing_kernel(name, given[0]):
            raise WrongDevice(missing)
        rule = self._rules.get(overload) or self._read_rule(overload)
        if "cpu" not in places or rule == "free":
            return
        if name in rules.INDEXING:
            if self.tags.get(args[0]) == "cpu":
                raise WrongDevice("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
            given = [args[0], *iterate_tensors(args[2:])]
        if name.startswith("aten::_foreach"):  # each of them is computed alone, e.g. a scalar of the CPU with others
            for row in _iterate_rows(args):
                self._compare(name, row, rule)
            return
        self._compare(name, given, rule)

    def _read_rule(self, overload: str) -> rules.Rule:
        if overload.partition("::")[0] not in rules.KNOWN:
            self._device.unseen.add(f"the operator {overload}")
        return self._rules.setdefault(overload, rules.get_rule(overload))

    def _compare(self, name: str, tensors: Sequence[Tensor], rule: rules.Rule) -> None:
        places = [self.tags.get(tensor) for tensor in tensors]
        if "cuda" not in places:
            return
        for index, (tensor, place) in enumerate(zip(tensors, places, strict=True)):
            is_written = index == 0 and name.endswith("_")  # so that it must be on the GPU, even without dimensions
            if place == "cpu" and (rule == "strict" or tensor.dim() or is_written):
                operator = name.partition("::")[2]
                raise WrongDevice(f"{TWO_DEVICES} ({operator}: a tensor of shape {tuple(tensor.shape)} is on the CPU)")


def iterate_tensors(values: Any) -> Iterator[Tensor]:
    """Yield the tensors of the arguments or the result of an operator."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from iterate_tensors(value)


def _iterate_rows(args: Iterable[Any]) -> Iterator[list[Tensor]]:
    """Yield the tensors that an operator on lists computes with together."""
    for row in zip_longest(*(arg for arg in args if isinstance(arg, list | tuple))):
        yield [tensor for tensor in row if isinstance(tensor, Tensor)]


def _identify(tensor: Tensor) -> int:
    try:
        return int(get_storage_id(tensor))
    except (NotImplementedError, RuntimeError):  # it has no storage of its own
        return id(tensor)
