"""The gradient of a loss on one micro-batch. Computing it does not change the trial."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from searchlight.trainables.context import rng
from searchlight.trainables.isolation.determinism import exact_arithmetic
from searchlight.trainables.precision import Precision, autocast
from searchlight.trainables.preflight.observation import ObservedTrial
from searchlight.trainables.task import Task
from searchlight.trainables.update.batches import to_device
from searchlight.trainables.update.buffers import Buffers
from searchlight.trainables.update.parameters import get_parameters

Loss = Callable[[Any], Any]
PROBE = 7  # what random numbers are for, beside build and epochs
DROPOUTS = {
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
    "feature_dropout",
}
DRAWS = {
    "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "normal", "normal_", "uniform_", "random_",
    "exponential_", "log_normal_", "multinomial", "bernoulli", "bernoulli_", "poisson",
}  # fmt: skip


@dataclass(frozen=True)
class Gradient:
    """The loss of a micro-batch, its weight, and the gradient of each parameter, 0 where a parameter has none."""

    loss: float
    weight: float
    parts: Sequence[Tensor]

    @property
    def norm(self) -> float:
        return math.sqrt(max(0.0, dot(self.parts, self.parts)))


def dot(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    """Return the scalar product of two gradients, in fp64."""
    return sum(float((a.double() * b.double()).sum()) for a, b in zip(first, second, strict=True))


def combine(terms: Sequence[tuple[float, Sequence[Tensor]]]) -> list[Tensor]:
    """Return the sum of gradients, each multiplied by its factor, in fp64."""
    total = [torch.zeros_like(part, dtype=torch.float64) for part in terms[0][1]]
    for factor, parts in terms:
        for part_sum, part in zip(total, parts, strict=True):
            part_sum.add_(part.double(), alpha=factor)
    return total


class Prober:
    """Computes gradients of a trial's losses.

    Args:
        trial: Whose modules are used as they are now. Its buffers and random numbers are as before after each call.
    """

    def __init__(self, trial: ObservedTrial) -> None:
        self.task = trial.task
        self._buffers = Buffers(self.task.modules)

    def parameters(self, update: str) -> list[Tensor]:
        """Return the parameters that `update` trains."""
        optimizers = [self.task.optimizers[key] for key in self.task.updates[update]]
        return [p for optimizer in optimizers for p in get_parameters(optimizer) if p.requires_grad]

    def compute(
        self,
        update: str,
        loss: Loss,
        batch: Any,
        seed: int = 0,
        precision: Precision = Precision.FP32,
        scale: float = 1.0,
    ) -> Gradient:
        """Return the gradient of `loss` on `batch`.

        Args:
            scale: The loss is multiplied by it, and the gradient divided.

        Raises:
            Exception: What the loss raises.
        """
        parameters = self.parameters(update)
        with self.isolated(seed):
            value, weight = self.forward(loss, batch, precision)
            grads = torch.autograd.grad(value.reshape(()) * scale, parameters, allow_unused=True)
        parts = [
            torch.zeros_like(p) if g is None else (g.to_dense() if g.is_sparse else g) / scale
            for p, g in zip(parameters, grads, strict=True)
        ]
        return Gradient(float(value.detach()), float(weight), parts)

    def forward(self, loss: Loss, batch: Any, precision: Precision = Precision.FP32) -> tuple[Tensor, Any]:
        """Return the result of `loss` for `batch` under autocast."""
        device = self.task.context.device
        moved = to_device(batch, device, any(p.dtype == torch.float64 for p in self.all_parameters()))
        with autocast(precision, device):
            value, weight = loss(moved)
        return value, weight

    def all_parameters(self) -> Iterator[Tensor]:
        """Yield the parameters of all modules."""
        return (p for module in self.task.modules.values() for p in module.parameters())

    @contextmanager
    def isolated(self, seed: int) -> Iterator[None]:
        """Seed the random numbers inside the context. Restore buffers, logged terms and random states."""
        task = self.task
        before, noting, noted = self._buffers.copy(), dict(task.noting), dict(task.noted)
        try:
            device = task.context.device
            with exact_arithmetic(device), rng.isolated(task.context.generator, device, PROBE, seed):
                yield
        finally:
            self._buffers.restore(before)
            task.noting, task.noted = noting, noted
            torch.clear_autocast_cache()


@contextmanager
def changed_config(task: Task[Any], **changes: Any) -> Iterator[None]:
    """Change fields of the task's config inside the context. Restore them afterwards."""
    before = task.config
    task.config = before.model_copy(update=changes)
    try:
        yield
    finally:
        task.config = before


@contextmanager
def evaluation_mode(modules: Mapping[str, torch.nn.Module]) -> Iterator[None]:
    """Set evaluation mode inside the context, in which samples do not depend on dropout or on each other."""
    modes = [(part, part.training) for module in modules.values() for part in module.modules()]
    for part, _ in modes:
        part.training = False
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def measure_saved(action: Callable[[], object]) -> dict[int, int]:
    """Return the bytes of each storage, by its address, that the forward passes of `action` keep for backward."""
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        action()
    return storages


class ConstantDraws(TorchFunctionMode):
    """Replaces the random numbers of torch by constants, so that a sample has the same in each micro-batch."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in DROPOUTS:
            return args[0]
        result = func(*args, **(kwargs or {}))
        if name == "randperm":
            return result.sort().values
        if name in DRAWS:
            result.fill_(1 if name.startswith("bernoulli") else 0.5 if result.is_floating_point() else 0)
        return result
