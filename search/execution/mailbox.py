"""The exchange of segments and reports between a gang and its workers."""

import asyncio
import time

from searchlight.trainables.worker.messages import Delivery, EpochReport, Reached, SegmentAssignment, SegmentEnd


class Mailbox:
    """Holds the present segment of a gang's workers, and the point from which new workers continue it.

    Each segment has a new turn, and another one whenever new workers get it.

    Attributes:
        trial: The trial of the last segment, or None before the first.
        longest_epoch_s: Seconds of the longest epoch so far, the start of its trial included; 0 before one ended.
    """

    def __init__(self) -> None:
        self._turn = 0
        self._taken = 0  # the last turn that a worker has taken
        self._taken_at = 0.0  # in seconds since 1970
        self._segment: SegmentAssignment | None = None
        self._ending = ""
        self._era = 0  # of workers; dead workers that still wait must not take segments of new ones
        self._closed = False
        self._freed = False  # also those of the present workers that ask for a segment later
        self._changed = asyncio.Condition()
        self._reports: asyncio.Queue[Delivery] = asyncio.Queue()
        self._progress: dict[int, int] = {}
        self._stacks: dict[int, str] = {}
        self._heard_at: dict[int, float] = {}  # the last heartbeat of each rank of the present workers
        self._moved_at = time.monotonic()
        self._reported_at = time.monotonic()
        self.trial: int | None = None
        self.longest_epoch_s = 0.0

    async def assign(self, segment: SegmentAssignment) -> int:
        """Pass `segment` to the workers, and return the first of its turns."""
        self.trial = segment.trial
        await self._start_turn(segment)
        return self._turn

    @property
    def turn(self) -> int:
        return self._turn

    def find_turn(self, number: int) -> int:
        """Return the turn of the segment of trial `number`, or 0 if the workers train another trial."""
        return self._turn if self._segment is not None and self._segment.trial == number else 0

    async def mark_ending(self, why: str) -> None:
        """Pass no more segments to the workers, since they will end."""
        async with self._changed:
            self._ending = why

    async def restart(self) -> tuple[Reached, str]:
        """Pass the segment of ended workers to new ones, in a new turn.

        Returns:
            How far the old workers were with it, and why they were to end, or "".
        """
        reached: Reached = "begun" if self._taken == self._turn else "assigned"
        ending, self._ending = self._ending, ""
        self._era, self._freed = self._era + 1, False
        self._heard_at.clear()
        done = self._segment is None
        await self._start_turn(self._segment)
        return "nothing" if done else reached, ending

    async def drop(self) -> None:
        """End the segment without a report."""
        await self._start_turn(None)

    async def close(self) -> None:
        """Let the workers return."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    async def free(self) -> None:
        """Let the present workers return. Others take the next segment."""
        async with self._changed:
            self._ending, self._freed = "the former ones had nothing to do, and left their resources", True
            self._changed.notify_all()

    async def wait_for_segment(self, seen: int) -> tuple[int, SegmentAssignment | None]:
        """Wait for a segment after turn `seen`. Return its turn and the segment, or None if the worker must return."""
        async with self._changed:
            era = self._era
            await self._changed.wait_for(
                lambda: self._closed or self._freed or self._era != era or self._has_segment_after(seen)
            )
            if self._closed or self._freed or self._era != era:
                return self._turn, None
            if self._taken != self._turn:
                self._taken, self._taken_at, self._moved_at = self._turn, time.time(), time.monotonic()
                self._reported_at = self._moved_at
            return self._turn, self._segment

    async def put(self, turn: int, report: EpochReport | SegmentEnd, ending: str = "") -> None:
        """Accept a report, unless its turn has ended: it then comes from a replaced worker.

        Args:
            ending: Why the workers end after the last report of the segment, or "".
        """
        if turn != self._turn or self._segment is None:
            return
        self._moved_at = time.monotonic()
        if isinstance(report, EpochReport):
            self.longest_epoch_s = max(self.longest_epoch_s, self._moved_at - self._reported_at)
        self._reported_at = self._moved_at
        if isinstance(report, SegmentEnd) or report.done:
            self._segment, self._ending = None, ending
        else:
            self._segment = self._segment.continue_after(report)
        self._reports.put_nowait(Delivery(turn, self._taken_at, report))

    async def get(self) -> list[Delivery]:
        """Wait for a report. Return all that have arrived, in order."""
        reports = [await self._reports.get()]
        while not self._reports.empty():
            reports.append(self._reports.get_nowait())
        return reports

    def record_heartbeat(self, turn: int, rank: int, progress: int, stack: str) -> None:
        """Record the progress of a rank, and the stack of its training thread."""
        self._heard_at[rank] = time.monotonic()
        if turn == self._turn:
            if self._progress.get(rank) != progress:
                self._moved_at = time.monotonic()
            self._progress[rank] = progress
            self._stacks[rank] = stack

    @property
    def is_started(self) -> bool:
        """Whether workers have taken the segment."""
        return self._segment is not None and self._taken == self._turn

    @property
    def is_idle(self) -> bool:
        return self._segment is None

    def get_idle_s(self) -> tuple[float, float]:
        """Return the seconds for which no worker has taken the segment, and those without any progress."""
        still = time.monotonic() - self._moved_at if self._segment is not None else 0.0
        return (0.0, still) if self.is_started else (still, 0.0)

    def get_silence_s(self) -> float:
        """Return for how many seconds the quietest rank has sent no heartbeat, of those that have sent one."""
        return time.monotonic() - min(self._heard_at.values(), default=time.monotonic())

    def get_stacks(self) -> dict[int, str]:
        """Return the stack of each rank at its last heartbeat."""
        return dict(sorted(self._stacks.items()))

    def _has_segment_after(self, seen: int) -> bool:
        return self._segment is not None and self._turn > seen and not self._ending

    async def _start_turn(self, segment: SegmentAssignment | None) -> None:
        async with self._changed:
            self._turn, self._segment, self._moved_at = self._turn + 1, segment, time.monotonic()
            self._progress.clear()
            self._stacks.clear()
            self._changed.notify_all()
