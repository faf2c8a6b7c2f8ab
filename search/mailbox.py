"""Between a gang and its workers: stretches go one way, reports the other."""

import asyncio
from typing import Any

import ray


class Mailbox:
    """Holds the stretch that a gang's workers run now, and where it would go on if they were lost.

    Args:
        max_failures: How often the workers of one stretch may be lost before its trial fails.
    """

    def __init__(self, max_failures: int) -> None:
        self.max_failures = max_failures
        self._turn = 0
        self._stretch: dict[str, Any] | None = None
        self._handed_out = 0
        self._losses = 0
        self._closed = False
        self._changed = asyncio.Condition()
        self._reports: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def assign(self, stretch: dict[str, Any]) -> None:
        """Hand `stretch` to the workers."""
        async with self._changed:
            self._turn, self._stretch, self._losses = self._turn + 1, stretch, 0
            self._changed.notify_all()

    async def close(self) -> None:
        """Let the workers return."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    async def next(self, seen: int, rank: int) -> tuple[int, dict[str, Any] | None]:
        """Wait for a stretch after turn `seen`; (turn, None) once the mailbox is closed.

        A worker that has seen nothing is new. If the stretch was handed out before, the worker that had it is
        gone, and the new one goes on from the last checkpoint.
        """
        async with self._changed:
            while True:
                await self._changed.wait_for(lambda: self._closed or (self._stretch is not None and self._turn > seen))
                if self._closed or self._stretch is None:
                    return self._turn, None
                if rank == 0 and seen == 0 and self._handed_out == self._turn:
                    self._losses += 1
                if self._losses <= self.max_failures:
                    break
                reason = f"its worker was lost {self._losses} times"
                self._end({"done": True, "outcome": "failed", "reason": reason})
            if rank == 0:
                self._handed_out = self._turn
            return self._turn, self._stretch

    async def put(self, turn: int, report: dict[str, Any]) -> None:
        """Take a report in. One of a turn that has ended comes from a worker that was given up."""
        if turn != self._turn or self._stretch is None:
            return
        if report["done"]:
            self._end(report)
        else:
            earlier = [self._stretch["checkpoint"], *self._stretch["earlier"]]
            reached = {"epoch": report["epoch"], "checkpoint": report["checkpoint"], "earlier": earlier}
            self._stretch = {**self._stretch, **reached}
            self._reports.put_nowait(report)

    async def get(self) -> dict[str, Any]:
        """Wait for the next report."""
        return await self._reports.get()

    def _end(self, report: dict[str, Any]) -> None:
        self._stretch = None
        self._reports.put_nowait(report)


class Stop:
    """Tells all workers of a search, within moments, that it is to stop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    async def set(self) -> None:
        self._event.set()

    async def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        await self._event.wait()


MailboxActor: Any = ray.remote(num_cpus=0)(Mailbox)
StopActor: Any = ray.remote(num_cpus=0)(Stop)
