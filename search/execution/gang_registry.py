"""The actor that all gangs of a search share: their mailboxes, what each does, whether the search is to stop."""

import asyncio
import logging
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.placement_group import PlacementGroup, remove_placement_group

from search.execution.cluster.snapshot import ClusterSnapshot, fullest_fitting_node, take_snapshot
from search.execution.mailbox import Mailbox
from trainables.worker.messages import Delivery, EndedWorkers, EpochReport, GangStatus, SegmentAssignment, SegmentEnd

logger = logging.getLogger(__name__)
QUIET_S = 1.5  # a gang that has not asked anything for so long is asked whether it lives
WATCH_S = 1.0  # how often that is looked at: a gang that was killed keeps its resources for both together at most
LOOK_S = 1.0  # how long it goes unnoticed that a node is going away
SURPLUS_S = 5.0  # how long a gang waits for room before it is asked whether there can be any


@dataclass
class GangEntry:
    """A gang that lives.

    Attributes:
        node: That its own actor is on.
        run: Of its present workers: the name of their placement group.
        group: What its `workers` run in, None while they start.
        nodes: That they are on.
        planned: The node that their group asked for.
        leaving: Why the workers are to go on elsewhere, or "".
        ended: Set once these workers have ended or are to leave, or the search is to stop.
        heard_at: When it last asked what it is to do, which it does every second while it waits for reports.
    """

    node: str
    run: str
    mailbox: Mailbox = field(default_factory=Mailbox)
    group: PlacementGroup | None = None
    workers: list[Any] = field(default_factory=list)
    nodes: set[str] = field(default_factory=set)
    planned: str = ""
    leaving: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    doing: str = ""
    heard_at: float = -math.inf


class Registry:
    """Knows the gangs of a search.

    One actor for all of them, because a process for each would cost more start-up than all that passes through here.

    A placement group lives in Ray until its creator and the whole job have ended, and Train's own cleaner of groups
    whose controller was killed works only beside Ray's dashboard, on a machine with a single Ray. So the groups are
    kept track of here, and those of a gang that is gone are removed.

    What all gangs must know of the cluster is looked at here, once a second for all of them.

    Args:
        need: What the workers of one gang need together.
    """

    def __init__(self, need: dict[str, float]) -> None:
        self._need = need
        self._holds: int | None = None
        self._gangs: dict[str, GangEntry] = {}
        self._stopping = False
        self._look = ClusterSnapshot()
        self._tasks: set[asyncio.Task[None]] = set()
        self._auditor_chosen = False
        self._audit: asyncio.Future[dict[str, Any] | None] | None = None

    async def register_gang(self, gang: str, actor: Any, node: str, run: str) -> None:
        """Add a gang on `node`. `actor` dies with it, `run` is the name of its workers' placement group."""
        self._gangs[gang] = GangEntry(node, run)
        if not self._tasks:
            self._start_task(self._poll_cluster())
        self._start_task(self._watch(gang, actor))

    async def choose_node(self, gang: str) -> str:
        """Return the fullest node that has room for all workers of `gang`, or "" if no node has."""
        seen = self._look.get_group_names("CREATED")
        taken = Counter(entry.planned for entry in self._gangs.values() if entry.run not in seen)
        node = fullest_fitting_node(self._look, self._need, taken)
        if gang in self._gangs:
            self._gangs[gang].planned = node
        return node

    async def register_worker(self, gang: str, run: str, group: PlacementGroup, worker: Any, node: str) -> bool:
        """Add `worker`, which has come up for `run` on `node` in `group`, and return whether the gang still needs it.

        If the worker's controller was killed, others replace it, and one segment must not be trained twice.
        """
        entry = self._gangs.get(gang)
        if entry is None or entry.run != run:
            remove_placement_group(group)
            return False
        entry.group = group
        entry.workers.append(worker)
        entry.nodes.add(node)
        self._request_migrations()
        return True

    async def end_workers(self, gang: str) -> dict[int, str]:
        """Kill the workers of `gang`, whose segment ends without a report, and return the stack of each rank."""
        entry = self._gangs[gang]
        stacks = entry.mailbox.get_stacks()
        await entry.mailbox.mark_ending("the trial before stalled")
        await entry.mailbox.drop()
        for worker in entry.workers:
            ray.kill(worker)
        return stacks

    async def end_gang(self, gang: str, why: str) -> None:
        """Note that the workers of `gang` end before they begin the next segment."""
        await self._gangs[gang].mailbox.mark_ending(why)

    async def restart(self, gang: str, run: str) -> EndedWorkers:
        """Let new workers of `gang` start as `run`, since the old ones have ended."""
        entry = self._gangs[gang]
        reached, expected = await entry.mailbox.restart()
        leaving, entry.leaving = entry.leaving, ""
        self._release_resources(entry)
        entry.ended = asyncio.Event()
        entry.run, entry.planned = run, ""
        return EndedWorkers(reached, expected, leaving, moves=entry.node in self._look.going)

    async def unregister_gang(self, gang: str) -> None:
        """Remove a gang that ends."""
        if gang in self._gangs:
            self._release_resources(self._gangs.pop(gang))

    async def poll(self, gang: str, doing: str) -> GangStatus:
        """Note what `gang` is doing, and return what it has to know."""
        entry = self._gangs[gang]
        entry.doing, entry.heard_at = doing, time.monotonic()
        waiting_s, stalled_s = entry.mailbox.get_idle_s()
        surplus = waiting_s > SURPLUS_S and self._is_surplus(gang)
        return GangStatus(self._stopping, entry.group is not None, surplus, waiting_s, stalled_s)

    async def set_capacity(self, gangs: int) -> None:
        """Set how many gangs the cluster holds, or may grow to hold."""
        self._holds = gangs

    async def statuses(self) -> tuple[list[str], int]:
        """Return what each gang is doing, and how many gangs wait for room in the cluster."""
        doing = []
        for entry in self._gangs.values():
            if entry.group is None:
                doing.append(f"workers are starting for {entry.doing}")
            else:
                doing.append(entry.doing if entry.mailbox.is_started else "a gang is idle")
        return doing, len(self._look.get_group_names("PENDING"))

    async def stop(self) -> None:
        """Stop the search."""
        self._stopping = True
        for entry in self._gangs.values():
            entry.ended.set()

    async def wait_for_stop(self, gang: str) -> tuple[bool, str]:
        """Wait until the present workers of `gang` are to end, or have ended.

        Returns:
            Whether the search is to stop, and why the workers are to leave their nodes, or "".
        """
        entry = self._gangs[gang]
        if not self._stopping and not entry.leaving:
            await entry.ended.wait()
        return self._stopping, entry.leaving

    async def claim_audit(self) -> bool:
        """Return whether the caller is to audit the task: the first worker that asks."""
        is_first, self._auditor_chosen = not self._auditor_chosen, True
        return is_first

    async def record_audit(self, audit: dict[str, Any] | None) -> None:
        """Take the audit of the task, as JSON. None: nobody is to wait for it any more."""
        if not self._get_audit().done():
            self._get_audit().set_result(audit)

    async def wait_for_audit(self) -> dict[str, Any] | None:
        """Wait for the audit of the task, and return it, or None if the search ends without."""
        return await self._get_audit()

    # Of one gang: see Mailbox.

    async def assign(self, gang: str, segment: SegmentAssignment) -> int:
        return await self._gangs[gang].mailbox.assign(segment)

    async def drop(self, gang: str) -> None:
        await self._gangs[gang].mailbox.drop()

    async def close(self, gang: str) -> bool:
        """Let the workers of `gang` return, and return whether they are up, so that they will."""
        if gang not in self._gangs:
            return False
        await self._gangs[gang].mailbox.close()
        return self._gangs[gang].group is not None

    async def wait_for_segment(self, gang: str, seen: int) -> tuple[int, SegmentAssignment | None]:
        return await self._gangs[gang].mailbox.wait_for_segment(seen)

    async def put(self, gang: str, turn: int, report: EpochReport | SegmentEnd, ending: str = "") -> None:
        await self._gangs[gang].mailbox.put(turn, report, ending)

    async def get(self, gang: str) -> list[Delivery]:
        return await self._gangs[gang].mailbox.get()

    async def record_heartbeat(self, gang: str, turn: int, rank: int, progress: int, stack: str) -> None:
        self._gangs[gang].mailbox.record_heartbeat(turn, rank, progress, stack)

    def _get_audit(self) -> "asyncio.Future[dict[str, Any] | None]":
        self._audit = self._audit or asyncio.get_running_loop().create_future()
        return self._audit

    def _start_task(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self, gang: str, actor: Any) -> None:
        """Remove `gang` and its resources once its actor has died.

        The actor is asked only when it is quiet: a thousand answers a second are more than one process can take.
        """
        while gang in self._gangs:
            if time.monotonic() - self._gangs[gang].heard_at < QUIET_S:
                await asyncio.sleep(WATCH_S)
                continue
            try:
                await actor.__ray_ready__.remote()
            except ActorUnavailableError:  # for the moment
                pass
            except RayError:  # it died; of memory, that is no RayActorError
                await self.unregister_gang(gang)
            await asyncio.sleep(WATCH_S)

    async def _poll_cluster(self) -> None:
        job = ray.get_runtime_context().get_job_id()
        while True:
            try:
                # In a thread: what the gangs say goes on meanwhile, however many groups there are.
                self._look = await asyncio.to_thread(take_snapshot, job)
                await asyncio.to_thread(
                    self._remove_stale_groups, frozenset(entry.run for entry in self._gangs.values())
                )
                self._request_migrations()
            except Exception:  # of whatever type, if Ray's head is busy: there is another look to come
                logger.exception("the cluster cannot be looked at")
            await asyncio.sleep(LOOK_S)

    def _request_migrations(self) -> None:
        """Let workers leave the nodes that are going away."""
        for entry in self._gangs.values():
            lines = [line for node, line in self._look.going.items() if node in {entry.node, *entry.nodes}]
            if entry.workers and lines and not entry.leaving:
                entry.leaving = lines[0]
                entry.ended.set()

    def _is_surplus(self, gang: str) -> bool:
        """Return whether `gang` waits for room that other gangs fill, or that an idle gang has already."""
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
        """Remove the placement groups of all but these runs: their controller was killed or replaced."""
        for identity, (name, _) in self._look.groups.items():
            if name not in runs:
                remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(identity))))


# Each rank waits in two calls for as long as it lives; Ray's own limit is 1,000 calls at a time.
RegistryActor: Any = ray.remote(num_cpus=0, max_restarts=-1, max_concurrency=100_000)(Registry)  # type: ignore[call-overload]
