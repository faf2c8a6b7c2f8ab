"""A size of a task: the parameters that grow, and the resources of its workers."""

import math
from collections.abc import Mapping
from typing import Any

RESOURCES = ("workers", "cpus_per_worker", "gpus_per_worker")  # that may differ between sizes
UNNAMED = ""  # the parameter that the task declares as its size
Size = dict[str, float]


def name_size(size: Mapping[str, Any]) -> str:
    """Return the name of a size, which is a part of the names of its files: width64-depth2."""
    parts = (f"{name}{value}" for name, value in size.items() if name not in RESOURCES)
    return "-".join(parts).replace(".", "_").replace("/", "_")


def describe_size(size: Mapping[str, float]) -> str:
    """Return a size as text, e.g. "width=64 depth=2"."""
    return " ".join(f"{name}={value:g}" for name, value in size.items())


def measure_size(size: Mapping[str, float]) -> float:
    """Return the product of the numbers of a size."""
    return math.prod(size.values())


def get_measures(size: Mapping[str, float]) -> Size:
    """Return the parameters of a size, without the resources of its workers."""
    return {name: value for name, value in size.items() if name not in RESOURCES}


def convert_whole(size: Mapping[str, float]) -> dict[str, float]:
    """Return a size with its whole numbers as integers, which an int field requires."""
    return {name: int(value) if float(value).is_integer() else value for name, value in size.items()}
