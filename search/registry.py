"""The actor that all gangs of a search share: their mailboxes, what each does, whether the search is to stop."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

from search.mailbox import Mailbox

WATCH_S = 1.0  # how long a gang that was killed keeps its resources, at most


@dataclass
class Entry:
    """A gang that lives.

    Attributes:
        group: What its `workers` run in, None while they start.
        before: The placement groups that existed when they began to start.
        ended: Set once these workers have ended, or the search is to stop.
    """

    mailbox: Mailbox = field(default_factory=Mailbox)
    group: PlacementGroup | None = None
    before: frozenset[str] = frozenset()
    workers: list[Any] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    doing: str = ""


class Registry:
    """Knows the gangs of a search.

    One actor for all of them, because a process for each would cost more start-up than all that passes through here.

    A placement group lives in Ray until its creator and the whole job have ended, and Train's own cleaner of groups
    whose controller was killed works only beside Ray's dashboard, on a machine with a single Ray. So the groups are
    kept track of here, and those of a gang that is gone are removed.

    Args:
        bundles: What the placement group of one gang holds.
    """

    def __init__(self, bundles: list[dict[str, float]]) -> None:
        self._bundles = bundles
        self._gangs: dict[str, Entry] = {}
        self._stopping = False
        self._watches: set[asyncio.Task[None]] = set()

    async def enter(self, gang: str, actor: Any) -> None:
        """A gang begins; `actor` is what dies with it."""
        self._gangs[gang] = Entry(before=frozenset(self._groups()))
        watch = asyncio.create_task(self._watch(gang, actor))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)

    async def hold(self, gang: str, group: PlacementGroup, worker: Any) -> None:
        """`worker` of `gang` has come up, in `group`."""
        if gang in self._gangs:
            self._gangs[gang].group = group
            self._gangs[gang].workers.append(worker)
        else:
            remove_placement_group(group)

    async def end_workers(self, gang: str) -> dict[int, str]:
        """Kill the workers of `gang`, whose stretch ends without a report; where the code of each rank stood."""
        entry = self._gangs[gang]
        stacks = entry.mailbox.stacks()
        await entry.mailbox.end("the trial before stalled")
        await entry.mailbox.drop()
        for worker in entry.workers:
            ray.kill(worker)
        return stacks

    async def end(self, gang: str, why: str) -> None:
        """The workers of `gang` end before they begin the stretch."""
        await self._gangs[gang].mailbox.end(why)

    async def restart(self, gang: str) -> dict[str, Any]:
        """The workers of `gang` have ended, new ones may start.

        Returns:
            `reached`, how far they were with the stretch; `expected`, why they were to end, or "".
        """
        entry = self._gangs[gang]
        reached, expected = await entry.mailbox.restart()
        self._free(entry)
        entry.ended = asyncio.Event()
        entry.before = frozenset(self._groups())
        self._sweep()
        return {"reached": reached, "expected": expected}

    async def leave(self, gang: str) -> None:
        """A gang ends."""
        if gang in self._gangs:
            self._free(self._gangs.pop(gang))

    async def poll(self, gang: str, doing: str) -> dict[str, Any]:
        """Note what `gang` is doing.

        Returns:
            `stopping`, whether the search is to stop; `up`, whether its workers are; `waiting_s` and `stalled_s`, for
            how many seconds they have not taken the stretch, or got nowhere with it.
        """
        entry = self._gangs[gang]
        entry.doing = doing
        if entry.group is None:
            self._sweep()
        waiting_s, stalled_s = entry.mailbox.idle_s()
        up = entry.group is not None
        return {"stopping": self._stopping, "up": up, "waiting_s": waiting_s, "stalled_s": stalled_s}

    async def doing(self) -> tuple[list[str], int]:
        """What each gang is doing, and how many of them wait for room in the cluster."""
        pending = sum(row["state"] == "PENDING" for row in self._groups().values())
        doing = []
        for entry in self._gangs.values():
            if entry.group is None:
                doing.append(f"workers are starting for {entry.doing}")
            else:
                doing.append(entry.doing if entry.mailbox.begun else "a gang is idle")
        return doing, pending

    async def stop(self) -> None:
        """The search is to stop."""
        self._stopping = True
        for entry in self._gangs.values():
            entry.ended.set()

    async def stopped(self, gang: str) -> bool:
        """Wait until the search is to stop, or the present workers of `gang` have ended; whether it is the former."""
        if not self._stopping:
            await self._gangs[gang].ended.wait()
        return self._stopping

    # Of one gang: see Mailbox.

    async def assign(self, gang: str, stretch: dict[str, Any]) -> int:
        return await self._gangs[gang].mailbox.assign(stretch)

    async def drop(self, gang: str) -> None:
        await self._gangs[gang].mailbox.drop()

    async def close(self, gang: str) -> bool:
        """Let the workers of `gang` return; whether they are up, and so will."""
        if gang not in self._gangs:
            return False
        await self._gangs[gang].mailbox.close()
        return self._gangs[gang].group is not None

    async def next(self, gang: str, seen: int) -> tuple[int, dict[str, Any] | None]:
        return await self._gangs[gang].mailbox.next(seen)

    async def put(self, gang: str, turn: int, report: dict[str, Any]) -> None:
        await self._gangs[gang].mailbox.put(turn, report)

    async def get(self, gang: str) -> list[dict[str, Any]]:
        return await self._gangs[gang].mailbox.get()

    async def beat(self, gang: str, turn: int, rank: int, progress: int, stack: str) -> None:
        self._gangs[gang].mailbox.beat(turn, rank, progress, stack)

    async def _watch(self, gang: str, actor: Any) -> None:
        """Remove what `gang` leaves behind once its actor has died."""
        while gang in self._gangs:
            try:
                await actor.__ray_ready__.remote()
            except ActorUnavailableError:  # for the moment
                pass
            except RayError:  # it died; of memory, that is no RayActorError
                await self.leave(gang)
                self._sweep()
            await asyncio.sleep(WATCH_S)

    def _free(self, entry: Entry) -> None:
        """Remove what the workers of a gang ran in."""
        entry.ended.set()
        entry.workers.clear()
        if entry.group is not None:
            remove_placement_group(entry.group)
            entry.group = None

    def _sweep(self) -> None:
        """Remove the placement groups that no gang has: their controller was killed before its workers came up.

        A group that is younger than the start of a gang's workers may be theirs, and is left alone.
        """
        left = self._groups().keys() - {entry.group.id.hex() for entry in self._gangs.values() if entry.group}
        for entry in self._gangs.values():
            if entry.group is None:
                left &= entry.before
        for name in left:
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(name))))

    def _groups(self) -> dict[str, Any]:
        """The placement groups of gangs' workers in this job, by id: the job is the end of it."""
        job = ray.get_runtime_context().get_job_id()
        return {
            name: row
            for name, row in placement_group_table().items()
            if name.endswith(job) and row["state"] != "REMOVED" and list(row["bundles"].values()) == self._bundles
        }


# Each rank waits in two calls for as long as it lives; Ray's own limit is 1,000 calls at a time.
RegistryActor: Any = ray.remote(num_cpus=0, max_restarts=-1, max_concurrency=100_000)(Registry)  # type: ignore[call-overload]
