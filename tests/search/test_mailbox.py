import asyncio

import pytest

from search.mailbox import Mailbox

STRETCH = {"trial": 0, "epoch": 0, "until": 3, "checkpoint": None, "earlier": []}


def run(scenario):
    """Run a coroutine with a time limit."""
    return asyncio.run(asyncio.wait_for(scenario, timeout=5))


def report(epoch, done=False):
    return {"done": done, "epoch": epoch, "checkpoint": f"{epoch}.pt"}


def test_a_worker_waits_for_a_stretch_and_its_reports_come_back_in_order():
    async def scenario():
        mailbox = Mailbox(max_failures=0)
        waiting = asyncio.create_task(mailbox.next(0, rank=0))
        await asyncio.sleep(0)
        await mailbox.assign(STRETCH)
        turn, stretch = await waiting
        await mailbox.put(turn, report(1))
        await mailbox.put(turn, report(3, done=True))
        return stretch, [(await mailbox.get())["epoch"], (await mailbox.get())["epoch"]]

    assert run(scenario()) == (STRETCH, [1, 3])


def test_a_worker_that_has_seen_a_turn_waits_for_the_next():
    async def scenario():
        mailbox = Mailbox(max_failures=0)
        await mailbox.assign(STRETCH)
        turn, _ = await mailbox.next(0, rank=0)
        again = asyncio.create_task(mailbox.next(turn, rank=0))
        await asyncio.sleep(0.01)
        assert not again.done()
        await mailbox.assign({**STRETCH, "trial": 1})
        return (await again)[1]["trial"]

    assert run(scenario()) == 1


def test_a_new_worker_goes_on_from_the_last_checkpoint_of_the_lost_one():
    async def scenario():
        mailbox = Mailbox(max_failures=1)
        await mailbox.assign(STRETCH)
        turn, _ = await mailbox.next(0, rank=0)
        await mailbox.put(turn, report(2))
        return (await mailbox.next(0, rank=0))[1]

    assert run(scenario()) == {**STRETCH, "epoch": 2, "checkpoint": "2.pt", "earlier": [None]}


def test_the_checkpoints_before_the_last_one_are_kept_in_case_that_it_is_broken():  # H84
    async def scenario():
        mailbox = Mailbox(max_failures=1)
        await mailbox.assign({**STRETCH, "epoch": 1, "checkpoint": "1.pt", "earlier": [None]})
        turn, _ = await mailbox.next(0, rank=0)
        for epoch in (2, 3):
            await mailbox.put(turn, report(epoch))
        return (await mailbox.next(0, rank=0))[1]

    stretch = run(scenario())
    assert (stretch["epoch"], stretch["checkpoint"], stretch["earlier"]) == (3, "3.pt", ["2.pt", "1.pt", None])


def test_a_stretch_that_loses_its_worker_too_often_fails_and_the_next_one_starts_with_a_clean_count():
    async def scenario():
        mailbox = Mailbox(max_failures=1)
        await mailbox.assign(STRETCH)
        for _ in range(2):
            await mailbox.next(0, rank=0)
        waiting = asyncio.create_task(mailbox.next(0, rank=0))
        failure = await mailbox.get()
        assert not waiting.done()
        await mailbox.assign({**STRETCH, "trial": 1})
        return failure, (await waiting)[1]["trial"]

    failure, trial = run(scenario())
    assert failure == {"done": True, "outcome": "failed", "reason": "its worker was lost 2 times"}
    assert trial == 1


def test_other_ranks_starting_anew_are_not_counted_as_losses():
    async def scenario():
        mailbox = Mailbox(max_failures=0)
        await mailbox.assign(STRETCH)
        for rank in (0, 1, 2):
            await mailbox.next(0, rank)
        return mailbox

    run(scenario())


def test_a_report_of_a_worker_that_was_given_up_is_dropped():
    async def scenario():
        mailbox = Mailbox(max_failures=0)
        await mailbox.assign(STRETCH)
        await mailbox.put(1, report(3, done=True))
        await mailbox.assign({**STRETCH, "trial": 1})
        await mailbox.put(1, report(2))
        await mailbox.put(2, report(1))
        return [(await mailbox.get())["epoch"] for _ in range(2)]

    assert run(scenario()) == [3, 1]


def test_closing_lets_every_worker_return():
    async def scenario():
        mailbox = Mailbox(max_failures=0)
        waiting = [asyncio.create_task(mailbox.next(0, rank)) for rank in (0, 1)]
        await asyncio.sleep(0)
        await mailbox.close()
        return [stretch for _, stretch in await asyncio.gather(*waiting)]

    assert run(scenario()) == [None, None]


def test_waiting_for_a_stretch_that_never_comes_is_what_the_limit_of_these_tests_is_for():
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(asyncio.wait_for(Mailbox(0).next(0, rank=0), timeout=0.05))
