"""What an update is given, and the checks of it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau


class Scheduler(Protocol):
    """What an update needs of a learning-rate schedule: torch's schedulers have it."""

    def step(self) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


def check_loss(returned: Any) -> tuple[Tensor, Any]:
    """Return the mean loss and the weight that a loss `returned`.

    Raises:
        ValueError: They are something else.
    """
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], Tensor):
        return returned
    name = type(returned).__name__
    got = f"({', '.join(type(part).__name__ for part in returned)})" if isinstance(returned, tuple) else name
    raise ValueError(f"loss must return (mean loss, weight), a tensor and a number, but got {got}.")


def check_limits(
    limits: float | Mapping[str, float | None] | None, optimizers: Mapping[str, torch.optim.Optimizer]
) -> float | dict[str, float | None] | None:
    """Return the limits of the gradient's norm, of all `optimizers` together or by name.

    Raises:
        ValueError: One is no limit, or they do not name the optimizers.
    """
    if isinstance(limits, Mapping):
        if limits.keys() != optimizers.keys():
            raise ValueError(f"max_grad_norm must name each of {sorted(optimizers)}, but got {sorted(limits)}.")
        return {name: _check_limit(limit) for name, limit in limits.items()}
    return _check_limit(limits)


def _check_limit(limit: float | None) -> float | None:
    if limit is not None and not 0 < limit < math.inf:
        raise ValueError(f"max_grad_norm must be positive and finite or None, but got {limit}.")
    return limit


def check_schedulers(schedulers: Sequence[Scheduler]) -> tuple[Scheduler, ...]:
    """Return `schedulers` that step once per update.

    Raises:
        ValueError: One steps by a metric.
    """
    if any(isinstance(scheduler, ReduceLROnPlateau) for scheduler in schedulers):
        raise ValueError(
            "schedulers must step once per update, but got ReduceLROnPlateau. Step it with the metric after evaluation."
        )
    return tuple(schedulers)
