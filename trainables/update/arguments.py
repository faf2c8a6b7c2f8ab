"""Checks of the arguments of an update."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau


class Scheduler(Protocol):
    """The interface of learning-rate schedules in an update, which torch's schedulers have."""

    def step(self) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


def check_loss(returned: Any) -> tuple[Tensor, Any]:
    """Return the mean loss and the weight that a loss function `returned`.

    Raises:
        ValueError: `returned` is not a pair of a tensor and a weight.
    """
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], Tensor):
        return returned
    name = type(returned).__name__
    got = f"({', '.join(type(part).__name__ for part in returned)})" if isinstance(returned, tuple) else name
    raise ValueError(f"loss must return (mean loss, weight), a tensor and a number, but got {got}.")


def check_limits(
    limits: float | Mapping[str, float | None] | None, optimizers: Mapping[str, torch.optim.Optimizer]
) -> float | dict[str, float | None] | None:
    """Return the limits of the gradient norm, for all `optimizers` together or by name.

    Raises:
        ValueError: A limit is out of range, or the names are not those of the optimizers.
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
    """Return `schedulers` as a tuple, after a check that they step once per update.

    Raises:
        ValueError: A scheduler steps by a metric.
    """
    if any(isinstance(scheduler, ReduceLROnPlateau) for scheduler in schedulers):
        raise ValueError(
            "schedulers must step once per update, but got ReduceLROnPlateau. Step it with the metric after evaluation."
        )
    return tuple(schedulers)
