"""Asynchronous successive halving (Li et al. 2020, arXiv 1810.05934, algorithm 2), the variant that promotes.

A trial pauses at each rung, and goes on once it is among the best 1/reduction of those that reached the rung.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from search.schedule import Mode, Standing, Stretch, sign


@dataclass(frozen=True)
class Halving:
    """When trials pause and who goes on.

    `rungs` are the epochs at which a trial pauses, rising; the last is a trial's full length.
    """

    rungs: tuple[int, ...]
    reduction_factor: int
    mode: Mode

    @classmethod
    def over(cls, epochs: int, reduction_factor: int, grace_period: int, mode: Mode) -> "Halving":
        """Rungs at epochs, epochs/reduction_factor and so on, none below grace_period."""
        rungs = [epochs]
        while (lower := round(rungs[0] / reduction_factor)) >= grace_period and lower < rungs[0]:
            rungs.insert(0, lower)
        return cls(tuple(rungs), reduction_factor, mode)

    @classmethod
    def straight(cls, epochs: int, mode: Mode) -> "Halving":
        """Every trial runs to its end."""
        return cls((epochs,), 2, mode)

    def __str__(self) -> str:
        return f"rungs: {', '.join(str(rung) for rung in self.rungs)} epochs"

    @property
    def epochs(self) -> int:
        return self.rungs[-1]

    def next(self, trials: Sequence[Standing], may_start: bool) -> Stretch | None:
        """The stretch to run now; nobody is ended before the search is."""
        if stretch := self.going_on(trials):
            return stretch
        if may_start:
            return Stretch("new", None, 0, self.rungs[0])
        return last_resort([(self, trials)])

    def rests(self, trial: Standing) -> bool:
        return trial.epoch in self.rungs

    def expected_epochs(self, trials: int) -> float:
        epochs, going_on = 0.0, float(trials)
        for below, rung in zip((0, *self.rungs), self.rungs, strict=False):
            epochs += going_on * (rung - below)
            going_on = max(1.0, going_on // self.reduction_factor)
        return epochs if trials else 0.0

    def going_on(self, trials: Sequence[Standing]) -> Stretch | None:
        """A trial that was cut off on its way to a rung, else one that is to be promoted."""
        for trial in trials:
            if trial.state == "waiting" and trial.epoch not in self.rungs:
                return Stretch("continued", trial.number, trial.epoch, self._rung_after(trial.epoch))
        for rung, above in self._steps_down():
            ranked = self._ranked(trials, rung)
            for trial in ranked[: len(ranked) // self.reduction_factor]:
                if trial.state == "waiting" and trial.epoch == rung:
                    return Stretch("promoted", trial.number, rung, above)
        return None

    def best_waiting(self, trials: Sequence[Standing]) -> Stretch | None:
        """The best of the highest rung at which one waits."""
        for rung, above in self._steps_down():
            for trial in self._ranked(trials, rung):
                if trial.state == "waiting" and trial.epoch == rung:
                    return Stretch("promoted", trial.number, rung, above)
        return None

    def _steps_down(self) -> list[tuple[int, int]]:
        """Each rung but the last with the one above it, highest first."""
        return list(itertools.pairwise(self.rungs))[::-1]

    def _rung_after(self, epoch: int) -> int:
        return next(rung for rung in self.rungs if rung > epoch)

    def _ranked(self, trials: Sequence[Standing], rung: int) -> list[Standing]:
        better = sign(self.mode)
        return sorted((t for t in trials if rung in t.values), key=lambda t: (better * t.values[rung], t.number))


def last_resort(brackets: Iterable[tuple[Halving, Sequence[Standing]]]) -> Stretch | None:
    """One that waits goes on if nothing else will come and no trial has run to its end: the one nearest to it."""
    brackets = list(brackets)
    for bracket, trials in brackets:
        if any(t.state == "running" or t.finished or bracket.epochs in t.values for t in trials):
            return None
    stretches = [stretch for bracket, trials in brackets if (stretch := bracket.best_waiting(trials))]
    return max(stretches, key=lambda stretch: stretch.start, default=None)
