"""Metrics of the windows of an epoch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from searchlight.trainables.task import Task
from searchlight.trainables.update import UpdateReport


@dataclass
class EpochTotals:
    """Sums over one updater's windows of an epoch.

    Attributes:
        skipped: The number of skipped windows.
        spoiled: The number of skipped windows that a lower loss scale cannot repair.
    """

    weight: float = 0.0
    applied: int = 0
    skipped: int = 0
    spoiled: int = 0
    applied_weight: float = 0.0
    losses: float = 0.0
    norms: float = 0.0

    def add(self, report: UpdateReport, has_loss_scale: bool = False) -> None:
        """Count a window. `has_loss_scale`: the updater lowers its loss scale after a skipped window."""
        self.weight += report.weight
        if report.outcome == "applied":
            self.applied += 1
            self.applied_weight += report.weight
            self.losses += report.loss * report.weight
            self.norms += report.grad_norm
        elif report.outcome == "skipped":
            self.skipped += 1
            self.spoiled += not has_loss_scale or not math.isfinite(report.loss)

    @property
    def loss(self) -> float:
        """The mean loss over the applied windows, NaN without one."""
        return self.losses / self.applied_weight if self.applied else math.nan

    @property
    def grad_norm(self) -> float:
        """The mean norm over the applied windows, NaN without one."""
        return self.norms / self.applied if self.applied else math.nan


def training_metrics(task: Task[Any], tallies: Mapping[str, EpochTotals], seconds: float) -> dict[str, float]:
    """Return means over the epoch and all ranks by name: those of each update, and of the task's terms.

    Args:
        tallies: The totals of each update by name. The first one counts the samples.
        seconds: The duration of the training.
    """
    task.keep_noted()
    metrics: dict[str, float] = {}
    for name, tally in tallies.items():
        prefix = get_metric_prefix(name)
        updater = task.updaters[name]
        metrics[f"{prefix}/loss"] = tally.loss
        metrics[f"{prefix}/grad_norm"] = tally.grad_norm
        metrics[f"{prefix}/updates"] = updater.steps
        metrics[f"amp/skipped{prefix.removeprefix('train')}"] = updater.skipped
        if updater.loss_scale is not None:
            metrics[f"amp/loss_scale{prefix.removeprefix('train')}"] = updater.loss_scale.value
    noted = {f"train/{term}": (float(total), float(weight)) for term, (total, weight) in task.noted.items()}
    metrics.update(task.context.weighted_means(noted))
    metrics["time/samples_per_s"] = next(iter(tallies.values())).weight / seconds
    return metrics


def get_metric_prefix(name: str) -> str:
    """Return the prefix of an update's metrics."""
    return "train" if name == "train" else f"train/{name}"
