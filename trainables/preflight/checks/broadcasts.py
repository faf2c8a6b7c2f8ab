"""The check that predictions and targets of a loss have one shape, so that none is compared with all others."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from searchlight.trainables.preflight.findings import Finding, Kind, declare_kinds, make_finding
from searchlight.trainables.preflight.observation import FIRST_WINDOWS, Check, ObservedTrial, find_running_line

COMPARISONS = {"sub", "rsub", "__sub__", "__rsub__", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}

declare_kinds(
    "Gradient flow",
    Kind("targets-broadcast", "warning", "Give predictions and targets one shape: squeeze(1), or unsqueeze(1)."),
)


class BroadcastRecorder(TorchFunctionMode):
    """Records the shapes of a prediction (n, 1) and targets (n,), or the reverse, by the line that compares them."""

    def __init__(self, shapes: dict[str, str]) -> None:
        super().__init__()
        self.shapes = shapes

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in COMPARISONS and len(args) > 1 and _compares_each_with_all(*args[:2]):
            count = max(args[0].shape)
            figure = f"{tuple(args[0].shape)} with {tuple(args[1].shape)} gives {(count, count)}"
            self.shapes.setdefault(find_running_line(), figure)
        return result


class Broadcasts(Check):
    """Looks at the comparisons in the losses of the first windows."""

    def __init__(self) -> None:
        self.shapes = dict[str, str]()

    def watch_loss(self, trial: ObservedTrial, update: str, batch: Any) -> AbstractContextManager[object]:
        return BroadcastRecorder(self.shapes) if trial.windows < FIRST_WINDOWS else nullcontext()

    def find(self, trial: ObservedTrial) -> Iterator[Finding]:
        for line, figure in self.shapes.items():
            yield make_finding("targets-broadcast", line, figure)


def _compares_each_with_all(first: Any, second: Any) -> bool:
    """Return whether predictions and targets have the shapes (n, 1) and (n,), so that their difference is (n, n)."""
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)) or first.requires_grad == second.requires_grad:
        return False  # two predictions are compared with each other on purpose
    row, column = sorted((first, second), key=lambda tensor: tensor.ndim)
    return row.ndim == 1 and len(row) > 1 and column.shape == (len(row), 1)
