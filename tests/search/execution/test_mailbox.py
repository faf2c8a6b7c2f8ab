import asyncio
import time

from search.execution.mailbox import Mailbox

STRETCH = {"trial": 0, "epoch": 0, "until": 3, "checkpoint": None, "earlier": []}


def run(scenario):
    """Run a coroutine with a time limit."""
    return asyncio.run(asyncio.wait_for(scenario, timeout=5))


def report(epoch, done=False):
    return {"done": done, "epoch": epoch, "checkpoint": f"{epoch}.pt"}


def test_a_worker_waits_for_a_stretch_and_its_reports_come_back_in_order():
    async def scenario():
        mailbox = Mailbox()
        waiting = asyncio.create_task(mailbox.wait_for_segment(0))
        await asyncio.sleep(0)
        await mailbox.assign(STRETCH)
        turn, stretch = await waiting
        await mailbox.put(turn, report(1))
        await mailbox.put(turn, report(3, done=True))
        return stretch, [report["epoch"] for report in await mailbox.get()]

    assert run(scenario()) == (STRETCH, [1, 3])


def test_a_worker_that_has_seen_a_turn_waits_for_the_next():
    async def scenario():
        mailbox = Mailbox()
        await mailbox.assign(STRETCH)
        turn, _ = await mailbox.wait_for_segment(0)
        again = asyncio.create_task(mailbox.wait_for_segment(turn))
        await asyncio.sleep(0.01)
        assert not again.done()
        await mailbox.assign({**STRETCH, "trial": 1})
        return (await again)[1]["trial"]

    assert run(scenario()) == 1


def test_a_new_worker_goes_on_from_the_last_checkpoint_of_the_lost_one():
    async def scenario():
        mailbox = Mailbox()
        await mailbox.assign(STRETCH)
        turn, _ = await mailbox.wait_for_segment(0)
        await mailbox.put(turn, report(2))
        return (await mailbox.wait_for_segment(0))[1]

    assert run(scenario()) == {**STRETCH, "epoch": 2, "checkpoint": "2.pt", "earlier": [None]}


def test_a_new_worker_knows_what_the_lost_one_had_spent():
    async def scenario():
        mailbox = Mailbox()
        spent = {"of": "samples", "epoch": 0, "spent": 0.0, "until": 100.0}
        await mailbox.assign({**STRETCH, "allowance": spent})
        turn, _ = await mailbox.wait_for_segment(0)
        await mailbox.put(turn, {**report(2), "allowance": {**spent, "epoch": 2, "spent": 40.0}})
        return (await mailbox.wait_for_segment(0))[1]["allowance"]

    assert run(scenario()) == {"of": "samples", "epoch": 2, "spent": 40.0, "until": 100.0}


def test_the_checkpoints_before_the_last_one_are_kept_in_case_that_it_is_broken():  # H84
    async def scenario():
        mailbox = Mailbox()
        await mailbox.assign({**STRETCH, "epoch": 1, "checkpoint": "1.pt", "earlier": [None]})
        turn, _ = await mailbox.wait_for_segment(0)
        for epoch in (2, 3):
            await mailbox.put(turn, report(epoch))
        return (await mailbox.wait_for_segment(0))[1]

    stretch = run(scenario())
    assert (stretch["epoch"], stretch["checkpoint"], stretch["earlier"]) == (3, "3.pt", ["2.pt", "1.pt", None])


def test_a_restart_hands_the_stretch_to_new_workers_and_says_how_far_the_old_ones_were():
    async def scenario():
        mailbox = Mailbox()
        await mailbox.assign(STRETCH)
        untouched = await mailbox.restart()
        turn, _ = await mailbox.wait_for_segment(0)
        begun = await mailbox.restart()
        again, stretch = await mailbox.wait_for_segment(0)
        await mailbox.put(again, report(3, done=True))
        return untouched, begun, await mailbox.restart(), again > turn, stretch

    assert run(scenario()) == (("assigned", ""), ("begun", ""), ("nothing", ""), True, STRETCH)


def test_workers_that_are_about_to_end_get_nothing_more_until_there_are_new_ones():
    async def scenario():
        mailbox = Mailbox()
        await mailbox.assign(STRETCH)
        turn, _ = await mailbox.wait_for_segment(0)
        await mailbox.put(turn, {**report(3, done=True), "ending": "one rank failed"})
        sent = await mailbox.get()
        await mailbox.assign({**STRETCH, "trial": 1})
        waiting = asyncio.create_task(mailbox.wait_for_segment(turn))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        reached = await mailbox.restart()
        assert (await waiting)[1] is None
        return sent, reached, (await mailbox.wait_for_segment(0))[1]["trial"]

    sent, reached, trial = run(scenario())
    assert "ending" not in sent[0]
    assert reached == ("assigned", "one rank failed")
    assert trial == 1


def test_a_report_that_answers_after_its_stretch_was_dropped_says_of_which_turn_it_is():
    async def scenario():
        mailbox = Mailbox()
        first = await mailbox.assign(STRETCH)
        turn, _ = await mailbox.wait_for_segment(0)
        answer = asyncio.create_task(mailbox.get())  # as the gang has it pending
        await asyncio.sleep(0)
        await mailbox.put(turn, report(1))
        await asyncio.sleep(0)
        await mailbox.drop()
        await mailbox.put(turn, report(2))
        second = await mailbox.assign({**STRETCH, "trial": 1})
        turn, _ = await mailbox.wait_for_segment(turn)
        await mailbox.put(turn, report(7))
        return first, second, await answer, await mailbox.get()

    first, second, late, own = run(scenario())
    assert [(r["epoch"], first <= r["turn"] < second) for r in late] == [(1, True)]
    assert [(r["epoch"], r["turn"] >= second) for r in own] == [(7, True)]


def test_workers_that_died_while_they_waited_take_nothing_that_is_for_the_new_ones():
    async def scenario():
        mailbox = Mailbox()
        dead = asyncio.create_task(mailbox.wait_for_segment(0))
        await asyncio.sleep(0)
        await mailbox.restart()
        await mailbox.assign(STRETCH)
        _, stretch = await dead
        reached, _ = await mailbox.restart()
        return stretch, reached

    assert run(scenario()) == (None, "assigned")


def test_what_lost_workers_still_send_after_a_restart_is_dropped():
    async def scenario():
        mailbox = Mailbox()
        await mailbox.assign(STRETCH)
        old, _ = await mailbox.wait_for_segment(0)
        await mailbox.restart()
        new, _ = await mailbox.wait_for_segment(0)
        await mailbox.put(old, report(1))
        await mailbox.put(new, report(2))
        return [report["epoch"] for report in await mailbox.get()]

    assert run(scenario()) == [2]


def test_workers_stall_while_nobody_gets_anywhere(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    async def scenario():
        mailbox = Mailbox()
        nothing = mailbox.get_idle_s()
        await mailbox.assign(STRETCH)
        clock[0] = 10.0
        waiting = mailbox.get_idle_s()  # nobody has taken the stretch
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
        await mailbox.assign(STRETCH)
        await mailbox.put(1, report(3, done=True))
        await mailbox.assign({**STRETCH, "trial": 1})
        await mailbox.put(1, report(2))
        await mailbox.put(2, report(1))
        return [report["epoch"] for report in await mailbox.get()]

    assert run(scenario()) == [3, 1]


def test_closing_lets_every_worker_return():
    async def scenario():
        mailbox = Mailbox()
        waiting = [asyncio.create_task(mailbox.wait_for_segment(0)) for _ in range(2)]
        await asyncio.sleep(0)
        await mailbox.close()
        return [stretch for _, stretch in await asyncio.gather(*waiting)]

    assert run(scenario()) == [None, None]
