"""Turns the measurements of a program into the numbered reports that a search judges."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

LIMIT = 10_000  # steps that are remembered; a metric of each update may have millions


class Measurement(NamedTuple):
    """Metrics that a program gave at once, e.g. by one call of a logger.

    Attributes:
        source: Where they were heard, e.g. "TensorBoard" or "output".
        step: The program's own count of epochs, updates or samples, or None.
    """

    source: str
    step: float | None
    metrics: Mapping[str, float]


class Report(NamedTuple):
    """One value of every objective, and other metrics that came since the report before.

    Attributes:
        replaces: Whether an earlier report had this step. Its values are then out of date.
        at: When it was complete, by `time.perf_counter`, or None for one of an earlier start of the program.
    """

    step: float | None
    metrics: dict[str, float]
    replaces: bool = False
    at: float | None = None


class Seen(NamedTuple):
    """What is known of a metric: how many values it had, from where, and the last one.

    Only its first source counts, since loggers often get the same values.
    """

    times: int
    source: str
    last: float


class ReportCollector:
    """Joins the values of a step into a report, which is complete when it has every objective.

    An objective without a step counts by itself: each of its values is a report. With `every`, the report of a window
    has the means of the objectives in it. Windows are (0, every], (every, 2 * every] and so on. A value without a step
    is then one step. A window without any value gives no report.

    Args:
        every: Width of a window in steps, or None for no means.
        sources: By metric, the only source that counts. For other metrics it is their first one.
    """

    def __init__(
        self, objectives: Iterable[str], every: float | None = None, sources: Mapping[str, str] | None = None
    ) -> None:
        self.seen: dict[str, Seen] = {}
        self._objectives = tuple(objectives)
        self._every = every
        self._sources = dict(sources or {})
        self._waiting: dict[float | None, dict[str, float]] = {}  # by step, objectives of incomplete reports
        self._reported: dict[float, dict[str, float]] = {}  # by step, objectives of complete reports
        self._others: dict[str, float] = {}  # since the last report
        self._windows: dict[int, dict[str, list[float]]] = {}
        self._latest: dict[str, int] = {}  # by objective, its last window
        self._closed = -1  # the last window that takes no more values

    def remember(self, report: Report) -> None:
        """Take a report of an earlier start of the program, which may repeat its step."""
        if report.step is None:
            return
        if self._every is not None:
            self._closed = max(self._closed, round(report.step / self._every) - 1)
        self._reported[report.step] = {name: report.metrics[name] for name in self._objectives}

    def add(self, measurement: Measurement) -> list[Report]:
        """Take a measurement and return the reports that it completes."""
        own: dict[str, float] = {}
        for name, value in measurement.metrics.items():
            if self._sources.setdefault(name, measurement.source) == measurement.source:
                before = self.seen.get(name)
                self.seen[name] = Seen(before.times + 1 if before else 1, measurement.source, value)
                (own if name in self._objectives else self._others)[name] = value
        if not own:
            return []
        step = measurement.step if measurement.step is not None and math.isfinite(measurement.step) else None
        if self._every is not None:
            return self._add_to_windows(step, own, self._every)
        return self._add_to_step(step, own)

    def finish(self) -> list[Report]:
        """Return the last reports. The program has ended."""
        return self._close_windows(max(self._windows, default=-1)) if self._every is not None else []

    @property
    def missing(self) -> list[str]:
        """Objectives that the program never gave."""
        return [name for name in self._objectives if name not in self.seen]

    def _add_to_step(self, step: float | None, own: dict[str, float]) -> list[Report]:
        if step is not None and (reported := self._reported.get(step)):
            if all(_is_equal(reported[name], value) for name, value in own.items()):
                return []
            reported.update(own)
            return [self._build(step, reported, replaces=True)]
        waiting = self._waiting.setdefault(step, {})
        waiting.update(own)
        if len(waiting) < len(self._objectives):
            _forget_oldest(self._waiting)
            return []
        del self._waiting[step]
        if step is not None:
            self._reported[step] = waiting
            _forget_oldest(self._reported)
        return [self._build(step, waiting)]

    def _add_to_windows(self, step: float | None, own: dict[str, float], every: float) -> list[Report]:
        for name, value in own.items():
            place = self.seen[name].times if step is None else step
            window = max(math.ceil(place / every) - 1, 0)
            if window > self._closed:
                self._windows.setdefault(window, {}).setdefault(name, []).append(value)
                self._latest[name] = max(window, self._latest.get(name, 0))
        if len(self._latest) < len(self._objectives):
            return []
        return self._close_windows(min(self._latest.values()) - 1)

    def _close_windows(self, last: int) -> list[Report]:
        """Return the reports of the windows up to `last`. Drop those that lack an objective."""
        self._closed = max(last, self._closed)
        reports = []
        for window in sorted(window for window in self._windows if window <= last):
            values = self._windows.pop(window)
            if len(values) == len(self._objectives):
                means = {name: math.fsum(numbers) / len(numbers) for name, numbers in values.items()}
                reports.append(self._build((window + 1) * float(self._every or 1), means))
        return reports

    def _build(self, step: float | None, objectives: Mapping[str, float], replaces: bool = False) -> Report:
        others, self._others = self._others, {}
        return Report(step, {**{name: objectives[name] for name in self._objectives}, **others}, replaces)


def _is_equal(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _forget_oldest(steps: dict[float, dict[str, float]] | dict[float | None, dict[str, float]]) -> None:
    while len(steps) > LIMIT:
        del steps[next(iter(steps))]  # type: ignore[arg-type]
