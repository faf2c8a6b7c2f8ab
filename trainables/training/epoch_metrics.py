"""What the windows of an epoch come to."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainables.task import Task
from trainables.update import UpdateReport


@dataclass
class EpochTotals:
    """What one updater's windows of an epoch come to.

    Attributes:
        skipped: How many windows were skipped.
        spoiled: How many of them no lower loss scale can mend.
    """

    weight: float = 0.0
    applied: int = 0
    skipped: int = 0
    spoiled: int = 0
    applied_weight: float = 0.0
    losses: float = 0.0
    norms: float = 0.0

    def add(self, report: UpdateReport, has_loss_scale: bool = False) -> None:
        """Count a window. An updater that `has_loss_scale` lowers it after a window that is skipped."""
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
    """Of each update, and what the task noted: means over the epoch and all ranks, by name.

    Args:
        task: That was trained.
        tallies: Of its updates, by their names; the first counts the samples.
        seconds: That the training took.
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
    """What the metrics of an update begin with."""
    return "train" if name == "train" else f"train/{name}"
