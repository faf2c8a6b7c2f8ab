"""The session of a Ray Train function in a trial: its reports go to the search, which may end it at each report.

Ray's own `report` takes seconds and cannot stop a function, and its `get_checkpoint` returns what an earlier trial of
the same workers reported. Therefore, the functions of `ray.train` are replaced while a trial runs, and those of
`ray.tune` with them.
"""

import contextlib
import inspect
import logging
import math
import queue
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import ray
import ray.train

from searchlight.trainables.checkpoint import CheckpointError, directory
from searchlight.trainables.command.call import name_metrics
from searchlight.trainables.filesystem.paths import StoragePath, get_arrow_location, parse_path
from searchlight.trainables.filesystem.storage_errors import UnwritableError
from searchlight.trainables.flatten import flatten
from searchlight.trainables.ray_functions import call_function, set_ray_functions
from searchlight.trainables.training.resource_usage import ResourceUsage, aggregate_usage
from searchlight.trainables.worker.endings import build_interruption, build_unwritable
from searchlight.trainables.worker.messages import (
    Divergence,
    EpochReport,
    Migration,
    SegmentAssignment,
    SegmentEnd,
    WorkerReport,
)
from searchlight.trainables.worker.segment_runner import SegmentRunner

logger = logging.getLogger(__name__)
Prepare = Callable[[dict[str, Any]], AbstractContextManager[object]]


class TrialEnded(BaseException):
    """Unwinds the function of a trial that has ended. Not an Exception, so that the function does not handle it."""


@dataclass
class _Arrival:
    """What a rank sends to the others at a report, or at the end of the function."""

    returned: bool
    checkpoint: bool = False
    stop: bool = False
    leaving: str = ""
    seconds: float = 0.0
    files: dict[str, str] = field(default_factory=dict)  # this rank's part of the checkpoint; in a bucket with SHA-256
    metrics: dict[str, float] = field(default_factory=dict)
    usage: dict[str, float] = field(default_factory=dict)
    names: str = ""


class Session:
    """Replaces Ray's `ray.train` for one call of a function. Other attributes are Ray's own.

    A report is a barrier: all ranks see the same arrivals and therefore make the same decision.

    Args:
        rays: The functions that Ray Train set up in this worker.
        find_start: Returns the number of reports after which the trial continues without a checkpoint.
    """

    def __init__(
        self,
        segment: SegmentAssignment,
        runner: SegmentRunner,
        rays: Any,
        find_start: Callable[[SegmentAssignment], int] = lambda segment: 0,
    ) -> None:
        self.segment = segment
        self.runner = runner
        self.context = runner.context
        self.folder = parse_path(segment.folder)
        self.number = 0  # reports, including those before this call
        self.has_saved = False  # with the last report
        self.checkpoints: list[tuple[StoragePath, ray.train.ReportedCheckpoint]] = []
        self.thread: threading.Thread | None = None
        self._rays = rays
        self._find_start = find_start
        self._budget = segment.budget
        self._since = time.perf_counter()  # a report costs the time since the one before, or since the call
        self._ended: float | None = None  # when a program made the present report
        # A program has processes of its own, so that this one's usage says nothing about it.
        self._usage = None if self.context.device is None else ResourceUsage(self.context.device)
        self._reports: queue.SimpleQueue[WorkerReport | None] = queue.SimpleQueue()
        self._segments: queue.SimpleQueue[SegmentAssignment | None] = queue.SimpleQueue()
        self._end: WorkerReport | None = None
        self._error: BaseException | None = None
        self._has_returned = False
        self._source = "ray.train.report"  # of a report
        self._left_out: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rays, name)

    def start(self, function: Callable[..., Any], prepare: Prepare) -> None:
        """Call `function` in a new thread, where torch's modes have their defaults.

        Args:
            prepare: Prepares that thread for a trial with the given config, and returns the context of the call.
        """
        self._choose_checkpoint()
        self.thread = threading.Thread(
            target=self._call_function, args=(function, prepare), daemon=True, name="train-function"
        )
        set_ray_functions(self)  # until the next trial: calls of threads that this trial leaves running are refused
        self.thread.start()

    def proceed(self, segment: SegmentAssignment) -> None:
        """Let the function, which waits in a report, continue with `segment`."""
        self._segments.put(segment)

    def generate_reports(self) -> Iterator[WorkerReport]:
        """Yield the reports of a segment. The last one is `done`, and the function waits in it or has ended.

        Raises:
            Exception: The error that the function raised.
        """
        while (report := self._reports.get()) is not None:
            yield report
            if report.done:
                return
        self._join_function()
        error, self._error = self._error, None  # its traceback keeps the function's objects alive
        if self._end is None:
            assert error is not None
            raise error
        if error is not None:
            logger.warning("after its last report the function raised %r", error)
        yield self._end

    @property
    def is_complete(self) -> bool:
        """Whether the trial has ended with its last report, so that the function only finishes."""
        return self._end is not None

    def close(self) -> None:
        """End a function that waits in a report."""
        if self.thread is not None and self.thread.is_alive():
            self._segments.put(None)
            self._join_function()

    def _join_function(self) -> None:
        assert self.thread is not None
        self.thread.join()
        has_failed = self._error is not None or (isinstance(self._end, SegmentEnd) and self._end.outcome == "failed")
        # After a failure of this rank alone, another one may still write its part. The next start deletes it.
        if self.context.rank == 0 and not (has_failed and self.context.world_size > 1):
            directory.delete_staging(self.folder, self.segment.attempt)

    # What users call, as ray.train

    def report(
        self,
        metrics: Mapping[str, Any],
        checkpoint: Any = None,
        checkpoint_dir_name: str | None = None,
        checkpoint_upload_mode: Any = ray.train.CheckpointUploadMode.SYNC,
        delete_local_checkpoint_after_upload: bool | None = None,
        checkpoint_upload_fn: Callable[..., Any] | None = None,
        validation: Any = False,
    ) -> None:
        """Report `metrics` of rank 0 to the search, and keep `checkpoint` of all ranks in one directory.

        Raises:
            TrialEnded: The trial ends here.
        """
        seconds = self._read_time() - self._since
        upload = checkpoint_upload_mode is ray.train.CheckpointUploadMode.NO_UPLOAD or checkpoint_upload_fn is not None
        self._check_call("a validation" if validation else "an upload of its own" if upload else "")
        self.number += 1
        path = self.folder / f"epoch-{self.number}-{self.segment.attempt}"
        stop, usage = self.runner.must_stop, self._usage.measure() if self._usage else {}
        own = _Arrival(False, checkpoint is not None, stop, self.runner.migrate_reason, seconds, usage=usage)
        with contextlib.ExitStack() as stack:  # keeps the source until it is uploaded
            source = self._add_checkpoint_part(checkpoint, path, bool(delete_local_checkpoint_after_upload), own, stack)
            if self.context.rank == 0:
                own.metrics, own.names = self._extract_numbers(metrics)
            arrivals = self._gather_arrivals(own)
            first = arrivals[0]
            numbers = aggregate_usage([arrival.usage for arrival in arrivals]) | first.metrics
            costs = {"gpu_seconds": first.seconds * self.runner.settings.gpus}
            self._check_objectives(numbers, first.names, costs)
            saved = any(arrival.checkpoint for arrival in arrivals)
            if saved:
                self._publish_checkpoint(path, source, [arrival.files for arrival in arrivals], first.metrics)
        self.has_saved = saved
        self._put(EpochReport(self.number, numbers, str(path) if saved else None, costs), arrivals)
        self._begin_usage()
        self._since = self._read_time()

    def _begin_usage(self) -> None:
        if self._usage is not None:
            self._usage.begin()

    def report_program(self, metrics: Mapping[str, float], ended: float | None) -> None:
        """Report what a program has, which trains on while its function waits: the time of its next report has begun.

        Args:
            ended: When the program made the report, by `time.perf_counter`, or None for now.

        Raises:
            TrialEnded: The trial ends here.
        """
        self._ended = ended
        self.report(metrics)

    def _read_time(self) -> float:
        return time.perf_counter() if self._ended is None else self._ended

    def _check_call(self, refused: str) -> None:
        """End the trial or raise if `report` must not be called, or not with the `refused` argument."""
        if threading.current_thread() is not self.thread:
            raise RuntimeError("ray.train.report must be called in the thread of the training function.")
        if self._end is not None:  # the function caught TrialEnded, or reports in a finally block
            raise TrialEnded
        if refused:
            self._fail(f"ray.train.report must leave its checkpoint to the search, but got {refused}")

    def _put(self, report: EpochReport, arrivals: Sequence[_Arrival]) -> None:
        """Send `report`. Wait if it ends a segment, and end the function if its trial does not continue here."""
        if self._budget is not None:
            self._budget = self._budget.add_epoch(report.epoch, report.costs)
        ends = report.epoch >= self.segment.until or (self._budget is not None and self._budget.is_spent)
        if ends and not self.segment.is_last and not self._has_returned:
            self._reports.put(replace(report, done=True))
            return self._wait_for_segment()
        self._reports.put(report)
        if ends or self._has_returned:  # the function may still test or save its model, but reports no more
            self._end = SegmentEnd("completed", "")
        elif any(arrival.stop for arrival in arrivals):
            end = build_interruption([(arrival.stop, arrival.leaving) for arrival in arrivals])
            if report.checkpoint or not isinstance(end, Migration):  # without a checkpoint, all work would be repeated
                self.end_trial(end)

    def _wait_for_segment(self) -> None:
        segment = self._segments.get()
        if segment is None:
            self.end_trial(SegmentEnd("interrupted", "its trial does not continue in this worker"))
        self.segment, self._budget = segment, segment.budget

    def get_checkpoint(self) -> Any:
        """Return the last checkpoint of this trial, or None."""
        return self.checkpoints[-1][1].checkpoint if self.checkpoints else None

    def get_all_reported_checkpoints(self, *_: Any, **__: Any) -> list[Any]:
        """Return the checkpoints that exist of this segment and of its start, the oldest first."""
        return [reported for path, reported in self.checkpoints if path.exists()]

    def get_dataset_shard(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("ray.train.get_dataset_shard must have a data set, but a search passes none. Make it here.")

    # How a segment begins and ends

    def _choose_checkpoint(self) -> None:
        """Start from the newest checkpoint that can be read. Rank 0 chooses it."""
        chosen: tuple[str, dict[str, Any]] | None = None
        if self.context.rank == 0:
            directory.delete_staging(self.folder, self.segment.attempt)
            chosen = self._find_newest_checkpoint()
        chosen = self.context.broadcast_object(chosen)
        if chosen is not None:
            path, chosen_report = chosen
            self.number = chosen_report["epoch"]
            self._record_checkpoint(parse_path(path), chosen_report["metrics"])
        else:
            self.number = self._find_start(self.segment)
        if self.number < self.segment.epoch:
            logger.info(
                "without a checkpoint of report %d it continues after report %d: repeated reports are dropped",
                self.segment.epoch,
                self.number,
            )

    def _find_newest_checkpoint(self) -> tuple[str, dict[str, Any]] | None:
        for name in self.segment.checkpoints:
            if name is not None:
                try:
                    return name, directory.read(parse_path(name))
                except CheckpointError as error:
                    logger.warning("%s The one before it is used.", error)
        return None

    def _call_function(self, function: Callable[..., Any], prepare: Prepare) -> None:
        try:
            context = prepare(self.segment.config)
            self._begin_usage()
            self._since = time.perf_counter()
            result = None
            with context, _successful_exits():
                result = call_function(function, _build_arguments(function, self.segment.config), self._report_yielded)
            if self._end is None:
                self._finish_function(result)
        except TrialEnded:
            pass
        except Exception as error:  # generate_reports() raises it
            self._error = error
        except BaseException as error:  # exit() ends a trial, not its worker
            self._error = RuntimeError(f"the function raised {type(error).__name__}: {error}")
            self._error.__cause__ = error
        finally:
            self._reports.put(None)

    def _finish_function(self, result: Any) -> None:
        """End the trial of a function that has returned, possibly before its last epoch.

        One that has reported nothing reports what it returned.
        """
        self._gather_arrivals(_Arrival(True))
        self._has_returned, self._source = True, "what the function returns"
        if max(self.number, self.segment.epoch) == 0:
            metrics = {} if result is None else name_metrics(result, self._objectives)
            if not self.context.broadcast_object(bool(self._extract_numbers(metrics)[0])):
                rule = "the function must call ray.train.report, or return a number for each objective or a dict"
                self._fail(f"{rule}, but returned {result!r:.100}")
            self.report(metrics)
        self.end_trial(SegmentEnd("completed", ""))

    def _report_yielded(self, metrics: Any) -> None:
        self._source = "what the function yields"
        self.report(name_metrics(metrics, self._objectives))

    def _gather_arrivals(self, own: _Arrival) -> list[_Arrival]:
        """Wait for all ranks, and return the arrival of each."""
        arrivals = self.context.gather(own)
        gone = [str(rank) for rank, arrival in enumerate(arrivals) if arrival.returned]
        if 0 < len(gone) < len(arrivals):
            self._fail(
                f"all workers must call ray.train.report equally often, but rank {', '.join(gone)} returned early"
            )
        return arrivals

    def _check_objectives(self, numbers: dict[str, float], names: str, costs: dict[str, float]) -> None:
        """End the trial if an objective is missing or not finite."""
        for objective in self._objectives:
            if objective not in numbers:
                which = "the objective" if len(self._objectives) == 1 else "an objective or the metric of a constraint"
                self._fail(f"{self._source} must have a number {objective!r}, {which}, but got {names}")
        for objective in self._objectives:
            if not math.isfinite(value := numbers[objective]):
                reason = f"{objective} is {value} in report {self.number}"
                last = EpochReport(self.number, numbers, None, costs)
                divergence = Divergence("objective", self.number)
                self.end_trial(SegmentEnd("diverged", reason, divergence=divergence, last=last))

    @property
    def _objectives(self) -> tuple[str, ...]:
        return (self.runner.settings.objective, *self.runner.settings.others)

    def _fail(self, reason: str) -> NoReturn:
        self.end_trial(SegmentEnd("failed", reason))

    def end_trial(self, report: WorkerReport) -> NoReturn:
        """End the trial with its last report, unless it has ended before.

        Raises:
            TrialEnded: Always.
        """
        self._end = self._end or report
        raise TrialEnded

    def _add_checkpoint_part(
        self, checkpoint: Any, path: StoragePath, move: bool, own: _Arrival, stack: contextlib.ExitStack
    ) -> Path | None:
        """Add this rank's part of a checkpoint and return its path. With `move`, remove it when `stack` ends."""
        if checkpoint is None:
            return None
        try:
            source = Path(stack.enter_context(checkpoint.as_directory()))
            own.files = directory.add_part(source, path)
            if move:
                stack.callback(shutil.rmtree, source)
            return source
        except UnwritableError as error:  # ends the trial, since the function might catch the error
            self.end_trial(build_unwritable(error, self.context))
        except OSError as error:
            self._fail(f"its checkpoint must be readable and its storage have room, but got {error}")

    def _publish_checkpoint(
        self, path: StoragePath, source: Path | None, parts: Sequence[Mapping[str, str]], metrics: dict[str, float]
    ) -> None:
        metadata = {"epoch": self.number, "metrics": metrics}
        try:
            directory.publish_parts(source, path, parts, metadata, self.context)
        except UnwritableError as error:
            self.end_trial(build_unwritable(error, self.context))
        except OSError as error:
            self._fail(f"its storage must take a checkpoint, but got {error}")
        self.context.broadcast_object(None)  # now it is there for all ranks
        self._record_checkpoint(path, metrics)

    def _record_checkpoint(self, path: StoragePath, metrics: dict[str, float]) -> None:
        checkpoint = ray.train.Checkpoint(*get_arrow_location(path))
        status = ray.train.ReportedCheckpointStatus.COMMITTED
        self.checkpoints.append((path, ray.train.ReportedCheckpoint(checkpoint, metrics, status)))

    def _extract_numbers(self, metrics: Mapping[str, Any]) -> tuple[dict[str, float], str]:
        """Return the metrics that are numbers, nested ones as "val/loss", and a text that names all metrics."""
        flat = flatten(metrics, "/")
        numbers = {name: number for name, value in flat.items() if (number := _to_number(value)) is not None}
        others = {name: f"{name} ({type(value).__name__})" for name, value in flat.items() if name not in numbers}
        if new := {*others} - self._left_out:
            self._left_out |= new
            logger.info(
                "reported metrics must be numbers: %s left out", ", ".join(others[name] for name in sorted(new))
            )
        return numbers, ", ".join([*sorted(numbers), *sorted(others.values())]) or "nothing"


@contextlib.contextmanager
def _successful_exits() -> Iterator[None]:
    """Take `sys.exit(0)` as the return of a function. Scripts often end so."""
    try:
        yield
    except SystemExit as error:
        if error.code:
            raise


def _build_arguments(function: Callable[..., Any], config: dict[str, Any]) -> list[Any]:
    try:
        inspect.signature(function).bind(config)
    except TypeError:
        return []
    return [config]


def _to_number(value: Any) -> float | None:
    torch = sys.modules.get("torch")  # without it, no value is a tensor
    is_tensor = torch is not None and isinstance(value, torch.Tensor)
    if (is_tensor and value.numel() == 1) or (isinstance(value, np.ndarray) and value.size == 1):
        value = value.item()
    if isinstance(value, int | float | np.number | np.bool_):
        with contextlib.suppress(OverflowError, TypeError):  # a whole number beyond all floats, a complex one
            return float(value)
    return None
