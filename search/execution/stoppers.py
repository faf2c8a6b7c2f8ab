"""When a search ends before its trials are spent: rules over what its trials report and how long they hold GPUs."""

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from search.config.objectives import Objective
from search.config.stop_condition import StopCondition
from search.errors import suggest_nearest

ALIKE = 5  # trials from the first one on that fail alike: the next one would, too
HOUR = 3600.0


class PatienceStopper:
    """Whether the best of a search gets no better.

    Counted are the other trials that came to rest, at a rung or at their end, since the best was reported.
    """

    def __init__(self, patience: int, objective: Objective) -> None:
        self.patience = patience
        self._objective = objective
        self._best = math.inf
        self._holder = -1
        self._rested: set[int] = set()

    def record_report(self, number: int, value: float) -> None:
        if self._objective.loss(value) < self._best:
            self._best, self._holder = self._objective.loss(value), number
            self._rested.clear()

    def record_segment_end(self, number: int) -> None:
        if number != self._holder and self._holder >= 0:
            self._rested.add(number)

    @property
    def is_triggered(self) -> bool:
        return len(self._rested) >= self.patience


class RepeatedFailureStopper:
    """Whether the first `many` trials that ended all failed with the same error, but for the numbers in it."""

    def __init__(self, many: int) -> None:
        self.many = many
        self._first: dict[int, str | None] = {}

    def record_end(self, number: int, error: str | None = None) -> None:
        """Count a trial that reported or diverged, which shows that trials can run, or that failed with `error`."""
        if len(self._first) < self.many:
            self._first.setdefault(number, error and re.sub(r"\d[\w.]*", "#", error))

    @property
    def is_triggered(self) -> bool:
        errors = {*self._first.values()}
        return len(self._first) == self.many and len(errors) == 1 and None not in errors


class GpuTimeMeter:
    """What trials hold, in GPU-seconds: a search that is taken up may have gangs of another size.

    Args:
        gpus: That one gang holds.
    """

    def __init__(self, gpus: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.gpus = gpus
        self._held: dict[int, float] = {}
        self._since: dict[int, float] = {}
        self._clock = clock

    def restore(self, number: int, gpu_s: float) -> None:
        """What trial `number` held in an earlier run of the search."""
        self._held[number] = gpu_s

    def begin(self, number: int) -> None:
        self._since[number] = self._clock()

    def end(self, number: int) -> float:
        """What `held` then is."""
        held = self.get_gpu_seconds(number)
        self._since.pop(number, None)  # first: `total` must not count it twice in between
        self._held[number] = held
        return held

    def cancel(self, number: int) -> None:
        """It got no workers: nothing was held."""
        self._since.pop(number, None)

    def get_gpu_seconds(self, number: int) -> float:
        """GPU-seconds that trial `number` has held so far."""
        running = self._clock() - self._since[number] if number in self._since else 0.0
        return self._held.get(number, 0.0) + self.gpus * running

    @property
    def total(self) -> float:
        """Of all trials together. May be asked by another thread: what ends meanwhile is left out, not doubled."""
        held = sum(list(self._held.values()))
        now, since = self._clock(), list(self._since.values())
        return held + self.gpus * sum(now - start for start in since)


@dataclass
class Stoppers:
    """The rules by which a search ends early, and the state that they need.

    Attributes:
        objective: The objective that decides which value is the best.
        trials: How many trials may start.
        target: End the search with the first report that meets this condition.
        patience: End the search when so many trials brought no better value; see PatienceStopper.
        gpu_hours: End the search when its trials held so many; `check_gpu_hours` must be called from time to time.
        gpus: How many GPUs one gang holds.
        reserve: The share of the GPU-hours that is kept for confirming runs.
        stop: Called with the reason, once or more.
        end_search: Called with the reason when no trial is to go on, but confirming runs are. Default: `stop`.
        say: Shows a line to the user.
        meter: How long trials held GPUs.
        winners: Trials that met the target.
    """

    objective: Objective = field(default_factory=lambda: Objective("", "min"))
    trials: int = 1
    target: StopCondition | None = None
    patience: int | None = None
    gpu_hours: float | None = None
    gpus: float = 1.0
    reserve: float = 0.0
    stop: Callable[[str], None] = lambda reason: None
    end_search: Callable[[str], None] | None = None
    say: Callable[[str], None] = lambda line: None
    winners: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.meter = GpuTimeMeter(self.gpus)
        self._plateau = PatienceStopper(self.patience, self.objective) if self.patience else None
        self._alike = RepeatedFailureStopper(min(ALIKE, self.trials)) if self.trials > 1 else None
        self._first = True

    def record_segment_start(self, number: int) -> None:
        """A gang takes up a stretch of trial `number`."""
        self.meter.begin(number)

    def record_report(self, number: int, metrics: Mapping[str, float]) -> None:
        """Trial `number` reported `metrics`; its objective is finite."""
        if self.target is not None:
            if self._first and self.target.metric not in metrics:
                self.say(
                    f"--stop-when must name a metric that trials report, but trial {number} reports no "
                    f"{self.target.metric!r}. {suggest_nearest(self.target.metric, metrics)}"
                )
            if self.target.is_met(metrics):
                self.winners.add(number)
                self.stop(f"{self.target} in trial {number}")
        self._first = False
        if self._alike is not None:
            self._alike.record_end(number)
        if self._plateau is not None:
            self._plateau.record_report(number, metrics[self.objective.metric])

    def record_segment_end(self, number: int) -> None:
        """A stretch of trial `number` has ended: at a rung, or with the trial."""
        if self._alike is not None:
            self._alike.record_end(number)
        if self._plateau is not None:
            self._plateau.record_segment_end(number)
            if self._plateau.is_triggered:
                (self.end_search or self.stop)(f"no better {self.objective.metric} in {self._plateau.patience} trials")

    def record_failure(self, number: int, reason: str, where: str = "") -> None:
        """Record that trial `number` failed. `where` is shown with the reason, and not compared."""
        if self._alike is not None:
            self._alike.record_end(number, reason)
            if self._alike.is_triggered:
                self.stop(f"the first {self._alike.many} trials failed alike: {reason}{where}")

    def check_gpu_hours(self) -> None:
        """Stop the search if the GPU-hours are spent, and its trials if only those for confirming runs are left."""
        if self.gpu_hours is None:
            return
        reason, spent = f"{self.gpu_hours:g} GPU-hours", self.meter.total / (self.gpu_hours * HOUR)
        if spent >= 1:
            self.stop(reason)
        elif self.end_search is not None and spent >= 1 - self.reserve:
            self.end_search(reason)
