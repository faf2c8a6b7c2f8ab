"""Public names of a package that are imported on their first use, because their imports take long."""

from collections.abc import Callable, Mapping
from importlib import import_module
from sys import modules as loaded
from typing import Any


def import_on_use(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of the module `package`.

    Args:
        modules: The module of each name, relative to `package`.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{modules[name]}"), name)
        setattr(loaded[package], name, value)
        return value

    return get
