"""What a window costs on two ranks: one reduction, and one read on the host."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.trainables.toy_models import samples, slope
from trainables.update import Ema, Updater, windows

# What runs on each rank


def counted_collectives(rank: int, size: int, batches: int) -> list[list[str]]:
    """The collectives of each window of an epoch."""
    names = ["all_reduce", "broadcast", "all_gather", "all_gather_object", "reduce", "barrier"]
    real = {name: getattr(dist, name) for name in names}
    calls: list[str] = []

    def wrapped(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            return real[name](*arguments, **options)

        return call

    weight, updater = slope()
    for name in names:
        setattr(dist, name, wrapped(name))
    try:
        counted = []
        for window in windows([samples(x) for x in range(batches)], size):
            calls.clear()
            updater.update(window, lambda x: ((weight * x).mean(), 1))
            counted.append(list(calls))
        return counted
    finally:
        for name in names:
            setattr(dist, name, real[name])


def counted_reads(rank: int, weight_as_tensor: bool) -> dict[str, int]:
    """How often a window of four micro-batches makes the host wait for numbers of the device."""
    weight = nn.Parameter(torch.zeros(3))
    updater = Updater({"sgd": torch.optim.SGD([weight])}, "fp16", max_grad_norm=1.0, ema=Ema({"w": weight}, 0.9))
    batches = [samples(1, 2, rank) for _ in range(4)]
    weights = [torch.tensor(3.0) if weight_as_tensor else 3.0] * 4
    names = ["item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__"]
    real = {name: getattr(Tensor, name) for name in names}
    counts: dict[str, int] = {}
    waiting = iter(weights)

    def wrapped(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            counts[name] = counts.get(name, 0) + 1
            return real[name](*arguments, **options)

        return call

    for name in names:
        setattr(Tensor, name, wrapped(name))
    try:
        updater.update(batches, lambda x: ((weight * x).mean(), next(waiting)))
    finally:
        for name in names:
            setattr(Tensor, name, real[name])
    return counts


@pytest.mark.parametrize("size", [1, 4, 7])
def test_a_window_costs_one_reduction_whatever_its_length(pair, size):  # B21, C59
    for counted in pair.run(counted_collectives, size, 9):
        assert counted == [["all_reduce"]] * math.ceil(9 / size)  # B22: that of the tail too


@pytest.mark.parametrize("weight_as_tensor", [True, False], ids=["tensor", "number"])
def test_a_window_costs_one_read_on_the_host(pair, weight_as_tensor):  # I87
    assert pair.run(counted_reads, weight_as_tensor) == [{"tolist": 1}] * 2
