"""Asynchronous successive halving (Li et al. 2020, arXiv 1810.05934, algorithm 2), the variant that promotes.

A trial pauses at each rung, and goes on once it is among the best 1/reduction of those that reached the rung.
"""

import itertools
from collections.abc import Iterable, Sequence

from search.config.fidelity import Unit
from search.config.objectives import Mode, sign
from search.schedulers.base import Standing, Stretch
from search.schedulers.rungs import Ladder


class Halving(Ladder):
    """When trials pause and who goes on."""

    @classmethod
    def straight(cls, limit: float, mode: Mode, unit: Unit = "epochs") -> "Halving":
        """Every trial runs to its end."""
        return cls((limit,), 2, mode, unit)

    def next(self, trials: Sequence[Standing], may_start: bool) -> Stretch | None:
        """The stretch to run now; nobody is ended before the search is."""
        if stretch := self.going_on(trials):
            return stretch
        if may_start:
            return Stretch("new", None, 0, self.rungs[0])
        return last_resort([(self, trials)])

    def rests(self, trial: Standing) -> bool:
        return trial.rung(self.rungs) is not None

    def going_on(self, trials: Sequence[Standing]) -> Stretch | None:
        """A trial that was cut off on its way to a rung, else one that is to be promoted."""
        for trial in trials:
            if trial.state == "waiting" and trial.rung(self.rungs) is None:
                return Stretch("continued", trial.number, trial.epoch, self.rung_after(trial.reached))
        for rung, above in self._steps_down():
            ranked = self._ranked(trials, rung)
            for trial in ranked[: len(ranked) // self.reduction_factor]:
                if trial.state == "waiting" and trial.rung(self.rungs) == rung:
                    return Stretch("promoted", trial.number, trial.epoch, above)
        return None

    def best_waiting(self, trials: Sequence[Standing]) -> Stretch | None:
        """The best of the highest rung at which one waits."""
        for rung, above in self._steps_down():
            for trial in self._ranked(trials, rung):
                if trial.state == "waiting" and trial.rung(self.rungs) == rung:
                    return Stretch("promoted", trial.number, trial.epoch, above)
        return None

    def _steps_down(self) -> list[tuple[float, float]]:
        """Each rung but the last with the one above it, highest first."""
        return list(itertools.pairwise(self.rungs))[::-1]

    def _ranked(self, trials: Sequence[Standing], rung: float) -> list[Standing]:
        """Those that reached `rung`, best first. One that broke off later comes last, however good it looked there.

        Else what lies just beyond a cliff holds the places of what lies safely before it.
        """
        better = sign(self.mode)
        values = {trial.number: value for trial in trials if (value := trial.value_at(rung)) is not None}
        reached = (trial for trial in trials if trial.number in values)
        return sorted(reached, key=lambda t: (t.broke_off, better * values[t.number], t.number))


def last_resort(brackets: Iterable[tuple[Halving, Sequence[Standing]]]) -> Stretch | None:
    """One that waits goes on if nothing else will come and no trial has run to its end: the one nearest to it."""
    brackets = list(brackets)
    for bracket, trials in brackets:
        if any(t.state == "running" or t.finished or t.is_over(bracket.limit) for t in trials):
            return None
    stretches = [stretch for bracket, trials in brackets if (stretch := bracket.best_waiting(trials))]
    return max(stretches, key=lambda stretch: stretch.until, default=None)
