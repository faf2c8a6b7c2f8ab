"""Between a gang and its workers: stretches go one way, reports the other."""

import asyncio
import time
from typing import Any


class Mailbox:
    """Holds the stretch that a gang's workers run now, and where it would go on if they were lost."""

    def __init__(self) -> None:
        self._turn = 0
        self._taken = 0  # the last turn that a worker has asked for
        self._stretch: dict[str, Any] | None = None
        self._closed = False
        self._changed = asyncio.Condition()
        self._reports: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._progress: dict[int, int] = {}
        self._stacks: dict[int, str] = {}
        self._moved_at = time.monotonic()

    async def assign(self, stretch: dict[str, Any]) -> None:
        """Hand `stretch` to the workers."""
        await self._turn_to(stretch)

    async def restart(self) -> bool:
        """Hand the stretch of workers that are gone to new ones; whether the old ones had begun it.

        Its turn is a new one: what the old workers may still send is no longer taken in.
        """
        begun = self._stretch is not None and self._taken == self._turn
        await self._turn_to(self._stretch)
        return begun

    async def close(self) -> None:
        """Let the workers return."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    async def next(self, seen: int) -> tuple[int, dict[str, Any] | None]:
        """Wait for a stretch after turn `seen`; (turn, None) once the mailbox is closed."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed or (self._stretch is not None and self._turn > seen))
            if self._closed:
                return self._turn, None
            if self._taken != self._turn:
                self._taken, self._moved_at = self._turn, time.monotonic()
            return self._turn, self._stretch

    async def put(self, turn: int, report: dict[str, Any]) -> None:
        """Take a report in. One of a turn that has ended comes from a worker that was given up."""
        if turn != self._turn or self._stretch is None:
            return
        self._moved_at = time.monotonic()
        if report["done"]:
            self._stretch = None
        else:
            earlier = [self._stretch["checkpoint"], *self._stretch["earlier"]]
            reached = {"epoch": report["epoch"], "checkpoint": report["checkpoint"], "earlier": earlier}
            self._stretch = {**self._stretch, **reached}
        self._reports.put_nowait(report)

    async def get(self) -> list[dict[str, Any]]:
        """Wait for the next report; all that have come in the meantime, in order."""
        reports = [await self._reports.get()]
        while not self._reports.empty():
            reports.append(self._reports.get_nowait())
        return reports

    def beat(self, turn: int, rank: int, progress: int, stack: str) -> None:
        """Take in how far a rank is and where its code stands."""
        if turn == self._turn:
            if self._progress.get(rank) != progress:
                self._moved_at = time.monotonic()
            self._progress[rank] = progress
            self._stacks[rank] = stack

    def stalled_s(self) -> float:
        """Seconds since any rank got anywhere; 0 while the workers have nothing to do."""
        begun = self._stretch is not None and self._taken == self._turn
        return time.monotonic() - self._moved_at if begun else 0.0

    def stacks(self) -> dict[int, str]:
        """Where each rank's code stood at its last beat."""
        return dict(sorted(self._stacks.items()))

    async def _turn_to(self, stretch: dict[str, Any] | None) -> None:
        async with self._changed:
            self._turn, self._stretch = self._turn + 1, stretch
            self._progress.clear()
            self._stacks.clear()
            self._changed.notify_all()
