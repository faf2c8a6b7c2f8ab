"""The function that every worker of a gang runs. The gang imports it, too, but no torch, which it does not need."""

import gc
from typing import Any

from searchlight.trainables.worker.messages import WorkerSettings


def work(config: dict[str, Any]) -> None:
    """Run the segments of a gang on this rank until the gang ends or replaces this process.

    Args:
        config: `registry`, the registry's actor; `gang`, the gang's name; and `worker`, the WorkerSettings.
    """
    gc.disable()  # libraries leave no garbage when they are imported, but a look at all of their objects takes long
    try:
        from searchlight.trainables.worker import worker

        runner_class = _load_runner_class(config["worker"])
    finally:
        gc.freeze()
        gc.enable()
    worker.work(config, runner_class)


def _load_runner_class(settings: WorkerSettings) -> type[Any]:
    """Return what runs a segment: the subclass of SegmentRunner for the kind of task."""
    if settings.command:
        from searchlight.trainables.worker.command_runner import CommandRunner

        return CommandRunner
    if settings.objective:
        from searchlight.trainables.worker.train_function import FunctionRunner

        return FunctionRunner
    from searchlight.trainables.worker.trial_runner import TrialRunner

    return TrialRunner
