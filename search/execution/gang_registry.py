"""The actor that all gangs of a search share: their mailboxes, their states, and whether the search stops."""

import asyncio
import logging
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, remove_placement_group

from searchlight.search.execution.cluster.snapshot import (
    ClusterSnapshot,
    fullest_fitting_node,
    has_died,
    take_snapshot,
)
from searchlight.search.execution.mailbox import Mailbox
from searchlight.trainables.worker.messages import (
    Delivery,
    EndedWorkers,
    EpochReport,
    GangStatus,
    SegmentAssignment,
    SegmentEnd,
)

logger = logging.getLogger(__name__)
POLL_S = 1.0  # interval of the polls of a gang, if there are few
POLLS_PER_S = 200.0  # of all gangs together, since each takes a millisecond of this one process
QUIET = 1.5  # times that interval: a gang that was silent for so long is looked up
WATCH_S = 1.0  # interval of these checks; the resources of a killed gang are freed after both times
LOOK_S = 1.0  # interval of cluster snapshots
STALL_S = 1800.0  # the shortest time without progress after which a trial is stalled by default
STALL_EPOCHS = 10  # the same in times of the longest epoch of the search
AUDITS = 2  # a task whose audit ends its workers must not lose more of them
CLAIM_S = 300.0  # how long the audit of lost workers waits for others: idle gangs have theirs, and start none
SURPLUS_S = 5.0  # how long a gang waits for room before it may be surplus


@dataclass
class GangEntry:
    """A running gang.

    Attributes:
        actor: The identifier of its actor, in hexadecimal digits.
        node: The node of its actor.
        run: The name of its present workers' placement group.
        group: The placement group of its `workers`, which are references to their actors, or None while they start.
        nodes: The nodes of the workers.
        planned: The node that their group requested.
        leaving: Why the workers must continue on another node, or "".
        ended: Set once these workers have ended or must leave, or the search stops. Replaced after a halt.
        halted: The turn of the segment whose trial was halted last.
        heard_at: When it was registered or last polled. It polls every `Registry._poll_interval_s` while it waits for
            reports.
    """

    actor: str
    node: str
    run: str
    mailbox: Mailbox = field(default_factory=Mailbox)
    group: PlacementGroup | None = None
    workers: "list[ray.ObjectRef[Any]]" = field(default_factory=list)
    nodes: set[str] = field(default_factory=set)
    planned: str = ""
    leaving: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    halted: int = 0
    doing: str = ""
    is_synchronous: bool = False  # whether its next workers launch kernels synchronously
    heard_at: float = field(default_factory=time.monotonic)


class Registry:
    """Knows the gangs of a search.

    One actor serves all gangs, since a process for each would take longer to start. A placement group exists in Ray
    until its creator and the whole job have ended. Train's own cleaner of groups of killed controllers needs Ray's
    dashboard and a single Ray on the machine. Therefore, this actor removes the groups of gangs that are gone. It also
    takes the snapshots of the cluster for all gangs, once a second.

    Args:
        need: The resources of all workers of one gang.
    """

    def __init__(self, need: dict[str, float]) -> None:
        self._need = need
        self._holds: int | None = None
        self._gangs: dict[str, GangEntry] = {}
        self._stopping = False
        self._to_halt: set[int] = set()  # trials that were halted before their segment reached a mailbox
        self._look = ClusterSnapshot()
        self._tasks: set[asyncio.Task[None]] = set()
        self._auditor = ""
        self._audits = 0
        self._longest_epoch_s = 0.0
        self._audit: asyncio.Future[dict[str, Any] | None] | None = None

    async def register_gang(self, gang: str, actor: str, node: str, run: str) -> None:
        """Add a gang with the identifier of its actor on `node`, whose workers' placement group is named `run`."""
        self._gangs[gang] = GangEntry(actor, node, run)
        if not self._tasks:
            self._start_task(self._poll_cluster())
            self._start_task(self._remove_dead_gangs())

    async def choose_node(self, gang: str) -> str:
        """Return the fullest node with room for all workers of `gang`, or ""."""
        seen = self._look.get_group_names("CREATED")
        taken = Counter(entry.planned for entry in self._gangs.values() if entry.run not in seen)
        node = fullest_fitting_node(self._look, self._need, taken)
        if gang in self._gangs:
            self._gangs[gang].planned = node
        return node

    async def register_worker(
        self, gang: str, run: str, group: PlacementGroup, workers: "list[ray.ObjectRef[Any]]", node: str
    ) -> bool:
        """Add a worker of `run` on `node` in `group`. Return whether the gang still needs it.

        If the worker's controller was killed, other workers replace it, and no segment must be trained twice.

        Args:
            workers: A reference to the worker's actor, which the worker owns. It is resolved only to kill the worker,
                since an actor's handle comes with the modules of its class: Ray Train takes seconds to import. Only a
                list keeps Ray from resolving it.
        """
        entry = self._gangs.get(gang)
        if entry is None or entry.run != run:
            remove_placement_group(group)
            return False
        entry.group = group
        entry.workers += workers
        entry.nodes.add(node)
        self._request_migrations()
        return True

    async def kill_workers(self, gang: str) -> None:
        """Kill the workers of `gang`, so that others continue the segment."""
        for worker in [*self._gangs[gang].workers]:
            with suppress(RayError):  # it has died, and its reference with it
                ray.kill(await worker)

    async def end_workers(self, gang: str) -> dict[int, str]:
        """Kill the workers of `gang`, whose segment ends without a report. Return the stack of each rank."""
        entry = self._gangs[gang]
        stacks = entry.mailbox.get_stacks()
        await entry.mailbox.mark_ending("the trial before stalled")
        await entry.mailbox.drop()
        await self.kill_workers(gang)
        return stacks

    async def end_gang(self, gang: str, why: str, is_synchronous: bool = False) -> None:
        """Record that the workers of `gang` end, and whether the next ones launch kernels synchronously."""
        self._gangs[gang].is_synchronous = is_synchronous
        await self._gangs[gang].mailbox.mark_ending(why)

    async def restart(self, gang: str, run: str) -> EndedWorkers:
        """Let new workers of `gang` start as `run` after the old ones have ended."""
        entry = self._gangs[gang]
        self._release_audit(gang)
        is_halted = entry.halted == entry.mailbox.turn
        reached, expected = await entry.mailbox.restart()
        entry.halted = entry.mailbox.turn if is_halted else entry.halted
        leaving, entry.leaving = entry.leaving, ""
        self._release_resources(entry)
        entry.ended = asyncio.Event()
        entry.run, entry.planned = run, ""
        is_synchronous, entry.is_synchronous = entry.is_synchronous, False
        return EndedWorkers(reached, expected, leaving, entry.node in self._look.going, is_synchronous)

    async def unregister_gang(self, gang: str) -> None:
        if gang in self._gangs:
            self._release_audit(gang)
            self._release_resources(self._gangs.pop(gang))

    async def poll(self, gang: str, doing: str) -> GangStatus:
        """Record the work of `gang`, and return its status."""
        entry = self._gangs[gang]
        entry.doing, entry.heard_at = doing, time.monotonic()
        waiting_s, stalled_s = entry.mailbox.get_idle_s()
        surplus = waiting_s > SURPLUS_S and self._is_surplus(gang)
        limit = max(STALL_S, STALL_EPOCHS * self._longest_epoch_s) if self._longest_epoch_s else None
        is_up = entry.group is not None
        silent_s = entry.mailbox.get_silence_s()
        return GangStatus(self._stopping, is_up, surplus, waiting_s, stalled_s, silent_s, limit, self._poll_interval_s)

    async def set_capacity(self, gangs: int) -> None:
        """Set the number of gangs that fit into the cluster, or that it may grow to."""
        self._holds = gangs

    async def statuses(self) -> tuple[list[str], int]:
        """Return the work of each gang, and the number of gangs that wait for room in the cluster."""
        doing = []
        for entry in self._gangs.values():
            if entry.group is None:
                doing.append(f"workers are starting for {entry.doing}" if entry.doing else "workers are starting")
            else:
                doing.append(entry.doing if entry.mailbox.is_started else "a gang is idle")
        return doing, len(self._look.get_group_names("PENDING"))

    async def stop(self) -> None:
        self._stopping = True
        for entry in self._gangs.values():
            entry.ended.set()

    async def halt_trial(self, number: int) -> None:
        """Let the workers that train trial `number` end its segment after the present window.

        If its gang still starts, they end the segment after it has reached them.
        """
        self._to_halt.add(number)
        for entry in self._gangs.values():
            self._pass_halt(entry, number)

    async def free_idle_gangs(self, live: frozenset[int] = frozenset()) -> None:
        """Let the workers of idle gangs return, so that others have their resources. A segment starts new ones.

        A gang stays if its last trial is `live` and in no other gang: the driver is about to let it go on there.
        """
        live -= {entry.mailbox.trial for entry in self._gangs.values() if not entry.mailbox.is_idle}
        for entry in self._gangs.values():
            if entry.mailbox.is_idle and entry.group is not None and entry.mailbox.trial not in live:
                await entry.mailbox.free()

    def _pass_halt(self, entry: GangEntry, number: int) -> None:
        if number in self._to_halt and (turn := entry.mailbox.find_turn(number)):
            self._to_halt.discard(number)
            entry.halted = turn
            entry.ended, halted = asyncio.Event(), entry.ended
            halted.set()

    async def wait_for_stop(self, gang: str, halted: int = 0) -> tuple[bool, str, int]:
        """Wait until the present workers of `gang` must end, have ended, or must halt a trial after the turn `halted`.

        Returns:
            Whether the search stops, why the workers must leave their nodes, or "", and the last turn that is halted.
        """
        entry = self._gangs[gang]
        if not self._stopping and not entry.leaving and entry.halted == halted:
            await entry.ended.wait()
        return self._stopping, entry.leaving, entry.halted

    async def claim_audit(self, gang: str) -> bool:
        """Return whether the workers of `gang` must audit the task.

        The first must. If they end before their audit does, the next workers of any gang must, up to AUDITS in all.
        """
        if self._auditor or self._get_audit().done():
            return False
        self._auditor, self._audits = gang, self._audits + 1
        return True

    async def record_audit(self, audit: dict[str, Any] | None) -> None:
        """Record the audit of the task, as JSON, or None at the end of the search."""
        if not self._get_audit().done():
            self._get_audit().set_result(audit)

    async def wait_for_audit(self) -> dict[str, Any] | None:
        """Wait for the audit of the task, and return it, or None if the search ends or goes on without."""
        return await self._get_audit()

    # Calls to the mailbox of one gang: see Mailbox.

    async def assign(self, gang: str, segment: SegmentAssignment) -> int:
        turn = await self._gangs[gang].mailbox.assign(segment)
        self._pass_halt(self._gangs[gang], segment.trial)
        return turn

    async def drop(self, gang: str) -> None:
        await self._gangs[gang].mailbox.drop()

    async def close(self, gang: str) -> bool:
        """Let the workers of `gang` return. Return whether they are up."""
        if gang not in self._gangs:
            return False
        await self._gangs[gang].mailbox.close()
        return self._gangs[gang].group is not None

    async def wait_for_segment(self, gang: str, seen: int) -> tuple[int, SegmentAssignment | None]:
        return await self._gangs[gang].mailbox.wait_for_segment(seen)

    async def put(self, gang: str, turn: int, report: EpochReport | SegmentEnd, ending: str = "") -> None:
        mailbox = self._gangs[gang].mailbox
        await mailbox.put(turn, report, ending)
        self._longest_epoch_s = max(self._longest_epoch_s, mailbox.longest_epoch_s)

    async def get(self, gang: str) -> list[Delivery]:
        return await self._gangs[gang].mailbox.get()

    async def record_heartbeat(self, gang: str, turn: int, rank: int, progress: int, stack: str) -> None:
        self._gangs[gang].mailbox.record_heartbeat(turn, rank, progress, stack)

    @property
    def _poll_interval_s(self) -> float:
        return max(POLL_S, len(self._gangs) / POLLS_PER_S)

    def _get_audit(self) -> "asyncio.Future[dict[str, Any] | None]":
        self._audit = self._audit or asyncio.get_running_loop().create_future()
        return self._audit

    def _release_audit(self, gang: str) -> None:
        """Leave the audit to other workers if those of `gang`, which have ended, have not recorded it."""
        if self._auditor == gang and not self._get_audit().done():
            self._auditor = ""
            if self._audits == AUDITS:
                self._get_audit().set_result(None)
            else:
                self._start_task(self._end_audit_unless_claimed())

    async def _end_audit_unless_claimed(self) -> None:
        await asyncio.sleep(CLAIM_S)
        if not self._auditor:
            await self.record_audit(None)

    def _start_task(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _remove_dead_gangs(self) -> None:
        """Remove gangs whose actors have died, and their resources.

        Only silent ones are looked up, since one process cannot look up a thousand per second.
        """
        while True:
            since = time.monotonic() - QUIET * self._poll_interval_s
            for gang, entry in [*self._gangs.items()]:
                if entry.heard_at >= since:
                    continue
                try:
                    is_dead = await asyncio.to_thread(has_died, entry.actor)
                except Exception:  # Ray raises various types if its head is busy
                    logger.exception("%s cannot be looked up", gang)
                    break
                if is_dead and self._gangs.get(gang) is entry:
                    await self.unregister_gang(gang)
            await asyncio.sleep(WATCH_S)

    async def _poll_cluster(self) -> None:
        job = ray.get_runtime_context().get_job_id()
        while True:
            try:
                # In a thread, so that calls of gangs are not blocked.
                self._look = await asyncio.to_thread(take_snapshot, job)
                await asyncio.to_thread(
                    self._remove_stale_groups, frozenset(entry.run for entry in self._gangs.values())
                )
                self._request_migrations()
            except Exception:  # Ray raises various types if its head is busy
                logger.exception("the cluster cannot be queried")
            await asyncio.sleep(LOOK_S)

    def _request_migrations(self) -> None:
        """Request that workers leave draining nodes."""
        for entry in self._gangs.values():
            lines = [line for node, line in self._look.going.items() if node in {entry.node, *entry.nodes}]
            if entry.workers and lines and not entry.leaving:
                entry.leaving = lines[0]
                entry.ended.set()

    def _is_surplus(self, gang: str) -> bool:
        """Return whether `gang` waits for room that other gangs use, or that an idle gang has already."""
        pending = self._look.get_group_names("PENDING")
        waiting = [name for name, entry in self._gangs.items() if entry.run in pending and not entry.group]
        if gang not in waiting:
            return False
        idle = sum(entry.group is not None and entry.mailbox.is_idle for entry in self._gangs.values())
        before = waiting.index(gang)
        full = self._holds is not None and len(self._gangs) - len(waiting) + before >= max(1, self._holds)
        return full or before < idle

    def _release_resources(self, entry: GangEntry) -> None:
        """Remove the placement group of a gang's workers."""
        entry.ended.set()
        entry.workers.clear()
        entry.nodes.clear()
        if entry.group is not None:
            remove_placement_group(entry.group)
            entry.group = None

    def _remove_stale_groups(self, runs: frozenset[str]) -> None:
        """Remove placement groups of other runs, whose controllers were killed or replaced."""
        for identity, (name, _) in self._look.groups.items():
            if name not in runs:
                remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(identity))))


# Each rank always waits in two calls, and Ray's default limit is 1,000 concurrent calls.
RegistryActor: Any = ray.remote(num_cpus=0, max_restarts=-1, max_concurrency=100_000)(Registry)  # type: ignore[call-overload]
