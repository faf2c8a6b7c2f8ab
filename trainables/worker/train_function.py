"""A Ray Train function as a trial, in workers that keep it waiting between two segments."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from searchlight.trainables.context import Context, rng
from searchlight.trainables.isolation.process import ProcessSnapshot
from searchlight.trainables.preflight.function_audit import watch_steps
from searchlight.trainables.registry import describe_missing_value, load_class
from searchlight.trainables.worker.messages import (
    Migration,
    SegmentAssignment,
    SegmentEnd,
    WorkerReport,
    WorkerSettings,
)
from searchlight.trainables.worker.session_runner import SessionRunner


class FunctionRunner(SessionRunner):
    """Runs segments of a function's trials on one rank."""

    context: Context

    def __init__(self, settings: WorkerSettings, context: Context, *arguments: Any, **options: Any) -> None:
        super().__init__(settings, context, *arguments, **options)
        self._errors: set[tuple[str, str]] = set()  # that were raised in a process which had run no other trial
        self.watch_steps: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext

    def _keep_process(self) -> ProcessSnapshot:
        return ProcessSnapshot(self.task)

    def _run_segment(self, segment: SegmentAssignment) -> Iterator[WorkerReport]:
        is_used = self._trials > 0
        has_reported = self.held == (segment.trial, segment.epoch)
        for report in super()._run_segment(segment):
            if isinstance(report, SegmentEnd) and report.traceback and self.context.world_size == 1:
                error = (report.reason.partition(":")[0], report.location)
                if not is_used:
                    self._errors.add(error)
                elif not has_reported and error not in self._errors:
                    # Some libraries, e.g. Accelerate, refuse to be set up twice in a process.
                    yield Migration(f"it failed in a used worker ({report.reason})", report.notes)
                    return
            has_reported = True
            yield report

    def _build_failure(self, error: BaseException) -> SegmentEnd | Migration:
        end = super()._build_failure(error)
        remedy = describe_missing_value(error, self._session.segment.config) if self._session else ""
        return replace(end, reason=end.reason + remedy)

    def _load_function(self) -> Any:
        return load_class(self.task)

    def _prepare_call(self, config: dict[str, Any]) -> AbstractContextManager[object]:
        device = self.context.device
        if device.type == "cuda":
            torch.cuda.set_device(device)  # each thread has a current device of its own
        # The same on all ranks and at each start: a random split of the data must stay the same.
        rng.seed(self.context.generator, 0, config["seed"], 0)
        return self.watch_steps()

    def _release(self) -> None:
        self.watch_steps = contextlib.nullcontext
        super()._release()

    def _audit(self) -> None:
        """Watch the first steps of the next trial: they need no audit of their own, and no rank waits for another."""
        super()._audit()
        if self.context.rank == 0:
            self.watch_steps = partial(watch_steps, self.on_audit, str(self.context.device))
