"""How long a search has run by some moment, without the time in which nothing ran: between two of its drivers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial

from search.timeline import timeline
from search.trials import reports_of

PAUSE_S = 30.0  # less is no pause


@dataclass(frozen=True)
class Elapsed:
    """The times in which the search ran, from and until, in order; in seconds since 1970."""

    periods: tuple[tuple[float, float], ...]

    def __call__(self, moment: float) -> float:
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
        return [(self(end), start - end) for (_, end), (start, _) in following]


def elapsed(trials: Sequence[FrozenTrial]) -> Elapsed:
    """When the search of `trials` ran. Where nothing is known of its gangs, from its first sign to its last."""
    spans = [(span.start, span.end) for span in timeline(trials)]
    signs = list(_signs(trials))
    if not spans and signs:
        return Elapsed(((min(signs), max(signs)),))
    return Elapsed(tuple(_merged([*spans, *((sign, sign) for sign in signs)])))


def _signs(trials: Sequence[FrozenTrial]) -> Iterator[float]:
    for trial in trials:
        yield from (moment.timestamp() for moment in (trial.datetime_start, trial.datetime_complete) if moment)
        yield from (report["time"] for report in reports_of(trial).values() if "time" in report)


def _merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1] + PAUSE_S:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged
