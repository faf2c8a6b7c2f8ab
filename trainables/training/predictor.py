"""Predictions of a trained task, in a process that does not train."""

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from searchlight.trainables import checkpoint
from searchlight.trainables.checkpoint import sharded
from searchlight.trainables.checkpoint.placement import ON_DEVICE, move_back
from searchlight.trainables.context import Context, rng
from searchlight.trainables.filesystem.paths import StoragePath
from searchlight.trainables.registry import load_class
from searchlight.trainables.training.evaluation import isolated_inference
from searchlight.trainables.training.trainer import BUILD
from searchlight.trainables.update.batches import to_device
from searchlight.trainables.update.buffers import Buffers, resize_buffers
from searchlight.trainables.update.parameters import get_named_parameters, is_sharded

NUMBERS = "biufc"  # array kinds that torch supports


class Predictor:
    """A task with trained weights: the averaged ones if the trial has averages.

    Args:
        reference: The task as "module:Class".
        state: The content of a checkpoint, or of the file that `save` wrote.
        device: The device of the predictions. Default: a GPU of this machine, else its CPU.

    Attributes:
        close: A function that ends the process group of sharded modules. It is called when the predictor is deleted.

    Raises:
        ValueError: The device does not support the precision of the trial.
    """

    def __init__(self, reference: str, state: Mapping[str, Any], device: str | torch.device | None = None) -> None:
        task_class = load_class(reference)
        config = task_class.config_class().model_validate(state["config"])
        context = Context(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.task = task_class(config, context)
        # Only sharded modules need a process group. It ends with the predictor, since MLflow does not close models.
        self.close = weakref.finalize(self, context.close)
        self._reference = reference
        moved = move_back(state, context.device)
        self._own_state = {name: moved[name] for name in ("task", "buffers", ON_DEVICE) if name in moved}
        try:
            self._build(moved)
        except BaseException:  # any error: its traceback would keep the process group
            self.close()
            raise
        parameters = [parameter for module in self.task.modules.values() for parameter in module.parameters()]
        self._keeps_fp64 = any(parameter.dtype is torch.float64 for parameter in parameters)

    def _build(self, state: Mapping[str, Any]) -> None:
        """Build the task and load its weights."""
        context = self.task.context
        # What build draws, e.g. a fixed projection, must be the same as in training.
        with rng.isolated(context.generator, context.device, self.task.config.seed, 0, BUILD):
            self.task.build()
        for module in self.task.modules.values():
            module.to(context.device)
        named = get_named_parameters(self.task.modules)
        if is_sharded(named.values()) or sharded.FOLDER in state:
            averages = {
                f"updaters/{key}/ema/shadow/{name}": parameter.detach()
                for key in state["updaters"]
                for name, parameter in named.items()
                if is_sharded([parameter])
            }
            updaters = {key: {"ema": updater["ema"]} for key, updater in state["updaters"].items()}
            state = sharded.fill({**state, "updaters": updaters}, {**sharded.get_layouts(self.task), **averages})
        for name, module in self.task.modules.items():
            resize_buffers(module, state["modules"][name], context.device)
            module.load_state_dict(state["modules"][name])
        self._buffers = Buffers(self.task.modules)
        if state.get("buffers"):
            self._buffers.set_temporary_values(state["buffers"], context.device)
        for updater in state["updaters"].values():
            for name, average in (updater["ema"] or {"shadow": {}})["shadow"].items():
                named[name].data.copy_(average)
        self.task.load_state_dict(self._own_state["task"])
        for module in self.task.modules.values():
            module.eval().requires_grad_(False)
        self.task.precision  # noqa: B018 - raises here, and not at the first question

    @classmethod
    def load(cls, path: StoragePath, device: str | torch.device | None = None) -> "Predictor":
        """Return the predictor that `save` wrote.

        Raises:
            CheckpointError: The file is missing or its content differs from what was written.
            UnreadableError: Its storage cannot be read.
        """
        state = checkpoint.load(path)
        return cls(state["reference"], state, device)

    def save(self, path: StoragePath) -> None:
        """Write the weights and the rest of the state that `load` needs, without the state of training."""
        modules = {name: module.state_dict() for name, module in self.task.modules.items()}
        config = self.task.config.model_dump(mode="json", round_trip=True)
        state = {"config": config, "modules": modules, "updaters": {}, **self._own_state}
        checkpoint.save({"reference": self._reference, **sharded.gather(state)}, path)

    def __call__(self, inputs: Any) -> Any:
        """Return the task's predictions for `inputs`, as arrays. Restore buffers afterwards.

        Args:
            inputs: An array, a dict of arrays or a data frame. fp64 becomes fp32, unless a parameter is fp64.

        Raises:
            ValueError: `predict` returns other types than tensors, arrays and dicts of them.
        """
        moved = to_device(_to_tensors(inputs), self.task.context.device, self._keeps_fp64)
        with isolated_inference(self.task, self._buffers):
            return _to_arrays(self.task.predict(moved), "predict")

    def example(self) -> Any:
        """Return a few inputs, as arrays.

        Raises:
            ValueError: `example` returns other types than tensors, arrays and dicts of them.
        """
        context = self.task.context
        with rng.isolated(context.generator, context.device, self.task.config.seed, 0):
            return _to_arrays(self.task.example(), "example")


def _to_tensors(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return {name: _to_tensors(part) for name, part in inputs.items()}
    array = inputs.to_numpy() if hasattr(inputs, "to_numpy") else np.asarray(inputs)
    # Copied, since torch refuses read-only arrays. The task itself decodes text.
    return torch.from_numpy(array.copy()) if array.dtype.kind in NUMBERS else array


def _to_arrays(value: Any, method: str) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return (value.float() if value.is_floating_point() and value.dtype.itemsize < 4 else value).numpy()
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if isinstance(value, Mapping):
        return {name: _to_arrays(part, method) for name, part in value.items()}
    raise ValueError(
        f"{method} must return a tensor, an array or a dict of them, but got {type(value).__name__}. "
        "Give several of them names, in a dict."
    )
