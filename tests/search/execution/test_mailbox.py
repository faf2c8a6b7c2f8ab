import asyncio
import time
from dataclasses import replace

from search.execution.mailbox import Mailbox
from trainables.worker.messages import EpochReport, SegmentAssignment, SegmentBudget

SEGMENT = SegmentAssignment(0, {}, 0, 3, "folder", "a")


def run(scenario):
    """Run a coroutine with a time limit."""
    return asyncio.run(asyncio.wait_for(scenario, timeout=5))


def report(epoch, done=False):
    return EpochReport(epoch, {}, f"{epoch}.pt", {"samples": 20.0}, done)


def test_a_worker_waits_for_a_stretch_and_its_reports_come_back_in_order():
    async def scenario():
        mailbox = Mailbox()
        waiting = asyncio.create_task(mailbox.wait_for_segment(0))
        await asyncio.sleep(0)
        await mailbox.assign(SEGMENT)
        turn, segment = await waiting
        await mailbox.put(turn, report(1))
        await mailbox.put(turn, report(3, done=True))
        return segment, [delivery.report.epoch for delivery in await mailbox.get()]

    assert run(scenario()) == (SEGMENT, [1, 3])


def test_a_worker_that_has_seen_a_turn_waits_for_the_next():
    async def scenario():
        mailbox = Mailbox()
        await mailbox.assign(SEGMENT)
        turn, _ = await mailbox.wait_for_segment(0)
        again = asyncio.create_task(mailbox.wait_for_segment(turn))
        await asyncio.sleep(0.01)
        assert not again.done()
        await mailbox.assign(replace(SEGMENT, trial=1))
        return (await again)[1].trial

    assert run(scenario()) == 1


def test_a_new_worker_goes_on_from_the_last_checkpoint_of_the_lost_one():
    async def scenario():
        mailbox = Mailbox()
        await mailbox.assign(SEGMENT)
        turn, _ = await mailbox.wait_for_segment(0)
        await mailbox.put(turn, report(2))
        return (await mailbox.wait_for_segment(0))[1]

    assert run(scenario()) == replace(SEGMENT, epoch=2, checkpoints=("2.pt", None))


def test_a_new_worker_knows_what_the_lost_one_had_spent():
    async def scenario():
        mailbox = Mailbox()
        await mailbox.assign(replace(SEGMENT, budget=SegmentBudget("samples", 0, 0.0, 100.0)))
        turn, _ = await mailbox.wait_for_segment(0)
        for epoch in (1, 2, 2):  # the second is done again, since its checkpoint could not be read
            await mailbox.put(turn, report(epoch))
        return (await mailbox.wait_for_segment(0))[1].budget

    assert run(scenario()) == SegmentBudget("samples", 2, 40.0, 100.0)


def test_the_checkpoints_before_the_last_one_are_kept_in_case_that_it_is_broken():  # H84
    async def scenario():
        mailbox = Mailbox()
        await mailbox.assign(replace(SEGMENT, epoch=1, checkpoints=("1.pt", None)))
        turn, _ = await mailbox.wait_for_segment(0)
        for epoch in (2, 3):
            await mailbox.put(turn, report(epoch))
        return (await mailbox.wait_for_segment(0))[1]

    segment = run(scenario())
    assert (segment.epoch, segment.checkpoints) == (3, ("3.pt", "2.pt", "1.pt", None))


def test_a_restart_hands_the_stretch_to_new_workers_and_says_how_far_the_old_ones_were():
    async def scenario():
        mailbox = Mailbox()
        await mailbox.assign(SEGMENT)
        untouched = await mailbox.restart()
        turn, _ = await mailbox.wait_for_segment(0)
        begun = await mailbox.restart()
        again, segment = await mailbox.wait_for_segment(0)
        await mailbox.put(again, report(3, done=True))
        return untouched, begun, await mailbox.restart(), again > turn, segment

    assert run(scenario()) == (("assigned", ""), ("begun", ""), ("nothing", ""), True, SEGMENT)


def test_workers_that_are_about_to_end_get_nothing_more_until_there_are_new_ones():
    async def scenario():
        mailbox = Mailbox()
        await mailbox.assign(SEGMENT)
        turn, _ = await mailbox.wait_for_segment(0)
        await mailbox.put(turn, report(3, done=True), "one rank failed")
        await mailbox.assign(replace(SEGMENT, trial=1))
        waiting = asyncio.create_task(mailbox.wait_for_segment(turn))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        reached = await mailbox.restart()
        assert (await waiting)[1] is None
        return reached, (await mailbox.wait_for_segment(0))[1].trial

    assert run(scenario()) == (("assigned", "one rank failed"), 1)


def test_a_report_that_answers_after_its_stretch_was_dropped_says_of_which_turn_it_is():
    async def scenario():
        mailbox = Mailbox()
        first = await mailbox.assign(SEGMENT)
        turn, _ = await mailbox.wait_for_segment(0)
        answer = asyncio.create_task(mailbox.get())  # as the gang has it pending
        await asyncio.sleep(0)
        await mailbox.put(turn, report(1))
        await asyncio.sleep(0)
        await mailbox.drop()
        await mailbox.put(turn, report(2))
        second = await mailbox.assign(replace(SEGMENT, trial=1))
        turn, _ = await mailbox.wait_for_segment(turn)
        await mailbox.put(turn, report(7))
        return first, second, await answer, await mailbox.get()

    first, second, late, own = run(scenario())
    assert [(each.report.epoch, first <= each.turn < second) for each in late] == [(1, True)]
    assert [(each.report.epoch, each.turn >= second) for each in own] == [(7, True)]


def test_workers_that_died_while_they_waited_take_nothing_that_is_for_the_new_ones():
    async def scenario():
        mailbox = Mailbox()
        dead = asyncio.create_task(mailbox.wait_for_segment(0))
        await asyncio.sleep(0)
        await mailbox.restart()
        await mailbox.assign(SEGMENT)
        _, segment = await dead
        reached, _ = await mailbox.restart()
        return segment, reached

    assert run(scenario()) == (None, "assigned")


def test_what_lost_workers_still_send_after_a_restart_is_dropped():
    async def scenario():
        mailbox = Mailbox()
        await mailbox.assign(SEGMENT)
        old, _ = await mailbox.wait_for_segment(0)
        await mailbox.restart()
        new, _ = await mailbox.wait_for_segment(0)
        await mailbox.put(old, report(1))
        await mailbox.put(new, report(2))
        return [delivery.report.epoch for delivery in await mailbox.get()]

    assert run(scenario()) == [2]


def test_workers_stall_while_nobody_gets_anywhere(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    async def scenario():
        mailbox = Mailbox()
        nothing = mailbox.get_idle_s()
        await mailbox.assign(SEGMENT)
        clock[0] = 10.0
        waiting = mailbox.get_idle_s()  # nobody has taken the segment
        turn, _ = await mailbox.wait_for_segment(0)
        clock[0] = 13.0
        begun = mailbox.get_idle_s()
        mailbox.record_heartbeat(turn, 0, 1, "in loss")
        moved = mailbox.get_idle_s()
        clock[0] = 18.0
        mailbox.record_heartbeat(turn, 0, 1, "in train_batches")
        mailbox.record_heartbeat(turn - 1, 1, 9, "of a lost worker")
        return nothing, waiting, begun, moved, mailbox.get_idle_s(), mailbox.get_stacks()

    told = asyncio.run(scenario())
    assert told == ((0.0, 0.0), (10.0, 0.0), (0.0, 3.0), (0.0, 0.0), (0.0, 5.0), {0: "in train_batches"})


def test_a_report_of_a_worker_that_was_given_up_is_dropped():
    async def scenario():
        mailbox = Mailbox()
        await mailbox.assign(SEGMENT)
        await mailbox.put(1, report(3, done=True))
        await mailbox.assign(replace(SEGMENT, trial=1))
        await mailbox.put(1, report(2))
        await mailbox.put(2, report(1))
        return [delivery.report.epoch for delivery in await mailbox.get()]

    assert run(scenario()) == [3, 1]


def test_closing_lets_every_worker_return():
    async def scenario():
        mailbox = Mailbox()
        waiting = [asyncio.create_task(mailbox.wait_for_segment(0)) for _ in range(2)]
        await asyncio.sleep(0)
        await mailbox.close()
        return [segment for _, segment in await asyncio.gather(*waiting)]

    assert run(scenario()) == [None, None]
