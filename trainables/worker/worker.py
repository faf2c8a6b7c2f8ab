"""The function that every TorchTrainer worker runs: one stretch of a trial after another, until there are none."""

import logging
import math
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from ray.train.constants import _get_ray_train_session_dir

from trainables import checkpoint
from trainables.checkpoint.selection import find_resume_checkpoint
from trainables.context import Context
from trainables.filesystem.paths import cached_on_node, parse_path
from trainables.isolation.process import ProcessSnapshot
from trainables.isolation.resource_leaks import Memory, end_data_loaders
from trainables.precision import Diverged
from trainables.registry import load_class
from trainables.task import images
from trainables.training.trainer import TrialTrainer
from trainables.update.reduction import PeerFailed
from trainables.worker.heartbeat import beat
from trainables.worker.segment_budget import SegmentBudget

logger = logging.getLogger(__name__)
AUTOSAVE_S = 300.0  # an epoch that takes longer is saved in between: so much work is lost at most with a worker
MEMORY_GROWTH_GIB = 1.0

Held = tuple[int, int]  # a trial's number and the epoch that it has reached


def work(settings: dict[str, Any], make: "Callable[..., TrialRunner] | None" = None) -> None:
    """Take stretches from the gang's mailbox and put a report for each epoch into it.

    Args:
        settings: `registry`, the actor that holds the mailboxes and whose `wait_for_stop` returns when all is to end;
            `gang`, the name of this one; `task`, the task as "module:Class"; `files`, the folder that its `prepare`
            filled; `rehearsal`, whether the GPUs that Ray gives are only declared; `stall_timeout` in seconds or None;
            `others`, `recycle_after` and `gpus`, see `Workers`.
        make: Makes what runs the stretches. Default: `Workers`, for a task class.
    """
    registry, gang = settings["registry"], settings["gang"]
    # Whatever looks for Ray in here must find this cluster, and no other one on the host.
    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    ranks = ray.train.get_context()
    device = torch.device("cpu") if settings["rehearsal"] else ray.train.torch.get_device()
    files = cached_on_node(settings["files"], _get_ray_train_session_dir())
    context = Context(device, ranks.get_world_rank(), ranks.get_world_size(), files)
    me = ray.get_runtime_context()
    group, run = ray.util.get_current_placement_group(), ranks.get_experiment_name()
    if not ray.get(registry.register_worker.remote(gang, run, group, me.current_actor, me.get_node_id())):
        return
    stopping = threading.Event()
    workers = (make or TrialRunner)(
        settings["task"],
        context,
        stopping,
        others=settings["others"],
        recycle_after=settings["recycle_after"],
        gpus=settings["gpus"],
    )
    _listen(registry, gang, workers)
    turn = 0
    if settings["stall_timeout"] is not None:
        beat(
            lambda progress, stack: registry.record_heartbeat.remote(gang, turn, context.rank, progress, stack),
            lambda: workers.progress,
            lambda: workers.thread,
            every_s=min(1.0, settings["stall_timeout"] / 4),
        )
    while True:
        turn, stretch = ray.get(registry.wait_for_segment.remote(gang, turn))
        if stretch is None:
            return
        workers.drop_trial_unless_continued(stretch)
        worn = [reason for reason in context.gather(workers.recycle_reason or workers.migrate_reason) if reason]
        if worn and workers.training is None:
            ray.get(registry.end_gang.remote(gang, worn[0]))
            return
        for report in workers.run(stretch):
            if "leaving" in report:  # all ranks return, and the stretch goes on in new workers
                ray.get(registry.end_gang.remote(gang, report["leaving"]))  # after what was reported before
                return
            failed = report.get("outcome") == "failed" or report.pop("alone", False)
            ends = failed and context.world_size > 1
            if ends:
                report["ending"] = "the trial before failed on one of its ranks"
            if context.rank == 0 or failed:
                sent = registry.put.remote(gang, turn, report)
                if report["done"]:  # not for each epoch: training must not wait for the one that watches it
                    ray.get(sent)
            if ends:
                # The other ranks wait in a collective that this one will not join; Train ends them all
                # and starts the group anew.
                raise RuntimeError(report["reason"])


class TrialRunner:
    """Runs stretches on one rank and keeps the last trial in memory, in case that it goes on.

    Args:
        task: As "module:Class".
        context: Of this rank.
        stopping: Ends what runs between two windows, once it is set.
        others: Metrics that each report must have beside the task's objective.
        autosave_s: Seconds after which an epoch that is under way is saved, again and again.
        recycle_after: Trials after which the process is worn. None: any number.
        memory_growth: GiB that the process may grow by from one trial to the last.
        gpus: What a second of the trial costs, in GPU-seconds: how many it has on all ranks, or workers without any.

    Attributes:
        worn: Why this process should take no other trial, or "".
        leaving: Why the trial is to go on in another process, or "". Set before `stopping` is.
    """

    def __init__(
        self,
        task: str,
        context: Context,
        stopping: threading.Event,
        autosave_s: float = AUTOSAVE_S,
        recycle_after: int | None = None,
        memory_growth: float = MEMORY_GROWTH_GIB,
        gpus: float = 1.0,
        others: Sequence[str] = (),
    ) -> None:
        self.task = task
        self.others = tuple(others)
        self.context = context
        self.stopping = stopping
        self.autosave_s = autosave_s
        self.gpus = gpus
        self.progress = 0  # grows with each build, window and evaluation, over all trials
        self.held: Held | None = None
        self.training: TrialTrainer | None = None
        self.recycle_reason = ""
        self.migrate_reason = ""
        self._trials = 0
        self._recycle_after = recycle_after
        self._process = ProcessSnapshot(task)
        self._memory = Memory(memory_growth)
        self._thread = threading.get_ident()

    @property
    def thread(self) -> int:
        """The identifier of the thread that trains."""
        return self._thread

    def run(self, stretch: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """A report for each epoch of `stretch`; the last one is `done` and carries an outcome if the trial ended.

        `datasets` in the first one since the task was built is what it named, `notes` what the trainables logged since
        the report before.
        """
        with _LogCapture() as notes:
            for report in self._run_segment(stretch):
                lines = notes.pop_lines()
                yield {**report, "notes": lines} if lines else report

    def drop_trial_unless_continued(self, stretch: dict[str, Any]) -> None:
        """Forget the trial in memory, unless `stretch` goes on with it: then `worn` is what the trial left behind."""
        if self.training is not None and self.held != (stretch["trial"], stretch["epoch"]):
            self._release()

    def _run_segment(self, stretch: dict[str, Any]) -> Iterator[dict[str, Any]]:
        last: dict[str, Any] = {}
        try:
            for report in self._generate_reports(stretch):
                if report["done"]:
                    last = report
                else:
                    yield report
        except Diverged as error:
            last = {
                "done": True,
                "outcome": "diverged",
                "reason": str(error),
                "divergence": self._describe_divergence(error),
            }
            if self.context.world_size > 1 and not error.agreed:
                last["alone"] = True  # the other ranks do not know, and wait for this one
            # What a task raises itself is no report of an epoch, whatever metrics it has.
            if error.kind == "objective" and error.metrics is not None and self.training is not None:
                last["last"] = {"epoch": self.training.epoch, "metrics": error.metrics, "checkpoint": None}
                last["last"] |= self._compute_costs(self.training)
        # Whatever a task raises ends its trial, sys.exit() too, and not the gang: the next trial is unharmed.
        except (Exception, SystemExit) as error:
            if self.context.world_size > 1 and _is_lost_peer(error):
                raise  # another rank ended; Train starts the group anew, and the trial goes on from its checkpoint
            last = {
                "done": True,
                "outcome": "failed",
                "reason": _format_reason(error),
                "traceback": traceback.format_exc(),
            }
        finally:  # not before the error is gone: its traceback holds on to all that the trial had
            if self.held is None:
                self._release()
        yield last

    def _describe_divergence(self, error: Diverged) -> dict[str, Any]:
        """By what a trial was seen to diverge, and in which epoch."""
        return {"kind": error.kind, "epoch": self.training.current if self.training else 0}

    def _generate_reports(self, stretch: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.drop_trial_unless_continued(stretch)
        self.held = None
        news: dict[str, Any] = {}
        if self.training is None:
            self.training = self._start(stretch)
            news = {"datasets": [asdict(data) for data in self.training.task.named_data]}
        for report in self._run_epochs(self.training, stretch):
            if "metrics" in report:
                report, news = {**report, **news}, {}
            can_go_on = self.training.epoch < self.training.task.config.epochs
            if report["done"] and "outcome" not in report and can_go_on:
                self.held = (stretch["trial"], self.training.epoch)
            yield report

    def _start(self, stretch: dict[str, Any]) -> TrialTrainer:
        task_class = load_class(self.task)  # here, so that a task that cannot be imported fails with its reason
        config = task_class.config_class().model_validate(stretch["config"])
        training = TrialTrainer(task_class(config, self.context.for_next_trial()))
        training.on_progress = self._count_progress
        self._count_progress()
        # Rank 0 chooses, so that all go on from the same one.
        chosen = find_resume_checkpoint(stretch, self.context.world_size) if self.context.rank == 0 else None
        path = self.context.broadcast_object(chosen and chosen[0])
        if path is not None:
            state = chosen[1] if chosen else checkpoint.load(path)
            training.restore(state, of_another=str(path) == stretch.get("copied"))
        training.autosave = (parse_path(stretch["folder"]) / f"midway-{stretch['attempt']}.pt", self.autosave_s)
        return training

    def _run_epochs(self, training: TrialTrainer, stretch: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if training.epoch >= stretch["until"]:  # without a report, the gang would wait for ever
            raise ValueError(f"a stretch must end after epoch {training.epoch}, but got {stretch['until']}.")
        assert training.autosave is not None
        midway, _ = training.autosave
        allowance = SegmentBudget(stretch.get("allowance"))
        done = False
        while not done:
            metrics = training.run_epoch(self._should_stop)
            if metrics is None:
                if training.windows:
                    training.save(midway)
                yield interruption_report(self.context.gather((self.stopping.is_set(), self.migrate_reason)))
                return
            check_secondary_objectives(self.others, metrics, f"after epoch {training.epoch}")
            path = parse_path(stretch["folder"]) / f"epoch-{training.epoch}-{stretch['attempt']}.pt"
            if training.pictures:  # before the checkpoint: an epoch that is not saved is done again, and drawn again
                images.save(training.pictures, path)
            training.save(path)
            if self.context.rank == 0:
                training.discard(midway)  # the epoch is done
            costs = self._compute_costs(training)
            if allowance.is_limited:  # each rank has a clock of its own, and all must end alike
                costs = self.context.broadcast_object(costs)
            report = {"epoch": training.epoch, "metrics": metrics, "checkpoint": str(path)}
            report |= allowance.add_epoch(training.epoch, costs)
            done = training.epoch >= stretch["until"] or allowance.is_spent
            yield {**report, "done": done}

    def _compute_costs(self, training: TrialTrainer) -> dict[str, float]:
        """Of the epoch that was done last."""
        return {"samples": training.samples, "gpu_seconds": training.seconds * self.gpus}

    def _should_stop(self) -> bool:
        """Asked before every window."""
        self._count_progress()
        return self.stopping.is_set()

    def _count_progress(self) -> None:
        self.progress += 1

    def _release(self) -> None:
        """Forget the trial in memory, and what it left behind in the process."""
        end_data_loaders()  # first: from here on the collector may come across them
        if self.training is not None:
            self.training.close()
        self.held = self.training = None
        self._trials += 1
        self.context.cache_store.drop_changed()
        left = self._process.restore()
        grown = self._memory.describe_growth(self._trials, self.context.cache_store.get_size)
        if not self.recycle_reason:
            self.recycle_reason = left or grown or self._check_trial_limit()

    def _check_trial_limit(self) -> str:
        if self._trials != self._recycle_after:
            return ""
        return "1 trial" if self._trials == 1 else f"{self._trials} trials"


def check_secondary_objectives(others: Sequence[str], metrics: Mapping[str, float], when: str) -> None:
    """Whether a report has all objectives beside the first, as numbers that can be compared.

    Raises:
        ValueError: One is missing.
        Diverged: One is not finite.
    """
    for name in others:
        if name not in metrics:
            raise ValueError(f"a report must have the objective {name!r}, but got {', '.join(sorted(metrics))}.")
        if not math.isfinite(metrics[name]):
            raise Diverged(f"{name} is {metrics[name]} {when}", dict(metrics), agreed=True, kind="objective")


def interruption_report(ranks: Sequence[tuple[bool, str]]) -> dict[str, Any]:
    """The last report of a stretch that ends early on all ranks: it goes on elsewhere, or the search is to stop.

    Args:
        ranks: Whether each was told to stop, and why only to go on elsewhere, or "".
    """
    leaving = [why for _, why in ranks if why]
    if not leaving or any(stop and not why for stop, why in ranks):
        return {"done": True, "outcome": "interrupted", "reason": "the search was stopped"}
    return {"done": True, "leaving": leaving[0]}


class _LogCapture(logging.Handler):
    """Keeps what the trainables log, which is of no use in the log of a worker that nobody reads."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: list[str] = []
        self._logger = logging.getLogger("trainables")

    def __enter__(self) -> "_LogCapture":
        self._logger.addHandler(self)
        self._logger.setLevel(logging.INFO)
        return self

    def __exit__(self, *exception: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(logging.NOTSET)

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())

    def pop_lines(self) -> list[str]:
        """What was logged since the last call."""
        lines, self._lines = self._lines, []
        return lines


def _listen(registry: Any, gang: str, workers: TrialRunner) -> None:
    """Let `workers` stop within moments of when all is to end here. Returns at once."""

    def wait() -> None:
        stopping, leaving = ray.get(registry.wait_for_stop.remote(gang))
        workers.migrate_reason = leaving
        if stopping or leaving:
            workers.stopping.set()

    threading.Thread(target=wait, daemon=True, name="stop-listener").start()


def _is_lost_peer(error: BaseException) -> bool:
    """Whether `error` is what a collective raises when another rank is gone. Gloo has no type of its own for it."""
    gloo = isinstance(error, RuntimeError) and "/gloo/" in str(error)
    return gloo or isinstance(error, torch.distributed.DistError | PeerFailed)


def _format_reason(error: BaseException) -> str:
    lines = str(error).splitlines()
    message = f"{type(error).__name__}: {lines[0] if lines else ''}"
    # On the CPU torch has no exception of its own for it.
    memory = isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in message
    return f"out of memory: {message}" if memory else message
