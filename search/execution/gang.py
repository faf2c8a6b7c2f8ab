"""A gang: workers of Ray Train that train several trials, run by one of Tune's actors."""

import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar

import ray
from ray import tune

from searchlight.search.execution.controller_settings import apply_controller_settings
from searchlight.search.execution.failure_policy import FailurePolicy
from searchlight.search.execution.gang_registry import STALL_EPOCHS, STALL_S, Registry
from searchlight.search.formatting import format_duration
from searchlight.trainables.registry import find_user_frame
from searchlight.trainables.worker.messages import (
    Delivery,
    EpochReport,
    GangReport,
    GangResult,
    GangSettings,
    GangStatus,
    Infeasibility,
    SegmentAssignment,
    SegmentEnd,
    TrialRelease,
    to_json,
)

POLL_S = 0.2  # latency of noticing ended workers
STOP_S = 4.0  # how long workers may take to stop at a window, beside what a program takes to end
CLOSE_S = 3.0  # how long workers may take to return before they are killed, beside the same
CALL_S = 60.0  # timeout of calls to the registry
START_S = 300.0  # how long the registry, or placed workers, may take to start and to import what they need

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")


class RegistryClient:
    """Calls the registry's actor on behalf of one gang."""

    def __init__(self, registry: Any, gang: str) -> None:
        self.timeout_s = START_S  # until the first answer: the registry may still start, on a busy node
        self._registry = registry
        self._gang = gang
        self._answer: Any = None

    def call(
        self,
        method: Callable[Concatenate[Registry, str, Parameters], Coroutine[Any, Any, Answer]],
        *arguments: Parameters.args,
        **options: Parameters.kwargs,
    ) -> Answer:
        """Call a method of the registry for this gang, and return its answer.

        Raises:
            GetTimeoutError: The registry does not answer in time.
        """
        remote = getattr(self._registry, method.__name__).remote
        answer: Answer = ray.get(remote(self._gang, *arguments, **options), timeout=self.timeout_s)
        self.timeout_s = min(self.timeout_s, CALL_S)
        return answer

    def receive(self) -> list[Delivery]:
        """Return the reports of the workers, or an empty list if none has arrived for POLL_S."""
        # Kept until it is answered: an abandoned call would consume the first report of the next segment.
        self._answer = self._answer or self._registry.get.remote(self._gang)
        if not ray.wait([self._answer], timeout=POLL_S)[0]:
            return []
        deliveries: list[Delivery] = ray.get(self._answer)
        self._answer = None
        return deliveries


class WorkerThread(threading.Thread):
    """Runs the workers of a gang until they end. `failure` is their error, or None if they returned."""

    failure: Exception | None = None

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:  # any error: the gang decides what follows
            self.failure = error


class GangRunner:
    """Runs one segment after another in the same workers.

    A failure of a trial is a report with its outcome. An error here ends the gang, and another gang continues its
    trial: the cluster has no room, or the workers do not start.

    Args:
        place_s: How long the gang may wait for room in the cluster.
        start_workers: Starts workers in a placement group of the given name, which launch kernels synchronously or not.
    """

    def __init__(
        self,
        name: str,
        settings: GangSettings,
        place_s: float,
        registry: RegistryClient,
        start_workers: Callable[[str, bool], WorkerThread],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._settings = settings
        self._start_limit_s = place_s + START_S
        self._registry = registry
        self._start_workers = start_workers
        self._clock = clock
        self._policy = FailurePolicy(settings.max_failures)
        self._next_poll_s = GangStatus.next_poll_s  # the latency of noticing the end of the search, or a stall
        command = settings.worker.command
        self._program_s = command.longest_stop_s if command else 0.0  # what its program may take to end
        self._over = ""
        self._are_killed = False  # the present workers, which do not answer

    def start(self, actor: str, node: str) -> None:
        """Register the gang, whose actor has the identifier `actor`, on `node`, and start its workers."""
        run = self._create_run_name()
        self._registry.call(Registry.register_gang, actor, node, run)
        self._workers = self._start_workers(run, False)

    def begin(self, segment: SegmentAssignment) -> None:
        """Begin `segment` with the next call of `wait_for_reports`."""
        self._segment = segment
        self._assigned = self._begun = False
        self._notes: list[str] = []
        self._stall_limit_s = self._settings.worker.stall_timeout
        self._policy.start_segment(segment.epoch)

    def wait_for_reports(self) -> GangResult:
        """Wait for the next report of the segment, and return all that have arrived.

        Raises:
            RuntimeError: The gang has released its trial with the previous report, or its workers do not start.
        """
        if self._over:
            raise RuntimeError(f"{self._name} ends: {self._over}")
        result = self._wait()
        if self._notes:
            first, *others = result.reports
            result = replace(result, reports=[replace(first, notes=[*self._notes, *first.notes]), *others])
            self._notes = []
        return result

    def _wait(self) -> GangResult:
        if not self._assigned:
            # The workers may have ended with the segment before.
            if not self._workers.is_alive() and (last := self._restart_workers()) is not None:
                return GangResult(self._name, [last])
            self._turn = self._registry.call(Registry.assign, self._segment)
            self._assigned = True
        polled_at, stop_at = self._clock(), math.inf
        # Ignore deliveries of an earlier segment that has just ended.
        while not (deliveries := [delivery for delivery in self._registry.receive() if delivery.turn >= self._turn]):
            last, now = None, self._clock()
            if now - polled_at > self._next_poll_s:
                status = self._registry.call(Registry.poll, self._describe_work())
                polled_at, self._next_poll_s = now, status.next_poll_s
                if status.stopping and stop_at == math.inf:
                    stop_at = now + (STOP_S + self._program_s if status.up else 0.0)
                last = self._check_status(status)
            is_alive = self._workers.is_alive()
            if last is None and stop_at < math.inf and (now >= stop_at or not is_alive):
                last = SegmentEnd("interrupted", "the search was stopped")
            if last is None and not is_alive:
                last = self._restart_workers()
            if last is not None:
                return GangResult(self._name, [last])
        for delivery in deliveries:
            self._policy.record_progress(delivery.report.epoch if isinstance(delivery.report, EpochReport) else 0)
        return GangResult(self._name, [delivery.report for delivery in deliveries], deliveries[-1].taken)

    def close(self) -> None:
        """Let the workers return, so that Train releases their resources, and remove the gang."""
        self._registry.timeout_s = CLOSE_S
        if self._registry.call(Registry.close):
            self._workers.join(CLOSE_S + self._program_s)
        self._registry.call(Registry.unregister_gang)

    def _describe_work(self) -> str:
        limit = self._stall_limit_s
        rule = f" (stalled once it makes none for {format_duration(limit)})" if limit is not None else ""
        return f"trial {self._segment.trial}, from epoch {self._segment.epoch}{rule}"

    def _create_run_name(self) -> str:
        """Return a new name for workers and their placement group."""
        return f"{self._name}-{uuid.uuid4().hex[:8]}"

    def _check_status(self, status: GangStatus) -> GangReport | None:
        """Return the last report if the gang stops waiting for its workers, else None.

        Raises:
            RuntimeError: The workers do not start.
        """
        worker = self._settings.worker
        self._stall_limit_s = worker.stall_timeout
        if self._stall_limit_s is None and not worker.objective:  # reports of a function may be far apart
            self._stall_limit_s = status.stall_limit_s
        if self._stall_limit_s is not None and status.stalled_s > self._stall_limit_s:
            if status.silent_s > self._stall_limit_s / 2:  # two heartbeats at least are missing: it is not the task
                if not self._are_killed:
                    self._are_killed = True
                    self._notes.append(f"its workers are ended: one has not answered for {status.silent_s:.0f} s")
                    self._registry.call(Registry.kill_workers)
                return None
            stacks = self._registry.call(Registry.end_workers)  # nothing else would free them
            reason = f"stalled: no progress for {self._stall_limit_s:g} s"
            if worker.stall_timeout is None:
                reason += f", which is {STALL_EPOCHS} times the longest epoch or {STALL_S:g} s; see --stall-timeout"
            text = "\n".join(f"rank {rank}:\n{stack}" for rank, stack in stacks.items())
            return SegmentEnd("failed", reason, f"{reason}\n\n{text}", location=find_user_frame(text))
        if status.surplus:
            return self._release_trial("the cluster has no room for it")
        if status.waiting_s > self._start_limit_s:
            raise RuntimeError(f"its workers did not begin within {self._start_limit_s:.0f} s")
        return None

    def _restart_workers(self) -> GangReport | None:
        """Start new workers in place of ended ones, or return the last report of the segment.

        Raises:
            RuntimeError: The workers do not start.
        """
        run = self._create_run_name()
        self._are_killed = False
        ended = self._registry.call(Registry.restart, run)
        self._begun |= ended.reached == "begun"
        decision = self._policy.decide(self._workers.failure, ended.reached, ended.expected, ended.leaving)
        if decision.note:
            self._notes.append(decision.note)
        if decision.kind == "give up":
            raise RuntimeError(decision.reason)
        if ended.moves and decision.kind != "fail":
            return self._release_trial("its own node is going away")
        if decision.kind == "room":
            return self._release_trial(decision.reason)
        self._workers = self._start_workers(run, ended.is_synchronous)
        if decision.kind == "fail":
            self._registry.call(Registry.drop)
            infeasibility = Infeasibility("memory") if decision.lacks_memory else None
            return SegmentEnd("failed", decision.reason, infeasibility=infeasibility)
        return None

    def _release_trial(self, reason: str) -> TrialRelease:
        """Return the report that lets another gang continue the trial. This gang then ends."""
        self._over = reason
        return TrialRelease(reason, self._begun)


class Gang(tune.Trainable):
    """Tune's actor of a gang. A trial of Tune is a segment.

    Its config has the SegmentAssignment as `segment`, and the GangSettings, which are the same for all, as `gang`.
    """

    def setup(self, config: dict[str, Any]) -> None:
        self.settings: GangSettings = config["gang"]
        self.name = f"gang-{self.trial_id}"
        # Libraries that connect to Ray must find this cluster, not another one on the host.
        me = ray.get_runtime_context()
        os.environ["RAY_ADDRESS"] = me.gcs_address
        settings = self.settings
        has_nccl = settings.workers > 1 and settings.resources.get("GPU", 0) > 0 and not settings.worker.rehearsal
        place_s = apply_controller_settings(settings.grows, has_nccl)
        registry = RegistryClient(self.settings.registry, self.name)
        self._runner = GangRunner(self.name, self.settings, place_s, registry, self._start_workers)
        self._runner.begin(config["segment"])
        self._runner.start(str(me.get_actor_id()), me.get_node_id())

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.begin(new_config["segment"])
        return True

    def begin(self, segment: SegmentAssignment) -> None:
        """Begin `segment` with the next call of `step`."""
        self._runner.begin(segment)

    def step(self) -> dict[str, Any]:
        """Wait for reports of the segment.

        Returns:
            `reports`: a GangResult as JSON. `done`: whether its trial ends or must leave this gang. `is_held`: whether
            the segment has ended, and the trial may go on in this gang.
        """
        result = self._runner.wait_for_reports()
        last = result.reports[-1]
        is_held = last.done and isinstance(last, EpochReport)
        return {"reports": to_json(result), "done": last.done and not is_held, "is_held": is_held}

    def cleanup(self) -> None:
        self._runner.close()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save nothing: the workers write checkpoints, and the study has their paths."""

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """Load nothing: a segment names its checkpoints."""

    def train_workers(self, run: str, is_synchronous: bool) -> None:
        """Run workers until they end."""
        # Imported here, since it takes seconds and the driver imports this module, too.
        from searchlight.search.execution.gang_trainer import train

        worker = replace(self.settings.worker, is_synchronous=is_synchronous)
        train(replace(self.settings, worker=worker), self.name, run)

    def _start_workers(self, run: str, is_synchronous: bool) -> WorkerThread:
        thread = WorkerThread(target=self.train_workers, args=(run, is_synchronous), daemon=True, name="fit")
        thread.start()
        return thread
