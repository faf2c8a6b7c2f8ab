"""Generators of random numbers that count as being on a GPU."""

from typing import Any
from weakref import WeakValueDictionary

import torch

from searchlight.trainables.preflight.shadow_device.storages import Place, WrongDevice, find_place
from searchlight.trainables.private_api import get_generator_address

_Generator = torch.Generator
_ON_GPU: "WeakValueDictionary[int, ShadowGenerator]" = WeakValueDictionary()  # by address: operators see another object


class _GeneratorType(type(_Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Generator)


class ShadowGenerator(torch.Generator, metaclass=_GeneratorType):
    """A generator on the CPU that counts as being on the device that it is made for."""

    def __new__(cls, device: Any = "cpu") -> "ShadowGenerator":
        """Make a generator."""
        generator = super().__new__(cls)
        if find_place(device) == "cuda":
            _ON_GPU[get_generator_address(generator)] = generator
        return generator

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device that was asked for."""
        return torch.device("cuda", 0) if get_generator_address(self) in _ON_GPU else torch.device("cpu")


def check_generator(generator: Any, place: Place) -> None:
    """Raise WrongDevice if `generator` draws numbers for tensors in another place."""
    found = "cuda" if get_generator_address(generator) in _ON_GPU else "cpu"
    if found != place:
        raise WrongDevice(f"Expected a '{place}' device type for generator but found '{found}'")
