"""The actor that all gangs of a search share: their mailboxes, what each does, whether the search is to stop."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

from search.mailbox import Mailbox

WATCH_S = 1.0  # how long a gang that was killed keeps its resources, at most


@dataclass
class Entry:
    """A gang that lives. `group` is what its `workers` run in, None while they start."""

    mailbox: Mailbox = field(default_factory=Mailbox)
    group: PlacementGroup | None = None
    workers: list[Any] = field(default_factory=list)
    worn: str = ""
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
        self._stopping = asyncio.Event()
        self._watches: set[asyncio.Task[None]] = set()

    async def enter(self, gang: str, actor: Any) -> None:
        """A gang begins; `actor` is what dies with it."""
        self._gangs[gang] = Entry()
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
        """Kill the workers of `gang`; where the code of each rank stood."""
        for worker in self._gangs[gang].workers:
            ray.kill(worker)
        return self._gangs[gang].mailbox.stacks()

    async def recycle(self, gang: str, worn: str) -> None:
        """The workers of `gang` end before they begin the stretch, for the reason `worn`."""
        self._gangs[gang].worn = worn

    async def restart(self, gang: str) -> dict[str, Any]:
        """The workers of `gang` have ended, new ones may start.

        Returns:
            `came_up`, whether the old ones did; `begun`, whether they took the stretch; `worn`, why they wanted to end.
        """
        entry = self._gangs[gang]
        worn, entry.worn = entry.worn, ""
        came_up = self._free(entry)
        self._sweep(gang)
        return {"came_up": came_up, "begun": await entry.mailbox.restart(), "worn": worn}

    async def leave(self, gang: str) -> None:
        """A gang ends."""
        if gang in self._gangs:
            self._free(self._gangs.pop(gang))

    async def poll(self, gang: str, doing: str) -> dict[str, Any]:
        """Note what `gang` is doing.

        Returns:
            `stopping`, whether the search is to stop; `up`, whether its workers are; `stalled_s`, for how many seconds
            they have got nowhere.
        """
        entry = self._gangs[gang]
        entry.doing = doing
        up = entry.group is not None
        return {"stopping": self._stopping.is_set(), "up": up, "stalled_s": entry.mailbox.stalled_s()}

    async def doing(self) -> tuple[list[str], int]:
        """What each gang is doing, and how many of them wait for room in the cluster."""
        pending = sum(row["state"] == "PENDING" for row in self._groups().values())
        starting = "workers are starting for "
        return [f"{'' if entry.group else starting}{entry.doing}" for entry in self._gangs.values()], pending

    async def stop(self) -> None:
        """The search is to stop."""
        self._stopping.set()

    async def stopped(self) -> None:
        """Wait until the search is to stop."""
        await self._stopping.wait()

    # Of one gang: see Mailbox.

    async def assign(self, gang: str, stretch: dict[str, Any]) -> None:
        await self._gangs[gang].mailbox.assign(stretch)

    async def close(self, gang: str) -> None:
        await self._gangs[gang].mailbox.close()

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
            except RayActorError:
                await self.leave(gang)
                self._sweep()
            await asyncio.sleep(WATCH_S)

    def _free(self, entry: Entry) -> bool:
        """Remove what the workers of a gang ran in; whether there was something."""
        group, entry.group = entry.group, None
        entry.workers.clear()
        if group is not None:
            remove_placement_group(group)
        return group is not None

    def _sweep(self, idle: str = "") -> None:
        """Remove the placement groups that no gang has: their controller was killed before its workers came up.

        Args:
            idle: A gang that has none now. While another one starts, a group may be its own, and all are left alone.
        """
        if any(entry.group is None for gang, entry in self._gangs.items() if gang != idle):
            return
        held = {entry.group.id.hex() for entry in self._gangs.values() if entry.group is not None}
        for name in self._groups().keys() - held:
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(name))))

    def _groups(self) -> dict[str, Any]:
        """The placement groups of gangs' workers in this job, by id: the job is the end of it."""
        job = ray.get_runtime_context().get_job_id()
        return {
            name: row
            for name, row in placement_group_table().items()
            if name.endswith(job) and row["state"] != "REMOVED" and list(row["bundles"].values()) == self._bundles
        }


RegistryActor: Any = ray.remote(num_cpus=0, max_restarts=-1)(Registry)
