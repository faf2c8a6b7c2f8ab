"""A worker of a gang in the process of a test, without Ray."""

import threading
from pathlib import Path
from typing import Any

from tests.trainables.toy_models import timeless
from trainables.context import Context
from trainables.worker.messages import EpochReport, SegmentAssignment, WorkerSettings
from trainables.worker.worker import TrialRunner

TASK = "tests.trainables.toy_models:Regression"
CONFIG = {"dropout": 0.3, "accumulation": 2, "ema_decay": 0.9, "precision": "fp16", "epochs": 4}


def stretch_in(
    folder: Path, trial: int = 0, epoch: int = 0, until: int = 2, start: Any = None, **settings: Any
) -> SegmentAssignment:
    """A segment of a trial that writes into `folder`."""
    return SegmentAssignment(trial, {**CONFIG, **settings}, epoch, until, str(folder / f"trial-{trial}"), "a", (start,))


def workers(stopping: threading.Event | None = None, task: str = TASK) -> TrialRunner:
    return TrialRunner(WorkerSettings(task), Context(), stopping or threading.Event())


def metrics(reports: list[EpochReport]) -> list[dict[str, float]]:
    return [timeless(report.metrics) for report in reports]
