"""The registry without Ray: what it makes of what it sees."""

import asyncio
from types import SimpleNamespace

import pytest

from search.execution import gang_registry as module
from search.execution.cluster.snapshot import ClusterSnapshot
from search.execution.gang_registry import Registry
from trainables.worker.messages import SegmentAssignment

SEGMENT = SegmentAssignment(0, {}, 0, 3, "folder", "a")


@pytest.fixture
def world(monkeypatch):
    """Stands in for Ray: what is looked at, which placement groups were removed, a gang's actor that lives for ever."""
    seen = SimpleNamespace(look=ClusterSnapshot(), removed=[])
    monkeypatch.setattr(module, "take_snapshot", lambda job: seen.look)
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr(module, "SURPLUS_S", 0.0)
    monkeypatch.setattr(module, "remove_placement_group", seen.removed.append)
    monkeypatch.setattr(module, "PlacementGroup", lambda identity: identity)
    monkeypatch.setattr(module.ray, "PlacementGroupID", lambda identity: identity.hex())
    monkeypatch.setattr(module.ray, "get_runtime_context", lambda: SimpleNamespace(get_job_id=lambda: "01"))
    ready = SimpleNamespace(remote=lambda: asyncio.Event().wait())
    seen.actor = SimpleNamespace(__ray_ready__=ready)
    return seen


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario, timeout=10))


async def seen_again():
    await asyncio.sleep(0.1)


async def surplus(found, *gangs):
    return [(await found.poll(gang, "")).surplus for gang in gangs]


async def entered(world, gangs, up=0):
    """A registry of so many gangs, each with a segment, of which some have their workers up."""
    found = Registry({"CPU": 1.0})
    for number in range(gangs):
        await found.register_gang(f"g{number}", world.actor, "head", f"gang-{number}")
        await found.assign(f"g{number}", SEGMENT)
        if number < up:
            await found.register_worker(f"g{number}", f"gang-{number}", f"group-{number}", "worker", f"node-{number}")
    await asyncio.sleep(0.02)
    return found


def pending(*numbers):
    return {f"{number:02x}": (f"gang-{number}", "PENDING") for number in numbers}


def test_gangs_for_which_the_cluster_has_no_room_are_surplus_the_newest_first(world):
    async def scenario():
        found = await entered(world, 4, up=1)
        world.look = ClusterSnapshot(groups=pending(1, 2, 3))
        await seen_again()
        unknown = await surplus(found, "g1", "g2", "g3")
        await found.set_capacity(3)
        return unknown, await surplus(found, "g0", "g1", "g2", "g3")

    assert run(scenario()) == ([False] * 3, [False, False, False, True])


def test_one_gang_waits_on_a_cluster_that_holds_none(world):
    async def scenario():
        found = await entered(world, 2)
        world.look = ClusterSnapshot(groups=pending(0, 1))
        await found.set_capacity(0)
        await seen_again()
        return await surplus(found, "g0", "g1")

    assert run(scenario()) == [False, True]


def test_a_gang_whose_workers_have_room_and_start_is_no_surplus(world):
    async def scenario():
        found = await entered(world, 2, up=1)
        await found.set_capacity(1)
        world.look = ClusterSnapshot(groups={"01": ("gang-1", "CREATED")})
        await seen_again()
        return await surplus(found, "g1")

    assert run(scenario()) == [False]


def test_a_gang_that_waits_gives_its_trial_to_one_that_has_workers_and_nothing_to_do(world):
    async def scenario():
        found = await entered(world, 3, up=1)
        await found.set_capacity(9)
        world.look = ClusterSnapshot(groups=pending(1, 2))
        await seen_again()
        before = await surplus(found, "g1", "g2")
        await found.drop("g0")
        return before, await surplus(found, "g1", "g2")

    assert run(scenario()) == ([False, False], [True, False])


def test_what_no_gang_has_is_removed(world):
    async def scenario():
        found = await entered(world, 2)
        await found.restart("g0", "gang-7")
        await found.unregister_gang("g1")
        world.look = ClusterSnapshot(groups={**pending(0, 1, 7), "08": ("gang-of-a-dead-one", "CREATED")})
        await seen_again()
        return found

    run(scenario())
    assert set(world.removed) == {"00", "01", "08"}


def test_workers_of_a_controller_that_was_killed_come_too_late_and_get_nothing_to_do(world):
    async def scenario():
        found = await entered(world, 1)
        await found.restart("g0", "gang-7")
        late = await found.register_worker("g0", "gang-0", "group-0", "worker", "node-0")
        new = await found.register_worker("g0", "gang-7", "group-7", "worker", "node-7")
        await found.unregister_gang("g0")
        return late, new, await found.register_worker("g0", "gang-7", "group-8", "worker", "node-7")

    assert run(scenario()) == (False, True, False)
    assert world.removed == ["group-0", "group-7", "group-8"]


def test_workers_hear_that_their_node_goes_away_or_that_of_their_gang_and_others_do_not(world):
    async def scenario():
        found = await entered(world, 3, up=2)
        told = [asyncio.create_task(found.wait_for_stop(f"g{number}")) for number in range(2)]
        world.look = ClusterSnapshot(going={"node-1": "node 10.0.0.3 is going away"})
        await seen_again()
        alone = [task.done() for task in told]
        gone = (await told[1], await found.restart("g1", "gang-9"))
        world.look = ClusterSnapshot(going={"head": "node 10.0.0.1 is going away"})
        return alone, gone, await told[0], await found.restart("g0", "gang-8")

    alone, (elsewhere, restarted), all_go, moved = run(scenario())
    assert alone == [False, True]
    assert elsewhere == (False, "node 10.0.0.3 is going away")
    assert (restarted.leaving, restarted.moves) == ("node 10.0.0.3 is going away", False)
    assert all_go == (False, "node 10.0.0.1 is going away")
    assert moved.moves


def test_a_search_that_stops_goes_before_a_node_that_goes_away(world):
    async def scenario():
        found = await entered(world, 1, up=1)
        world.look = ClusterSnapshot(going={"node-0": "node 10.0.0.3 is going away"})
        await seen_again()
        await found.stop()
        return await found.wait_for_stop("g0")

    assert run(scenario())[0]


def test_gangs_that_are_packed_ask_for_one_node_until_it_is_full(world):
    async def scenario():
        nodes = {"a": {"CPU": 2.0}, "b": {"CPU": 2.0}}
        world.look = ClusterSnapshot(total=nodes, free=nodes)
        found = await entered(world, 5)
        await seen_again()
        first = [await found.choose_node(f"g{number}") for number in range(3)]
        created = {f"0{number}": (f"gang-{number}", "CREATED") for number in range(3)}
        world.look = ClusterSnapshot(groups=created, total=nodes, free={"a": {"CPU": 0.0}, "b": {"CPU": 1.0}})
        await seen_again()
        return first + [await found.choose_node(f"g{number}") for number in (3, 4)]

    assert run(scenario()) == ["a", "a", "b", "b", ""]
