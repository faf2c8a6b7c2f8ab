"""Where the time of the gangs went: workers that start, train or wait."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from optuna.trial import FrozenTrial

from search.study.trial import get_reports, get_segments

Kind = Literal["start-up", "training", "waiting"]
PAUSE_S = 30.0  # less is no pause


@dataclass(frozen=True)
class Span:
    """What a gang did from `start` to `end`, in seconds since 1970.

    `start-up` is of workers that come up, and of a trial that is built or loaded; `training` of epochs with their
    evaluation; `waiting` what lies between: checkpoints that are written, and stretches that are handed out.

    Attributes:
        trial: Its number; None between two stretches.
    """

    gang: str
    trial: int | None
    kind: Kind
    start: float
    end: float


def build_timeline(trials: Sequence[FrozenTrial]) -> list[Span]:
    """What each gang did, in order.

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
    """With what lies between them."""
    for span, after in pairwise(spans):
        yield span
        if after.start > span.end:
            trial = span.trial if span.trial == after.trial else None
            yield Span(span.gang, trial, "waiting", span.end, after.start)
    yield from spans[-1:]


@dataclass(frozen=True)
class RunningTime:
    """The times in which the search ran, from and until, in order; in seconds since 1970."""

    periods: tuple[tuple[float, float], ...]

    def at(self, moment: float) -> float:
        """The seconds that it had run by then."""
        return sum(min(end, moment) - start for start, end in self.periods if start < moment)

    @property
    def total(self) -> float:
        """The seconds that it ran."""
        return sum(end - start for start, end in self.periods)

    @property
    def pauses(self) -> list[tuple[float, float]]:
        """After how many seconds it paused, and for how long."""
        following = zip(self.periods, self.periods[1:], strict=False)
        return [(self.at(end), start - end) for (_, end), (start, _) in following]


def running_time(trials: Sequence[FrozenTrial]) -> RunningTime:
    """When the search of `trials` ran. Where nothing is known of its gangs, from its first sign to its last."""
    spans = [(span.start, span.end) for span in build_timeline(trials)]
    signs = list(_collect_timestamps(trials))
    if not spans and signs:
        return RunningTime(((min(signs), max(signs)),))
    return RunningTime(tuple(_merge_spans([*spans, *((sign, sign) for sign in signs)])))


def _collect_timestamps(trials: Sequence[FrozenTrial]) -> Iterator[float]:
    for trial in trials:
        yield from (moment.timestamp() for moment in (trial.datetime_start, trial.datetime_complete) if moment)
        yield from (report["time"] for report in get_reports(trial).values() if "time" in report)


def _merge_spans(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1] + PAUSE_S:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged
