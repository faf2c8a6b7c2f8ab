import asyncio
import time
from dataclasses import replace

from searchlight.search.execution.mailbox import Mailbox
from searchlight.trainables.worker.messages import EpochReport, SegmentAssignment, SegmentBudget
from tests.search.execution.asynchronous import asynchronous

SEGMENT = SegmentAssignment(0, {}, 0, 3, "folder", "a")
NEXT = replace(SEGMENT, trial=1)


def report(epoch, done=False):
    return EpochReport(epoch, {}, f"{epoch}.pt", {"samples": 20.0}, done)


async def taken(segment=SEGMENT):
    """A mailbox with a segment that a worker has taken, and its turn."""
    mailbox = Mailbox()
    await mailbox.assign(segment)
    return mailbox, (await mailbox.wait_for_segment(0))[0]


async def start(coroutine):
    """A task that has begun to wait."""
    task = asyncio.create_task(coroutine)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not task.done()
    return task


@asynchronous
async def test_workers_get_segments_in_turn_and_reports_in_order():
    mailbox = Mailbox()
    waiting = await start(mailbox.wait_for_segment(0))
    await mailbox.assign(SEGMENT)
    turn, segment = await waiting
    assert segment == SEGMENT
    await mailbox.put(turn, report(1))
    await mailbox.put(turn, report(3, done=True))
    again = [await start(mailbox.wait_for_segment(turn)) for _ in range(2)]
    await mailbox.assign(NEXT)
    assert [await each for each in again] == [(turn + 1, NEXT)] * 2
    await mailbox.put(turn, report(2))  # late, of the segment before
    await mailbox.put(turn + 1, report(1))
    assert [delivery.report.epoch for delivery in await mailbox.get()] == [1, 3, 1]
    last = [await start(mailbox.wait_for_segment(turn + 1)) for _ in range(2)]
    await mailbox.close()
    assert [(await each)[1] for each in last] == [None, None]


@asynchronous
async def test_new_worker_continues_from_checkpoints_and_costs():
    budget = SegmentBudget("samples", 1, 0.0, 100.0)
    mailbox, turn = await taken(replace(SEGMENT, epoch=1, checkpoints=("1.pt", None), budget=budget))
    for epoch in (2, 3, 3):  # the last is done again, since its checkpoint could not be read
        await mailbox.put(turn, report(epoch))
    _, segment = await mailbox.wait_for_segment(0)
    assert (segment.epoch, segment.checkpoints[0], segment.checkpoints[-3:]) == (3, "3.pt", ("2.pt", "1.pt", None))
    assert segment.budget == SegmentBudget("samples", 3, 40.0, 100.0)


@asynchronous
async def test_restart_hands_the_segment_on_and_drops_late_reports():
    mailbox = Mailbox()
    await mailbox.assign(SEGMENT)
    assert await mailbox.restart() == ("assigned", "")
    old, _ = await mailbox.wait_for_segment(0)
    assert await mailbox.restart() == ("begun", "")
    new, segment = await mailbox.wait_for_segment(0)
    assert new > old
    assert segment == SEGMENT
    await mailbox.put(old, report(1))
    await mailbox.put(new, report(3, done=True))
    assert [delivery.report.epoch for delivery in await mailbox.get()] == [3]
    assert await mailbox.restart() == ("nothing", "")


@asynchronous
async def test_ending_and_dead_workers_get_nothing():
    mailbox, turn = await taken()
    await mailbox.put(turn, report(3, done=True), "one rank failed")
    dead = await start(mailbox.wait_for_segment(turn))
    await mailbox.assign(NEXT)
    ending = await start(mailbox.wait_for_segment(turn))
    assert await mailbox.restart() == ("assigned", "one rank failed")
    assert [(await each)[1] for each in (dead, ending)] == [None, None]
    assert (await mailbox.wait_for_segment(0))[1] == NEXT


@asynchronous
async def test_report_after_a_drop_says_of_which_turn_it_is():
    mailbox = Mailbox()
    first = await mailbox.assign(SEGMENT)
    turn, _ = await mailbox.wait_for_segment(0)
    answer = await start(mailbox.get())  # as the gang has it pending
    await mailbox.put(turn, report(1))
    await asyncio.sleep(0)
    await mailbox.drop()
    await mailbox.put(turn, report(2))
    second = await mailbox.assign(NEXT)
    turn, _ = await mailbox.wait_for_segment(turn)
    await mailbox.put(turn, report(7))
    assert [(each.report.epoch, first <= each.turn < second) for each in await answer] == [(1, True)]
    assert [(each.report.epoch, each.turn >= second) for each in await mailbox.get()] == [(7, True)]


@asynchronous
async def test_idle_time_ends_with_progress_of_a_rank(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    mailbox = Mailbox()
    clock[0] = 5.0
    assert mailbox.get_idle_s() == (0.0, 0.0)
    await mailbox.assign(SEGMENT)
    clock[0] = 15.0
    assert mailbox.get_idle_s() == (10.0, 0.0), "nobody has taken the segment"
    turn, _ = await mailbox.wait_for_segment(0)
    clock[0] = 18.0
    assert mailbox.get_idle_s() == (0.0, 3.0)
    mailbox.record_heartbeat(turn, 0, 1, "in loss")
    assert mailbox.get_idle_s() == (0.0, 0.0)
    clock[0] = 23.0
    mailbox.record_heartbeat(turn, 0, 1, "in train_batches")
    mailbox.record_heartbeat(turn - 1, 1, 9, "of a lost worker")
    assert mailbox.get_idle_s() == (0.0, 5.0)
    assert mailbox.get_stacks() == {0: "in train_batches"}


@asynchronous
async def test_silence_is_that_of_the_quietest_rank(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    mailbox = Mailbox()
    assert mailbox.get_silence_s() == 0.0
    for rank, now in ((0, 1.0), (1, 2.0), (1, 5.0)):
        clock[0] = now
        mailbox.record_heartbeat(0, rank, 1, "in loss")
    assert mailbox.get_silence_s() == 4.0
    await mailbox.restart()
    assert mailbox.get_silence_s() == 0.0, "the ranks are other processes"
