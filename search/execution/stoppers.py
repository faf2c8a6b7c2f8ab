"""Rules that end a search early, based on its trials' reports and GPU time."""

import math
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from optuna.trial import FrozenTrial

from searchlight.search.errors import suggest_nearest
from searchlight.search.space.objectives import Objective
from searchlight.search.space.stop_condition import StopCondition
from searchlight.search.study.changes import UNSEEN, SeenTrial, find_changes
from searchlight.search.study.trial import (
    WITH_RESULT,
    gpu_seconds_used,
    intermediate_values,
    is_confirming,
    measure_violation,
)

CHECK_S = 1.0  # by how much GPU-hours may be exceeded
ALIKE = 5  # first trials that fail with the same error
ALONE_S = 60.0  # how long the first trial runs alone: longer waits would cost more than they save
HOUR = 3600.0
Record = tuple[float, int, Callable[[], None]]  # a call with its time in seconds since 1970 and its trial


class PatienceStopper:
    """Stops a search whose best value does not improve.

    It counts the other trials that paused at a rung or ended since the best value was reported.
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
    """Stops a search whose first `many` trials failed with the same error, apart from numbers in it."""

    def __init__(self, many: int) -> None:
        self.many = many
        self._first: dict[int, str | None] = {}

    def record_end(self, number: int, error: str | None = None) -> None:
        """Count a trial that failed with `error`, or that reported or diverged (None)."""
        if len(self._first) < self.many:
            self._first.setdefault(number, error and re.sub(r"\d[\w.]*", "#", error))

    @property
    def is_triggered(self) -> bool:
        errors = {*self._first.values()}
        return len(self._first) == self.many and len(errors) == 1 and None not in errors


class FirstTrial:
    """Lets the first trial of a search run alone, because a mistake in its function would end each trial alike.

    This lasts until a trial reports, since no audit knows before that whether a function works. If the trial fails
    before, the search ends.

    Args:
        is_tried: Whether the function is still to be tried.
    """

    def __init__(self, is_tried: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._is_tried = is_tried
        self._clock = clock
        self._number: int | None = None
        self._began_at = 0.0

    @property
    def runs_alone(self) -> bool:
        """Whether no trial may start while another one runs."""
        return self._is_tried and self._clock() - self._began_at < ALONE_S

    def record_start(self, number: int) -> None:
        if self._number is None:
            self._number, self._began_at = number, self._clock()

    def record_report(self) -> None:
        self._is_tried = False

    def record_failure(self, number: int, lacks_memory: bool) -> bool:
        """Return whether the search ends because trial `number` failed.

        A lack of memory is a fault of its config, so the next trial is tried instead.
        """
        if number != self._number or not self._is_tried:
            return False
        if lacks_memory:
            self._number = None
            return False
        return True


class GpuTimeMeter:
    """Measures the GPU-seconds of trials. A resumed search may have gangs of another size.

    Args:
        gpus: The number of GPUs of one gang.
    """

    def __init__(self, gpus: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.gpus = gpus
        self._held: dict[int, float] = {}
        self._since: dict[int, float] = {}
        self._clock = clock

    def restore(self, number: int, gpu_s: float) -> None:
        """Set the GPU-seconds of trial `number` from an earlier run of the search."""
        self._held[number] = gpu_s

    def begin(self, number: int) -> None:
        self._since[number] = self._clock()

    def end(self, number: int) -> float:
        """End a segment and return the trial's GPU-seconds."""
        held = self.get_gpu_seconds(number)
        self._since.pop(number, None)  # first: `total` must not count it twice in between
        self._held[number] = held
        return held

    def cancel(self, number: int) -> None:
        """Cancel a segment that got no workers."""
        self._since.pop(number, None)

    def get_gpu_seconds(self, number: int) -> float:
        """Return the present GPU-seconds of trial `number`."""
        running = self._clock() - self._since[number] if number in self._since else 0.0
        return self._held.get(number, 0.0) + self.gpus * running

    @property
    def total(self) -> float:
        """The GPU-seconds of all trials. Thread-safe: a segment that ends concurrently may be missing, never counted
        twice.
        """
        held = sum(list(self._held.values()))
        now, since = self._clock(), list(self._since.values())
        return held + self.gpus * sum(now - start for start in since)


@dataclass
class Stoppers:
    """The rules that end a search early, and their state.

    Attributes:
        objective: The objective that decides which value is the best.
        trials: The number of trials that may start.
        target: End the search with the first report that meets this condition.
        patience: End the search after so many trials without a better value. See PatienceStopper.
        gpu_hours: End the search after so many GPU-hours. `check_gpu_hours` must be called regularly.
        gpus: The number of GPUs of one gang.
        hours: What `gpu_hours` counts: without GPUs, these are "worker-hours".
        reserve: The share of the GPU-hours that is reserved for confirming runs.
        stop: Called with the reason, possibly several times.
        end_search: Called with the reason when only confirming runs may continue. Default: `stop`.
        confirms_target: Whether a target that is met ends the trials alone. The user asked for confirming runs then.
        say: Shows a line to the user.
        meter: Measures the GPU time of trials.
        winners: Trials that met the target.
    """

    objective: Objective = field(default_factory=lambda: Objective("", "min"))
    trials: int = 1
    target: StopCondition | None = None
    patience: int | None = None
    gpu_hours: float | None = None
    gpus: float = 1.0
    hours: str = "GPU-hours"
    reserve: float = 0.0
    stop: Callable[[str], None] = lambda reason: None
    end_search: Callable[[str], None] | None = None
    confirms_target: bool = False
    say: Callable[[str], None] = lambda line: None
    winners: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.meter = GpuTimeMeter(self.gpus)
        self._plateau = PatienceStopper(self.patience, self.objective) if self.patience else None
        self._alike = RepeatedFailureStopper(min(ALIKE, self.trials)) if self.trials > 1 else None
        self._first = True
        self._seen: dict[int, SeenTrial] = {}

    def restore(self, trials: Sequence[FrozenTrial], waits: Callable[[FrozenTrial], bool]) -> None:
        """Record the trials of a resumed search, with the GPU time that they held.

        Their failures are left out, since the cause may be fixed. `waits` returns whether a trial waits at a rung.
        """
        records = [record for trial in trials for record in self._list_records(trial, waits(trial))]
        for _, _, record in sorted(records, key=lambda record: record[:2]):
            record()
        for trial in trials:
            self.meter.restore(trial.number, gpu_seconds_used(trial))
        self.check_gpu_hours()

    def record_trial(self, trial: FrozenTrial, has_paused: bool = False, failure: str = "", where: str = "") -> None:
        """Record what is new in `trial`. `has_paused` if it has reached a rung, `failure` if it failed, at `where`."""
        for _, _, record in self._list_records(trial, has_paused):
            record()
        if failure and not is_confirming(trial):
            self.record_failure(trial.number, failure, where)

    def _list_records(self, trial: FrozenTrial, has_paused: bool) -> list[Record]:
        """Return the calls that record what is new in `trial`.

        Confirming runs are left out, since no rule ends them.
        """
        if is_confirming(trial):
            return []
        number, curve = trial.number, intermediate_values(trial)
        changes = find_changes(trial, self._seen.get(number, UNSEEN))
        self._seen[number] = changes.seen
        # The report of a divergence has its epoch. If it was repeated, the curve keeps the value of the former report.
        reports = [report for epoch, report in changes.reports if epoch in curve and "epoch" not in report]
        last = reports[-1]["time"] if reports else 0.0
        records: list[Record] = [
            (report["time"], number, partial(self.record_report, number, report["metrics"], measure_violation(report)))
            for report in reports
        ]
        end = partial(self.record_segment_end, number)
        if changes.outcome == "diverged" and trial.datetime_complete is not None:
            records.append((trial.datetime_complete.timestamp(), number, end))
        elif curve and (has_paused or changes.outcome in (*WITH_RESULT, "infeasible")):
            records.append((last, number, end))
        return records

    def record_segment_start(self, number: int) -> None:
        """Record that a gang starts a segment of trial `number`."""
        self.meter.begin(number)

    def record_report(self, number: int, metrics: Mapping[str, float], violation: float = 0.0) -> None:
        """Record that trial `number` reported `metrics` with a finite objective.

        A report with a `violation` of constraints neither meets the target nor is the best one.
        """
        if self.target is not None:
            if self._first and self.target.metric not in metrics:
                self.say(
                    f"--stop-when must name a metric that trials report, but trial {number} reports no "
                    f"{self.target.metric!r}. {suggest_nearest(self.target.metric, metrics)}"
                )
            if self.target.is_met(metrics) and not violation:
                self.winners.add(number)
                end = (self.end_search if self.confirms_target else None) or self.stop
                end(f"{self.target} in trial {number}")
        self._first = False
        if self._alike is not None:
            self._alike.record_end(number)
        if self._plateau is not None and not violation:
            self._plateau.record_report(number, metrics[self.objective.metric])

    def record_segment_end(self, number: int) -> None:
        """Record that a segment of trial `number` has ended, at a rung or with the trial."""
        if self._alike is not None:
            self._alike.record_end(number)
        if self._plateau is not None:
            self._plateau.record_segment_end(number)
            if self._plateau.is_triggered:
                (self.end_search or self.stop)(f"no better {self.objective.metric} in {self._plateau.patience} trials")

    def record_failure(self, number: int, reason: str, where: str = "") -> None:
        """Record that trial `number` failed. `where` is shown with the reason but not compared."""
        if self._alike is not None:
            self._alike.record_end(number, reason)
            if self._alike.is_triggered:
                self.stop(f"the first {self._alike.many} trials failed with the same error: {reason}{where}")

    def start_timer(self, is_over: threading.Event) -> None:
        """Start a thread that checks the GPU-hours until `is_over` is set."""

        def check() -> None:
            while not is_over.wait(CHECK_S):
                self.check_gpu_hours()

        threading.Thread(target=check, daemon=True, name="budget").start()

    def estimate_time_left(self, live: int) -> float | None:
        """Return in how many seconds `live` trials use up the GPU-hours. None: they have no limit, or no trial runs."""
        if self.gpu_hours is None or not live:
            return None
        return (self.gpu_hours * HOUR - self.meter.total) / (live * self.gpus)

    def check_gpu_hours(self) -> None:
        """Stop the search if all GPU-hours are used, or its trials if only the reserved ones are left."""
        if self.gpu_hours is None:
            return
        reason, spent = f"{self.gpu_hours:g} {self.hours}", self.meter.total / (self.gpu_hours * HOUR)
        if spent >= 1:
            self.stop(reason)
        elif self.end_search is not None and spent >= 1 - self.reserve:
            self.end_search(reason)
