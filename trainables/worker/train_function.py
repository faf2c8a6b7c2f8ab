"""A plain Ray Train function as a trial: its reports go to the search, which may end it at each of them.

Ray's own `report` takes seconds and cannot stop a function, and its `get_checkpoint` returns what an earlier trial of
the same workers reported. So what `ray.train` calls in a worker is replaced while a trial runs.
"""

import contextlib
import functools
import inspect
import logging
import math
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import ray
import ray.train
import torch

try:
    from ray.train.v2._internal.execution.train_fn_utils import get_train_fn_utils, set_train_fn_utils
except ImportError as error:  # not public: another version of Ray may have moved it
    raise ImportError(f"a Ray Train function must run on ray 2.60, but got {ray.__version__}: {error}.") from error

from trainables.checkpoint import CheckpointError, directory
from trainables.context import Context, rng
from trainables.filesystem.paths import RemotePath, StoragePath, parse_path, with_suffix_added
from trainables.registry import load_class
from trainables.training.resource_usage import ResourceUsage, aggregate_usage
from trainables.worker.segment_budget import SegmentBudget
from trainables.worker.worker import TrialRunner, interruption_report, work

logger = logging.getLogger(__name__)

Report = dict[str, Any]
STAGING = ".tmp"  # where a checkpoint is put together on a disk


def work_on_function(settings: dict[str, Any]) -> None:
    """As `worker.work`, where `task` is a function as "module:function" and `objective` a metric that it reports."""
    work(settings, functools.partial(FunctionRunner, settings["objective"]))


class FunctionRunner(TrialRunner):
    """Runs stretches of a function's trials on one rank. Nothing of them is kept in memory: a trial goes on by
    calling the function again, with its last checkpoint."""

    def __init__(self, objective: str, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.objective = objective
        self._rays = get_train_fn_utils()
        self._session: Session | None = None

    @property
    def thread(self) -> int:
        own = self._session.thread.ident if self._session and self._session.thread else None
        return own or super().thread

    def _generate_reports(self, stretch: dict[str, Any]) -> Iterator[Report]:
        function: Any = load_class(self.task)
        arguments = stretch, self.objective, self.context, self.stopping, self._rays
        self._session = Session(*arguments, self.gpus, self.others, lambda: self.migrate_reason)
        try:
            for report in self._session.run(function):
                self.progress += 1
                yield report
        finally:
            self._session = None


class TrialEnded(BaseException):
    """Unwinds the function of a trial that has ended. No Exception, so that the function's own handlers let it pass."""


@dataclass
class _Arrival:
    """What a rank tells the others when it comes to a report or to the end of the function."""

    returned: bool
    checkpoint: bool = False
    stop: bool = False
    leaving: str = ""
    seconds: float = 0.0
    files: dict[str, str] = field(default_factory=dict)  # of its part of a checkpoint for a bucket, with their SHA-256
    metrics: dict[str, float] = field(default_factory=dict)
    usage: dict[str, float] = field(default_factory=dict)
    names: str = ""


class Session:
    """What `ray.train` is to the function of one stretch. What is not here is Ray's own.

    A report is a barrier: all ranks see the same arrivals, and so come to the same decision.

    Args:
        stretch: Which trial, from which checkpoint, to which report.
        objective, others: The metrics that each report must have.
        context: Of this rank.
        stopping: Ends the trial at its next report, once it is set on any rank.
        rays: What Ray Train itself set up in this worker.
        gpus: As those of `Workers`. What a report costs is the time since the one before, or since the call.
        leaving: Why the trial is to go on in another process, or "". It does at a report with a checkpoint.
    """

    def __init__(
        self,
        stretch: dict[str, Any],
        objective: str,
        context: Context,
        stopping: threading.Event,
        rays: Any,
        gpus: float = 1.0,
        others: Sequence[str] = (),
        leaving: Callable[[], str] = str,
    ) -> None:
        self.stretch = stretch
        self.objectives = (objective, *others)
        self.context = context
        self.stopping = stopping
        self.folder = parse_path(stretch["folder"])
        self.number = 0  # of reports, those of earlier stretches included
        self.checkpoints: list[tuple[StoragePath, ray.train.ReportedCheckpoint]] = []
        self._rays = rays
        self._gpus = gpus
        self._leaving = leaving
        self._allowance = SegmentBudget(stretch.get("allowance"))
        self._since = time.perf_counter()
        self._usage = ResourceUsage(context.device)
        self._reports: queue.SimpleQueue[Report | None] = queue.SimpleQueue()
        self._end: Report | None = None
        self._error: BaseException | None = None
        self.thread: threading.Thread | None = None
        self._left_out: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rays, name)

    def run(self, function: Callable[..., Any]) -> Iterator[Report]:
        """Call `function`; yields its reports, the last of which is `done`.

        Raises:
            Exception: What the function raised.
        """
        self._start()
        # A thread of its own: autograd's modes and the like are those that a thread starts with.
        self.thread = threading.Thread(target=self._call_function, args=(function,), daemon=True, name="train-function")
        set_train_fn_utils(self)  # until the next trial: a thread that this one leaves behind is refused here
        self.thread.start()
        while (report := self._reports.get()) is not None:
            yield report
        self.thread.join()
        if self.context.rank == 0:
            self._delete_staging()
        error, self._error = self._error, None  # its traceback holds on to all that the function had
        if self._end is None:
            assert error is not None
            raise error
        if error is not None:
            logger.warning("after its last report the function raised %r", error)
        yield self._end

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
        """Tell the search of `metrics`, those of rank 0, and keep `checkpoint`, all ranks' in one directory.

        Raises:
            Ended: The trial ends here.
        """
        seconds = time.perf_counter() - self._since
        if threading.current_thread() is not self.thread:
            raise RuntimeError("ray.train.report must be called in the thread of the training function.")
        if self._end is not None:  # the function caught Ended, or reports on its way out
            raise TrialEnded
        upload = checkpoint_upload_mode is ray.train.CheckpointUploadMode.NO_UPLOAD or checkpoint_upload_fn is not None
        if upload or validation:
            what = "a validation" if validation else "an upload of its own"
            self._fail(f"ray.train.report must leave its checkpoint to the search, but got {what}")
        self.number += 1
        path = self.folder / f"epoch-{self.number}-{self.stretch['attempt']}"
        stop, usage = self.stopping.is_set(), self._usage.measure()
        own = _Arrival(False, checkpoint is not None, stop, self._leaving(), seconds, usage=usage)
        with contextlib.ExitStack() as stack:  # until a bucket has what this rank adds
            source = self._add_checkpoint_part(checkpoint, path, bool(delete_local_checkpoint_after_upload), own, stack)
            if self.context.rank == 0:
                own.metrics, own.names = self._extract_numbers(metrics)
            arrivals = self._gather_arrivals(own)
            own_numbers = arrivals[0].metrics
            numbers = aggregate_usage([arrival.usage for arrival in arrivals]) | own_numbers
            costs = {"gpu_seconds": arrivals[0].seconds * self._gpus}
            self._check_objectives(numbers, arrivals[0].names, costs)
            saved = any(arrival.checkpoint for arrival in arrivals)
            if saved:
                self._publish_checkpoint(path, source, [arrival.files for arrival in arrivals], own_numbers)
        report = {"epoch": self.number, "metrics": numbers, "checkpoint": str(path) if saved else None}
        report |= self._allowance.add_epoch(self.number, costs)
        if self.number >= self.stretch["until"] or self._allowance.is_spent:
            self._end_trial({**report, "done": True})
        self._reports.put({**report, "done": False})
        if any(arrival.stop for arrival in arrivals):
            end = interruption_report([(arrival.stop, arrival.leaving) for arrival in arrivals])
            if saved or "leaving" not in end:  # without a checkpoint all would be done again
                self._end_trial(end)
        self._usage.begin()
        self._since = time.perf_counter()

    def get_checkpoint(self) -> Any:
        """The last checkpoint of this trial, or None."""
        return self.checkpoints[-1][1].checkpoint if self.checkpoints else None

    def get_all_reported_checkpoints(self, *_: Any, **__: Any) -> list[Any]:
        """The checkpoints of this stretch that still exist, and the one that it started from, oldest first."""
        return [reported for path, reported in self.checkpoints if path.exists()]

    def get_dataset_shard(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("ray.train.get_dataset_shard must have a data set, but a search passes none. Make it here.")

    # How a stretch begins and ends

    def _start(self) -> None:
        """Take the newest checkpoint that can be read; rank 0 chooses."""
        chosen: tuple[str, dict[str, Any]] | None = None
        if self.context.rank == 0:
            self._delete_staging()
            chosen = self._find_newest_checkpoint()
        chosen = self.context.broadcast_object(chosen)
        if chosen is not None:
            path, about = chosen
            self.number = about["epoch"]
            self._record_checkpoint(parse_path(path), about["metrics"])
        if self.number < self.stretch["epoch"]:
            logger.info(
                "without a checkpoint of report %d it goes on after report %d: what it repeats is dropped",
                self.stretch["epoch"],
                self.number,
            )

    def _delete_staging(self) -> None:
        """Remove what was to become a checkpoint and did not, here or in a worker that was lost.

        In a bucket that is under the name of the checkpoint, and goes when its trial has ended.
        """
        if not isinstance(self.folder, RemotePath):
            for left in self.folder.glob(f"epoch-*-{self.stretch['attempt']}{STAGING}"):
                shutil.rmtree(left, ignore_errors=True)

    def _find_newest_checkpoint(self) -> tuple[str, dict[str, Any]] | None:
        for name in [self.stretch["checkpoint"], *self.stretch["earlier"]]:
            if name is not None:
                try:
                    return name, directory.read(parse_path(name))
                except CheckpointError as error:
                    logger.warning("%s The one before it is used.", error)
        return None

    def _call_function(self, function: Callable[..., Any]) -> None:
        try:
            if self.context.device.type == "cuda":
                torch.cuda.set_device(self.context.device)  # each thread has a current device of its own
            # The same on all ranks, as a split of the data that is drawn at random must be.
            rng.seed(self.context.generator, 0, self.stretch["config"]["seed"], self.number)
            self._usage.begin()
            self._since = time.perf_counter()
            function(*_build_arguments(function, self.stretch["config"]))
            if self._end is None:
                self._finish_function()
        except TrialEnded:
            pass
        except Exception as error:  # run() raises it
            self._error = error
        except BaseException as error:  # sys.exit() ends a trial, not its worker
            self._error = RuntimeError(f"the function raised {type(error).__name__}: {error}")
            self._error.__cause__ = error
        finally:
            self._reports.put(None)

    def _finish_function(self) -> None:
        """The function is done with its trial, earlier perhaps than the search would have stopped it."""
        self._gather_arrivals(_Arrival(True))
        if max(self.number, self.stretch["epoch"]) == 0:
            self._fail("the function must call ray.train.report, but returned without")
        self._end_trial({"done": True, "outcome": "completed", "reason": ""})

    def _gather_arrivals(self, own: _Arrival) -> list[_Arrival]:
        """Wait for all ranks; what each of them came with."""
        arrivals = self.context.gather(own)
        gone = [str(rank) for rank, arrival in enumerate(arrivals) if arrival.returned]
        if 0 < len(gone) < len(arrivals):
            self._fail(
                f"all workers must call ray.train.report equally often, but rank {', '.join(gone)} returned early"
            )
        return arrivals

    def _check_objectives(self, numbers: dict[str, float], names: str, costs: dict[str, float]) -> None:
        """End the trial if an objective is missing or not finite."""
        for objective in self.objectives:
            if objective not in numbers:
                which = "the objective" if len(self.objectives) == 1 else "an objective"
                self._fail(f"ray.train.report must have a number {objective!r}, {which}, but got {names}")
        for objective in self.objectives:
            if not math.isfinite(value := numbers[objective]):
                reason = f"{objective} is {value} in report {self.number}"
                last = {"epoch": self.number, "metrics": numbers, "checkpoint": None, **costs}
                divergence = {"kind": "objective", "epoch": self.number}
                end = {"done": True, "outcome": "diverged", "reason": reason, "divergence": divergence, "last": last}
                self._end_trial(end)

    def _fail(self, reason: str) -> NoReturn:
        self._end_trial({"done": True, "outcome": "failed", "reason": reason})

    def _end_trial(self, report: Report) -> NoReturn:
        self._end = report
        raise TrialEnded

    def _add_checkpoint_part(
        self, checkpoint: Any, path: StoragePath, move: bool, own: _Arrival, stack: contextlib.ExitStack
    ) -> Path | None:
        """Take this rank's part of a checkpoint, which stays where it is until `stack` ends, if it is for a bucket."""
        if checkpoint is None:
            return None
        try:
            source = Path(stack.enter_context(checkpoint.as_directory()))
            if isinstance(path, RemotePath):
                own.files = directory.compute_digests(source)
            else:
                directory.add(source, with_suffix_added(path, STAGING))
            if move and isinstance(path, RemotePath):
                stack.callback(shutil.rmtree, source)
            elif move:
                shutil.rmtree(source)
            return source
        except OSError as error:  # the function's own handlers might go on without it
            self._fail(f"its checkpoint must be readable and its storage have room, but got {error}")

    def _publish_checkpoint(
        self, path: StoragePath, source: Path | None, parts: Sequence[Mapping[str, str]], metrics: dict[str, float]
    ) -> None:
        about = {"epoch": self.number, "metrics": metrics}
        try:
            if isinstance(path, RemotePath):
                directory.put(source, path, parts, about, self.context)
            elif self.context.rank == 0:
                directory.publish(with_suffix_added(path, STAGING), path, about)
        except OSError as error:
            what = "bucket must take" if isinstance(path, RemotePath) else "storage must have room for"
            self._fail(f"its {what} a checkpoint, but got {error}")
        self.context.broadcast_object(None)  # now it is there for all ranks
        self._record_checkpoint(path, metrics)

    def _record_checkpoint(self, path: StoragePath, metrics: dict[str, float]) -> None:
        if isinstance(path, RemotePath):
            checkpoint = ray.train.Checkpoint(path.key, path.filesystem)
        else:
            checkpoint = ray.train.Checkpoint.from_directory(path)
        status = ray.train.ReportedCheckpointStatus.COMMITTED
        self.checkpoints.append((path, ray.train.ReportedCheckpoint(checkpoint, metrics, status)))

    def _extract_numbers(self, metrics: Mapping[str, Any]) -> tuple[dict[str, float], str]:
        """The metrics that are numbers, nested ones as "val/loss", and how all of them are told."""
        flat = dict(_flatten_metrics(metrics))
        numbers = {name: number for name, value in flat.items() if (number := _to_number(value)) is not None}
        others = {name: f"{name} ({type(value).__name__})" for name, value in flat.items() if name not in numbers}
        if new := {*others} - self._left_out:
            self._left_out |= new
            logger.info(
                "what is reported must be numbers: %s left out", ", ".join(others[name] for name in sorted(new))
            )
        return numbers, ", ".join([*sorted(numbers), *sorted(others.values())]) or "nothing"


def _build_arguments(function: Callable[..., Any], config: dict[str, Any]) -> list[Any]:
    try:
        inspect.signature(function).bind(config)
    except TypeError:
        return []
    return [config]


def _flatten_metrics(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _flatten_metrics(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def _to_number(value: Any) -> float | None:
    if (isinstance(value, torch.Tensor) and value.numel() == 1) or (isinstance(value, np.ndarray) and value.size == 1):
        value = value.item()
    if isinstance(value, int | float | np.number | np.bool_):
        with contextlib.suppress(OverflowError, TypeError):  # a whole number beyond all floats, a complex one
            return float(value)
    return None
