"""What is reported of an epoch's training, before its evaluation."""

from collections.abc import Mapping
from typing import Any

from trainables.tally import Tally
from trainables.task import Task


def trained_metrics(task: Task[Any], tallies: Mapping[str, Tally], seconds: float) -> dict[str, float]:
    """Of each update, and what the task noted: means over the epoch and all ranks, by name.

    Args:
        task: That was trained.
        tallies: Of its updates, by their names; the first counts the samples.
        seconds: That the training took.
    """
    task.keep_noted()
    metrics: dict[str, float] = {}
    for name, tally in tallies.items():
        prefix = prefix_of(name)
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


def prefix_of(name: str) -> str:
    """What the metrics of an update begin with."""
    return "train" if name == "train" else f"train/{name}"
