"""The device of a task's own tensors in a checkpoint, which is loaded on the CPU."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from searchlight.trainables.checkpoint.state_dict import map_parts

ON_DEVICE = "on_device"  # the key of the paths of tensors that were on the trial's device
OF_TASK = ("task/", "midway/task_at_start/")  # modules and optimizers move their own state


def note_devices(state: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Return `state` with the paths of the task's own tensors on `device`, which is not the CPU."""
    noted = list[str]()

    def note(path: str, value: Any) -> Any:
        if isinstance(value, Tensor) and value.device.type == device.type and path.startswith(OF_TASK):
            noted.append(path)
        return value

    map_parts(state, note)
    return {**state, ON_DEVICE: [] if device.type == "cpu" else noted}


def move_back(state: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Return `state`, the content of a checkpoint, with the task's own tensors on `device` if they were on one before.

    States of random generators stay on the CPU, where they were.
    """
    noted = {*state.get(ON_DEVICE, ())}  # checkpoints of earlier versions have none
    moved: dict[str, Any] = map_parts(
        dict(state), lambda path, value: value.to(device) if path in noted and isinstance(value, Tensor) else value
    )
    return moved
