"""Run trials in the process of a test, as a worker does."""

import threading
from pathlib import Path
from typing import Any

from searchlight.trainables.context import Context
from searchlight.trainables.worker.messages import EpochReport, SegmentAssignment, SegmentEnd, WorkerSettings
from searchlight.trainables.worker.trial_runner import TrialRunner


def worker_of(task: str, **limits: Any) -> TrialRunner:
    return TrialRunner(WorkerSettings(task, **limits), Context(), threading.Event())


def run_in(
    folder: Path, worker: TrialRunner, trial: int = 0, until: int = 1, **config: Any
) -> list[EpochReport | SegmentEnd]:
    """Return the reports of a segment, which is a whole trial of one epoch by default."""
    segment = SegmentAssignment(trial, {"epochs": until, **config}, 0, until, str(folder / f"trial-{trial}"), "a")
    return list(worker.run(segment))
