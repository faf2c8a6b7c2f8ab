"""Where the time of the gangs went: workers that start, train or wait."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any, Literal

from optuna.trial import FrozenTrial

from searchlight.search.study.record import SearchRecord
from searchlight.search.study.trial import get_reports, get_segments

Kind = Literal["start-up", "training", "waiting"]


@dataclass(frozen=True)
class Span:
    """An activity of a gang from `start` to `end`, in seconds since 1970.

    The kind `start-up` covers the start of workers, and building or loading a trial. `training` covers epochs with
    their evaluation. `waiting` covers the rest, such as the writing of checkpoints.

    Attributes:
        trial: The number of the trial. None between two segments.
    """

    gang: str
    trial: int | None
    kind: Kind
    start: float
    end: float


def build_timeline(trials: Sequence[FrozenTrial]) -> list[Span]:
    """Return the activities of each gang, in order of time.

    A driver that was killed has left no more of its last stretches than the epochs that they reported.
    """
    gangs: dict[str, list[Span]] = defaultdict(list)
    for trial in trials:
        for span in _build_trial_spans(trial):
            if span.end > span.start:
                gangs[span.gang].append(span)
    return [span for spans in gangs.values() for span in _fill_gaps(sorted(spans, key=lambda span: span.start))]


def _build_trial_spans(trial: FrozenTrial) -> Iterator[Span]:
    reports = [report for report in get_reports(trial).values() if "gang" in report]
    for stretch in (stretch for stretch in get_segments(trial) if "gang" in stretch):
        own = [report for report in reports if _is_in_segment(report, stretch)]
        reports = [report for report in reports if not _is_in_segment(report, stretch)]
        yield from _build_segment_spans(trial.number, stretch, own)
    yield from (_build_epoch_span(trial.number, report, 0.0) for report in reports)


def _is_in_segment(report: dict[str, Any], stretch: dict[str, Any]) -> bool:
    return report["gang"] == stretch["gang"] and bool(stretch["began"] <= report["time"] <= stretch["ended"])


def _build_segment_spans(number: int, stretch: dict[str, Any], reports: Sequence[dict[str, Any]]) -> Iterator[Span]:
    epochs = [_build_epoch_span(number, report, stretch["began"]) for report in reports]
    trained = epochs[0].start if epochs else stretch.get("taken", stretch["ended"])
    yield Span(stretch["gang"], number, "start-up", stretch["began"], trained)
    yield from epochs
    # An epoch that was begun, and broke off: it ended the stretch, since no report did.
    yield Span(stretch["gang"], number, "training", epochs[-1].end if epochs else trained, stretch["ended"])


def _build_epoch_span(number: int, report: dict[str, Any], earliest: float) -> Span:
    start = max(report["time"] - report.get("seconds", 0.0), earliest)
    return Span(report["gang"], number, "training", start, report["time"])


def _fill_gaps(spans: Sequence[Span]) -> Iterator[Span]:
    """Yield the spans, and one for each gap between them."""
    for span, after in pairwise(spans):
        yield span
        if after.start > span.end:
            trial = span.trial if span.trial == after.trial else None
            yield Span(span.gang, trial, "waiting", span.end, after.start)
    yield from spans[-1:]


@dataclass(frozen=True)
class RunningTime:
    """The times in which drivers ran the search, from and until, in order; in seconds since 1970."""

    periods: tuple[tuple[float, float], ...]

    def at(self, moment: float) -> float:
        """Return for how many seconds drivers had run the search at `moment`, in seconds since 1970."""
        return sum(min(end, moment) - start for start, end in self.periods if start < moment)

    @property
    def total(self) -> float:
        """The duration of the search: the seconds that its drivers ran, without the pauses between them."""
        return sum(end - start for start, end in self.periods)

    @property
    def start(self) -> float | None:
        """The start of the search in seconds since 1970, or None if it is unknown."""
        return self.periods[0][0] if self.periods else None

    @property
    def end(self) -> float | None:
        """The end of the search in seconds since 1970, or None if it is unknown."""
        return self.periods[-1][1] if self.periods else None

    @property
    def pauses(self) -> list[tuple[float, float]]:
        """The pauses between drivers: the running time before each pause, and its duration, in seconds."""
        following = zip(self.periods, self.periods[1:], strict=False)
        return [(self.at(end), max(0.0, start - end)) for (_, end), (start, _) in following]


def running_time(record: SearchRecord) -> RunningTime:
    """Return when the drivers of a search ran it, each from its start to the end of its last trial.

    A driver that was killed, or still runs, counts until the last thing that the study has of it. Drivers that recorded
    nothing of themselves count together, from the first thing to the last.
    """
    signs = sorted(_collect_timestamps(record.all_trials))
    starts = [start for start, _ in record.drivers]
    unrecorded = [sign for sign in signs if sign < min(starts, default=inf)]
    periods = [(unrecorded[0], unrecorded[-1])] if unrecorded else []
    for (start, end), following in zip(record.drivers, [*starts[1:], inf], strict=False):
        last = max((sign for sign in signs if start <= sign < following), default=start)
        periods.append((start, max(start, last if end is None else end)))  # the clock may have been set back
    return RunningTime(tuple(periods))


def _collect_timestamps(trials: Sequence[FrozenTrial]) -> Iterator[float]:
    for trial in trials:
        yield from (moment.timestamp() for moment in (trial.datetime_start, trial.datetime_complete) if moment)
        yield from (report["time"] for report in get_reports(trial).values() if "time" in report)
        yield from (segment["ended"] for segment in get_segments(trial))
