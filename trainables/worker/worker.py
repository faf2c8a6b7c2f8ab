"""A worker of a gang: it trains one segment of a trial after another."""

import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import ray
import ray.train

from searchlight.trainables.filesystem.paths import cached_on_node
from searchlight.trainables.private_api import get_ray_train_session_dir
from searchlight.trainables.ranks import Ranks
from searchlight.trainables.registry import enter_task_folder
from searchlight.trainables.worker.endings import ends_gang
from searchlight.trainables.worker.messages import EpochReport, Migration, SegmentAssignment, SegmentEnd, WorkerSettings
from searchlight.trainables.worker.segment_runner import SegmentRunner
from searchlight.trainables.worker.working_folder import WorkingFolder

HEARTBEAT_S = 10.0  # interval without --stall-timeout: the default limit is half an hour


def work(config: dict[str, Any], runner_class: type[SegmentRunner]) -> None:
    """Run the segments of a gang on this rank until the gang ends or replaces this process.

    Args:
        config: `registry`, the registry's actor; `gang`, the gang's name; and `worker`, the WorkerSettings.
        runner_class: Runs the segments.
    """
    enter_task_folder()
    registry, gang = config["registry"], config["gang"]
    settings: WorkerSettings = config["worker"]
    # Libraries that connect to Ray must find this cluster, not another one on the host.
    me, ranks = ray.get_runtime_context(), ray.train.get_context()
    os.environ["RAY_ADDRESS"] = me.gcs_address
    files = cached_on_node(settings.files, get_ray_train_session_dir())
    # The GPU of a command is its program's: a worker that touched it would take hundreds of MiB of its memory.
    context = Ranks(files=files) if settings.command else _create_context(settings, ranks, files)
    group, run = ray.util.get_current_placement_group(), ranks.get_experiment_name()
    if ray.get(registry.register_worker.remote(gang, run, group, [ray.put(me.current_actor)], me.get_node_id())):
        runner = runner_class(settings, context, threading.Event(), folder=WorkingFolder(Path.cwd()))
        try:
            GangMember(registry, gang, runner).work()
        finally:
            runner.folder.remove()


def _create_context(settings: WorkerSettings, ranks: Any, files: Path | None) -> Ranks:
    """Return the context of a worker that trains in this process."""
    import ray.train.torch  # here, since the worker of a program needs no torch
    import torch

    from searchlight.trainables.context import Context
    from searchlight.trainables.training.resource_usage import limit_gpu_memory

    device = torch.device("cpu") if settings.rehearsal else ray.train.torch.get_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)  # as in a TorchTrainer
    limit_gpu_memory(device, settings.gpus / ranks.get_world_size())
    return Context(device, ranks.get_world_rank(), ranks.get_world_size(), files, ranks.get_local_world_size())


class GangMember:
    """One rank of a gang. It takes segments from the gang's mailbox and puts their reports into it."""

    def __init__(self, registry: Any, gang: str, runner: SegmentRunner) -> None:
        self._registry = registry
        self._gang = gang
        self._runner = runner
        self._turn = 0
        self._sent: ray.ObjectRef[None] | None = None  # the last report

    def work(self) -> None:
        """Run segments until there are no more, or until new workers have to continue.

        Raises:
            RuntimeError: A trial failed on this rank alone. Train then ends the other ranks, which wait for this one.
        """
        runner = self._runner
        threading.Thread(target=self._listen, daemon=True, name="stop-listener").start()
        stall_timeout = runner.settings.stall_timeout
        arguments = (threading.get_ident(), min(1.0, stall_timeout / 4) if stall_timeout else HEARTBEAT_S)
        threading.Thread(target=self._send_heartbeats, args=arguments, daemon=True, name="heartbeat").start()
        if runner.settings.audit is not None:
            is_first = runner.context.rank == 0 and ray.get(self._registry.claim_audit.remote(self._gang))
            runner.is_auditor = runner.context.broadcast_object(is_first)
            runner.on_audit = lambda audit: ray.get(self._registry.record_audit.remote(audit))
        while (segment := self._wait_for_segment()) is not None:
            runner.drop_trial_unless_continued(segment)
            reasons = [why for why in runner.context.gather(runner.recycle_reason or runner.migrate_reason) if why]
            if reasons and not runner.must_continue:
                runner.drop_trial_unless_continued(None)  # a function that waits in its report ends in order
                return self._end_gang(reasons[0])
            runner.turn = self._turn
            for report in runner.run(segment):
                if isinstance(report, Migration):
                    self._end_gang(report.reason, report.is_synchronous)
                    if ends_gang(report, runner.context):
                        raise RuntimeError(report.reason)
                    return  # as all ranks do
                self._send(report)
        runner.drop_trial_unless_continued(None)

    def _wait_for_segment(self) -> SegmentAssignment | None:
        segment: SegmentAssignment | None
        self._turn, segment = ray.get(self._registry.wait_for_segment.remote(self._gang, self._turn))
        return segment

    def _end_gang(self, reason: str, is_synchronous: bool = False) -> None:
        ray.get(self._registry.end_gang.remote(self._gang, reason, is_synchronous))

    def _send(self, report: EpochReport | SegmentEnd) -> None:
        context = self._runner.context
        ending = "the trial before failed on one of its ranks" if ends_gang(report, context) else ""
        if context.rank == 0 or ending:
            if self._sent is not None:
                ray.wait([self._sent])  # the registry takes calls in any order, and none after the last report
            self._sent = self._registry.put.remote(self._gang, self._turn, report, ending)
            if report.done:  # only for the last one, since training must not wait for the registry
                ray.get(self._sent)
        if isinstance(report, SegmentEnd) and ending:
            # The other ranks wait in a collective that this one will not join; Train ends them all
            # and starts the group anew.
            raise RuntimeError(report.reason)

    def _listen(self) -> None:
        """Stop the runner when the search is stopped or the trial must move, and a trial when it is halted."""
        runner, halted = self._runner, 0
        while True:
            before = halted
            stopping, leaving, halted = ray.get(self._registry.wait_for_stop.remote(self._gang, before))
            runner.halted_turn = halted
            runner.migrate_reason = leaving
            if stopping or leaving:
                runner.stopping.set()
            if halted == before:
                return

    def _send_heartbeats(self, caller: int, every_s: float) -> None:
        """Report the progress and the stack of the training thread, for as long as the thread `caller` lives."""
        while True:
            time.sleep(every_s)
            frames = sys._current_frames()
            if caller not in frames:
                return
            stack = "".join(traceback.format_stack(frames.get(self._runner.thread, frames[caller])))
            frames.clear()  # frames keep the trial's objects alive
            rank, progress = self._runner.context.rank, self._runner.progress
            self._registry.record_heartbeat.remote(self._gang, self._turn, rank, progress, stack)
