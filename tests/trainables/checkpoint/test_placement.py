"""Show that a task's own tensors return to their device, with `meta` in the place of a GPU."""

from collections import Counter
from typing import NamedTuple

import torch

from searchlight.trainables.checkpoint.placement import move_back, note_devices

GPU = torch.device("meta")


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def make_state(device):
    there = torch.zeros(2, device=device)
    task = {"mask": there, "rng": torch.get_rng_state(), "deep": [{"a": there}, (torch.ones(1), there)], "count": 3}
    at_start = {"pair": Pair(torch.ones(1), there)}
    return {"modules": {"net": {"w": there}}, "task": task, "midway": {"task_at_start": at_start, "windows": 2}}


def get_devices(state):
    task, pair = state["task"], state["midway"]["task_at_start"]["pair"]
    tensors = [
        task["mask"],
        task["deep"][0]["a"],
        task["deep"][1][1],
        pair.second,
        task["rng"],
        task["deep"][1][0],
        pair.first,
    ]
    return [tensor.device.type for tensor in tensors]


def test_tensors_of_a_task_return_where_they_were():
    noted = note_devices(make_state(GPU), GPU)["on_device"]
    moved = move_back({**make_state("cpu"), "on_device": noted}, GPU)
    assert get_devices(moved) == ["meta"] * 4 + ["cpu"] * 3
    assert moved["modules"]["net"]["w"].device.type == "cpu", "a module moves its own"
    assert moved["task"]["count"] == 3


def test_tensors_stay_on_a_machine_without_a_gpu():
    noted = note_devices(make_state(GPU), GPU)["on_device"]
    moved = move_back({**make_state("cpu"), "on_device": noted}, torch.device("cpu"))
    assert get_devices(moved) == ["cpu"] * 7


def test_tensors_of_a_checkpoint_of_the_cpu_stay_there():
    noted = note_devices(make_state("cpu"), torch.device("cpu"))["on_device"]
    assert get_devices(move_back({**make_state("cpu"), "on_device": noted}, GPU)) == ["cpu"] * 7
    assert get_devices(move_back(make_state("cpu"), GPU)) == ["cpu"] * 7, "of an earlier version"


def test_counts_of_a_task_or_a_schedule_stay_what_they_were():
    """MultiStepLR keeps its milestones in a Counter, to which `update` adds."""
    state = {"task": {"seen": Counter(cat=2, dog=1)}, "updaters": {"train": {"milestones": Counter([3, 5])}}}
    assert move_back(state, GPU) == state
