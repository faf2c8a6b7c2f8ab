"""What the registry makes of what it sees, without Ray."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from searchlight.search.execution import gang_registry as module
from searchlight.search.execution import mailbox
from searchlight.search.execution.cluster.snapshot import ClusterSnapshot
from searchlight.search.execution.gang_registry import Registry
from searchlight.trainables.worker.messages import EpochReport, SegmentAssignment
from tests.search.execution.asynchronous import asynchronous

SEGMENT = SegmentAssignment(0, {}, 0, 3, "folder", "a")


class World:
    """Stands in for Ray: what is looked at, which placement groups were removed, and which actors are dead."""

    def __init__(self):
        self.look, self.removed = ClusterSnapshot(), []
        self.dead, self.looked_up = set(), asyncio.Queue()

    def take_snapshot(self, job):
        self.loop.call_soon_threadsafe(self.taken.put_nowait, None)
        return self.look

    def has_died(self, actor):
        self.loop.call_soon_threadsafe(self.looked_up.put_nowait, actor)
        return actor in self.dead

    async def see(self, **look):
        """Wait until the registry has seen `look`."""
        self.look, self.taken = ClusterSnapshot(**look), asyncio.Queue()
        for _ in range(3):  # the first may be of before, and the third comes after all that follows from the second
            await self.taken.get()

    async def enter(self, gangs, up=0):
        """A registry of so many gangs, each with a segment, of which some have their workers up."""
        self.loop, self.taken = asyncio.get_running_loop(), asyncio.Queue()
        found = Registry({"CPU": 1.0})
        for number in range(gangs):
            await found.register_gang(f"g{number}", f"actor-{number}", "head", f"gang-{number}")
            await found.assign(f"g{number}", SEGMENT)
            if number < up:
                await found.register_worker(f"g{number}", f"gang-{number}", f"group-{number}", ["w"], f"node-{number}")
        return found


@pytest.fixture
def world(monkeypatch):
    made = World()
    monkeypatch.setattr(module, "take_snapshot", made.take_snapshot)
    monkeypatch.setattr(module, "has_died", made.has_died)
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    monkeypatch.setattr(module, "WATCH_S", 0.001)
    monkeypatch.setattr(module, "SURPLUS_S", 0.0)
    monkeypatch.setattr(module, "remove_placement_group", made.removed.append)
    monkeypatch.setattr(module, "PlacementGroup", lambda identity: identity)
    monkeypatch.setattr(module.ray, "PlacementGroupID", lambda identity: identity.hex())
    monkeypatch.setattr(module.ray, "get_runtime_context", lambda: SimpleNamespace(get_job_id=lambda: "01"))
    return made


async def surplus(found, *gangs):
    return [(await found.poll(f"g{number}", "")).surplus for number in gangs]


def pending(*numbers):
    return {f"{number:02x}": (f"gang-{number}", "PENDING") for number in numbers}


@asynchronous
async def test_gang_is_removed_only_once_it_is_silent_and_dead(world, monkeypatch):
    found = await world.enter(3, up=1)
    world.dead = {"actor-0", "actor-1"}
    await world.see()
    assert (world.looked_up.empty(), world.removed) == (True, [])
    monkeypatch.setattr(module, "QUIET", 0.0)
    looked_up = [await world.looked_up.get() for _ in range(4)]
    assert looked_up == ["actor-0", "actor-1", "actor-2", "actor-2"]
    assert world.removed == ["group-0"]
    assert len((await found.statuses())[0]) == 1


@asynchronous
@pytest.mark.parametrize(("gangs", "interval"), [(2, 1.0), (200, 1.0), (500, 2.5)])
async def test_gangs_poll_less_often_if_there_are_many(world, gangs, interval):
    found = await world.enter(gangs)
    assert (await found.poll("g1", "")).next_poll_s == interval


@asynchronous
async def test_gang_without_workers_says_what_they_start_for(world):
    registry = await world.enter(2)
    await registry.poll("g0", "trial 0")
    doing, _ = await registry.statuses()
    assert doing == ["workers are starting for trial 0", "workers are starting"]


@asynchronous
async def test_stall_limit_follows_from_the_longest_epoch(world, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(mailbox, "time", SimpleNamespace(monotonic=lambda: clock.now, time=lambda: 0.0))
    found = await world.enter(2, up=2)
    assert (await found.poll("g1", "")).stall_limit_s is None
    turn, _ = await found.wait_for_segment("g0", 0)
    for epoch, limit in enumerate([5.0, 1000.0, 7.0], start=1):
        clock.now += limit
        await found.put("g0", turn, EpochReport(epoch, {}, None, {}))
        assert (await found.poll("g1", "")).stall_limit_s == (1800.0 if epoch == 1 else 10_000.0)


@asynchronous
async def test_newest_gangs_beyond_the_capacity_are_surplus(world):
    found = await world.enter(4, up=1)
    await world.see(groups=pending(1, 2, 3))
    assert await surplus(found, 1, 2, 3) == [False] * 3, "the capacity is unknown"
    await found.set_capacity(3)
    assert await surplus(found, 0, 1, 2, 3) == [False, False, False, True]
    await world.see(groups={**pending(1, 2), "03": ("gang-3", "CREATED")})
    assert await surplus(found, 3) == [False], "its workers start"


@asynchronous
async def test_one_gang_waits_on_a_cluster_that_holds_none(world):
    found = await world.enter(2)
    await world.see(groups=pending(0, 1))
    await found.set_capacity(0)
    assert await surplus(found, 0, 1) == [False, True]


@asynchronous
async def test_waiting_gang_is_surplus_while_another_one_is_idle(world):
    found = await world.enter(3, up=1)
    await found.set_capacity(9)
    await world.see(groups=pending(1, 2))
    assert await surplus(found, 1, 2) == [False, False]
    await found.drop("g0")
    assert await surplus(found, 1, 2) == [True, False]


@asynchronous
async def test_placement_groups_of_no_gang_are_removed(world):
    found = await world.enter(2)
    await found.restart("g0", "gang-7")
    await found.unregister_gang("g1")
    await world.see(groups={**pending(0, 1, 7), "08": ("gang-of-a-dead-one", "CREATED")})
    assert set(world.removed) == {"00", "01", "08"}


@asynchronous
async def test_only_the_next_workers_are_synchronous(world):
    found = await world.enter(1)
    await found.end_gang("g0", "an error of CUDA", True)
    restarted = [await found.restart("g0", run) for run in ("gang-7", "gang-8")]
    assert [ended.is_synchronous for ended in restarted] == [True, False]


@asynchronous
async def test_late_workers_are_refused_and_their_groups_removed(world):
    found = await world.enter(1)
    await found.restart("g0", "gang-7")
    assert not await found.register_worker("g0", "gang-0", "group-0", ["worker"], "node-0")
    assert await found.register_worker("g0", "gang-7", "group-7", ["worker"], "node-7")
    await found.unregister_gang("g0")
    assert not await found.register_worker("g0", "gang-7", "group-8", ["worker"], "node-7")
    assert world.removed == ["group-0", "group-7", "group-8"]


@asynchronous
async def test_workers_hear_that_their_node_or_gang_goes_away(world):
    found = await world.enter(3, up=2)
    told = [asyncio.create_task(found.wait_for_stop(f"g{number}")) for number in range(2)]
    await world.see(going={"node-1": "node 10.0.0.3 is going away"})
    assert [task.done() for task in told] == [False, True]
    assert await told[1] == (False, "node 10.0.0.3 is going away", 0)
    restarted = await found.restart("g1", "gang-9")
    assert (restarted.leaving, restarted.moves) == ("node 10.0.0.3 is going away", False)
    await world.see(going={"head": "node 10.0.0.1 is going away"})
    assert await told[0] == (False, "node 10.0.0.1 is going away", 0)
    assert (await found.restart("g0", "gang-8")).moves
    await found.stop()
    assert (await found.wait_for_stop("g0"))[0], "that the search stops goes before"


@asynchronous
async def test_workers_hear_that_their_trial_is_halted(world):
    found = await world.enter(2, up=2)
    turn = await found.assign("g1", replace(SEGMENT, trial=7))
    told = [asyncio.create_task(found.wait_for_stop(f"g{number}")) for number in range(2)]
    await asyncio.sleep(0)
    await found.halt_trial(7)
    assert await told[1] == (False, "", turn)
    assert not told[0].done(), "it has another trial"
    again = asyncio.create_task(found.wait_for_stop("g1", turn))
    await found.restart("g1", "gang-9")
    assert (await again)[2] == turn + 1, "new workers get the halted segment in a new turn"
    told[0].cancel()


@asynchronous
async def test_workers_of_idle_gangs_return_until_a_segment_comes(world):
    found = await world.enter(2, up=2)
    await found.drop("g0")
    workers = [asyncio.create_task(found.wait_for_segment(f"g{number}", 9)) for number in range(2)]
    await asyncio.sleep(0)
    await found.free_idle_gangs()
    assert (await workers[0])[1] is None
    assert (await found.wait_for_segment("g0", 9))[1] is None, "another rank may ask later"
    assert not workers[1].done(), "they train"
    turn = await found.assign("g0", SEGMENT)
    ended = await found.restart("g0", "gang-9")
    assert ended.expected == "the former ones had nothing to do, and left their resources"
    assert await found.wait_for_segment("g0", turn) == (turn + 1, SEGMENT)
    workers[1].cancel()


@asynchronous
async def test_idle_gang_stays_if_its_trial_is_about_to_go_on(world):
    found = await world.enter(3, up=3)
    for number in (0, 1):
        turn = await found.assign(f"g{number}", replace(SEGMENT, trial=7 + number))
        await found.put(f"g{number}", turn, EpochReport(1, {}, None, {}, done=True))
    await found.assign("g2", replace(SEGMENT, trial=8))
    await found.free_idle_gangs(frozenset({7, 8}))
    assert (await found.wait_for_segment("g1", 99))[1] is None, "its trial goes on in g2"
    turn = await found.assign("g0", replace(SEGMENT, trial=7))
    assert (await found.wait_for_segment("g0", 0))[0] == turn


@asynchronous
async def test_trial_is_halted_once_if_its_gang_still_starts(world):
    found = await world.enter(1, up=1)
    await found.halt_trial(7)
    for number, halted in ((8, False), (7, True), (7, False)):
        turn = await found.assign("g0", replace(SEGMENT, trial=number))
        _, _, last = await found.wait_for_stop("g0", -1)  # at once
        assert (last == turn) == halted


@asynchronous
async def test_packed_gangs_ask_for_one_node_until_it_is_full(world):
    nodes = {"a": {"CPU": 2.0}, "b": {"CPU": 2.0}}
    found = await world.enter(5)
    await world.see(total=nodes, free=nodes)
    assert [await found.choose_node(f"g{number}") for number in range(3)] == ["a", "a", "b"]
    created = {f"0{number}": (f"gang-{number}", "CREATED") for number in range(3)}
    await world.see(groups=created, total=nodes, free={"a": {"CPU": 0.0}, "b": {"CPU": 1.0}})
    assert [await found.choose_node(f"g{number}") for number in (3, 4)] == ["b", ""]


@asynchronous
async def test_wait_for_an_audit_ends_with_the_search():
    found = Registry({"CPU": 1.0})
    waiting = asyncio.create_task(found.wait_for_audit())
    await found.record_audit(None)
    await found.record_audit({"findings": []})  # of a worker that ends later
    assert await waiting is None


@asynchronous
async def test_audit_is_what_the_worker_found():
    found = Registry({"CPU": 1.0})
    await found.record_audit({"findings": []})
    await found.record_audit(None)  # the end of the search
    assert await found.wait_for_audit() == {"findings": []}


@asynchronous
async def test_audit_of_lost_workers_is_done_by_the_next(world):
    found = await world.enter(3)
    assert [await found.claim_audit(gang) for gang in ("g0", "g1")] == [True, False]
    await found.unregister_gang("g1")
    assert not await found.claim_audit("g2"), "g0 audits"
    await found.restart("g0", "gang-7")
    assert [await found.claim_audit(gang) for gang in ("g2", "g0")] == [True, False]
    await found.record_audit({"findings": []})
    await found.unregister_gang("g2")
    assert not await found.claim_audit("g0"), "there is a result"
    assert await found.wait_for_audit() == {"findings": []}


@asynchronous
async def test_audit_ends_with_the_second_loss_of_its_workers(world):
    found = await world.enter(2)
    for run in ("gang-7", "gang-8"):
        assert await found.claim_audit("g0")
        await found.restart("g0", run)
    assert await found.wait_for_audit() is None
    assert not await found.claim_audit("g1")


@pytest.mark.parametrize("is_claimed", [False, True])
@asynchronous
async def test_audit_of_lost_workers_ends_if_no_others_start(world, monkeypatch, is_claimed):
    monkeypatch.setattr(module, "CLAIM_S", 0.0)
    found = await world.enter(2)
    assert await found.claim_audit("g0")
    await found.unregister_gang("g0")
    if is_claimed:
        assert await found.claim_audit("g1")
        await asyncio.sleep(0.01)
        await found.record_audit({"findings": []})
    async with asyncio.timeout(60):
        assert await found.wait_for_audit() == ({"findings": []} if is_claimed else None)
