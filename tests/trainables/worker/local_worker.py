"""Run segments of trials as a worker of a gang does, in the process of a test and without Ray."""

import math
import threading
from typing import Any

from searchlight.trainables.context import Context
from searchlight.trainables.filesystem.paths import StoragePath
from searchlight.trainables.worker.messages import EpochReport, SegmentAssignment, WorkerSettings
from searchlight.trainables.worker.trial_runner import AUTOSAVE_S, TrialRunner
from tests.trainables.toy_models import Regression, timeless
from tests.trainables.training.trials import make_trial, run_epochs

TASK = "tests.trainables.toy_models:Regression"
# Everything that has state at once, and three windows per epoch.
CONFIG = {"dropout": 0.3, "accumulation": 2, "ema_decay": 0.9, "precision": "fp16", "epochs": 4}


class AfterWindows(threading.Event):
    """Is set once as many windows were trained: a worker asks before the first one and after each."""

    def __init__(self, left: float = math.inf) -> None:
        super().__init__()
        self.left = left

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0


def stretch_in(
    folder: StoragePath, trial: int = 0, epoch: int = 0, until: int = 2, start: Any = None, attempt: str = "a",
    **settings: Any,
) -> SegmentAssignment:  # fmt: skip
    """A segment of a trial that writes into `folder`. `start` is a checkpoint, or several of which one is good."""
    checkpoints = start if isinstance(start, tuple) else (start,)
    where = str(folder / f"trial-{trial}")
    return SegmentAssignment(trial, {**CONFIG, **settings}, epoch, until, where, attempt, checkpoints)


def workers(
    stopping: threading.Event | None = None, task: str = TASK, rank: int = 0, world_size: int = 1,
    autosave_s: float = AUTOSAVE_S, **options: Any,
) -> TrialRunner:  # fmt: skip
    context = Context(rank=rank, world_size=world_size)
    return TrialRunner(WorkerSettings(task, **options), context, stopping or threading.Event(), autosave_s)


def metrics(reports: list[EpochReport]) -> list[dict[str, float]]:
    return [timeless(report.metrics) for report in reports]


def straight(epochs: int, task: type[Any] = Regression, **settings: Any) -> list[dict[str, float]]:
    """The reports of the same trial in a plain loop."""
    return run_epochs(make_trial(task, **{**CONFIG, **settings}), epochs)
