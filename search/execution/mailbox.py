"""Between a gang and its workers: stretches go one way, reports the other."""

import asyncio
import time
from typing import Any

from search.execution.failure_policy import Reached


class Mailbox:
    """Holds the stretch that a gang's workers run now, and where it would go on if they were lost."""

    def __init__(self) -> None:
        self._turn = 0
        self._taken = 0  # the last turn that a worker has asked for
        self._taken_at = 0.0  # in seconds since 1970
        self._stretch: dict[str, Any] | None = None
        self._ending = ""
        self._era = 0  # of workers: those that wait in `next` may have died, and must not take what is for new ones
        self._closed = False
        self._changed = asyncio.Condition()
        self._reports: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._progress: dict[int, int] = {}
        self._stacks: dict[int, str] = {}
        self._moved_at = time.monotonic()

    async def assign(self, stretch: dict[str, Any]) -> int:
        """Hand `stretch` to the workers; the first of its turns."""
        await self._start_turn(stretch)
        return self._turn

    async def mark_ending(self, why: str) -> None:
        """The workers are about to end, or are being ended: they get nothing more to do."""
        async with self._changed:
            self._ending = why

    async def restart(self) -> tuple[Reached, str]:
        """Hand the stretch of workers that are gone to new ones.

        Its turn is a new one: what the old workers may still send is no longer taken in.

        Returns:
            How far the old ones were with it, and why they were to end, or "".
        """
        reached: Reached = "begun" if self._taken == self._turn else "assigned"
        ending, self._ending = self._ending, ""
        self._era += 1
        done = self._stretch is None
        await self._start_turn(self._stretch)
        return "nothing" if done else reached, ending

    async def drop(self) -> None:
        """The stretch has ended without a report."""
        await self._start_turn(None)

    async def close(self) -> None:
        """Let the workers return."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    async def wait_for_segment(self, seen: int) -> tuple[int, dict[str, Any] | None]:
        """Wait for a stretch after turn `seen`; (turn, None) for workers that are to return."""
        async with self._changed:
            era = self._era
            await self._changed.wait_for(lambda: self._closed or self._era != era or self._has_segment_after(seen))
            if self._closed or self._era != era:
                return self._turn, None
            if self._taken != self._turn:
                self._taken, self._taken_at, self._moved_at = self._turn, time.time(), time.monotonic()
            return self._turn, self._stretch

    async def put(self, turn: int, report: dict[str, Any]) -> None:
        """Take a report in. One of a turn that has ended comes from a worker that was given up."""
        if turn != self._turn or self._stretch is None:
            return
        self._moved_at = time.monotonic()
        if report["done"]:
            self._stretch = None
            self._ending = report.pop("ending", "")
        else:
            earlier = [self._stretch["checkpoint"], *self._stretch["earlier"]]
            reached = {"epoch": report["epoch"], "checkpoint": report["checkpoint"], "earlier": earlier}
            if "allowance" in report:
                reached["allowance"] = report["allowance"]
            self._stretch = {**self._stretch, **reached}
        self._reports.put_nowait({**report, "turn": turn, "taken": self._taken_at})

    async def get(self) -> list[dict[str, Any]]:
        """Wait for the next report; all that came in the meantime, in order, each with the `turn` that it is of."""
        reports = [await self._reports.get()]
        while not self._reports.empty():
            reports.append(self._reports.get_nowait())
        return reports

    def record_heartbeat(self, turn: int, rank: int, progress: int, stack: str) -> None:
        """Take in how far a rank is and where its code stands."""
        if turn == self._turn:
            if self._progress.get(rank) != progress:
                self._moved_at = time.monotonic()
            self._progress[rank] = progress
            self._stacks[rank] = stack

    @property
    def is_started(self) -> bool:
        """Whether the workers are at the stretch."""
        return self._stretch is not None and self._taken == self._turn

    @property
    def is_idle(self) -> bool:
        """Whether there is no stretch."""
        return self._stretch is None

    def get_idle_s(self) -> tuple[float, float]:
        """Seconds for which a stretch waits to be taken, and for which no rank has got anywhere with one."""
        still = time.monotonic() - self._moved_at if self._stretch is not None else 0.0
        return (0.0, still) if self.is_started else (still, 0.0)

    def get_stacks(self) -> dict[int, str]:
        """Where each rank's code stood at its last beat."""
        return dict(sorted(self._stacks.items()))

    def _has_segment_after(self, seen: int) -> bool:
        return self._stretch is not None and self._turn > seen and not self._ending

    async def _start_turn(self, stretch: dict[str, Any] | None) -> None:
        async with self._changed:
            self._turn, self._stretch, self._moved_at = self._turn + 1, stretch, time.monotonic()
            self._progress.clear()
            self._stacks.clear()
            self._changed.notify_all()
