"""What runs next: pure arithmetic over what the study knows.

Asynchronous successive halving (Li et al. 2020, arXiv 1810.05934, algorithm 2), the variant that promotes: a trial
pauses at each rung, and goes on once it is among the best 1/reduction of those that reached the rung.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Standing:
    """A trial that has begun: the objective after each epoch that it finished, and whether a gang trains it now.

    One that has `finished` came to its end, which for a function may lie before the last epoch.
    """

    number: int
    values: Mapping[int, float]
    state: Literal["running", "waiting", "ended"]
    finished: bool = False

    @property
    def epoch(self) -> int:
        return max(self.values, default=0)


@dataclass(frozen=True)
class Stretch:
    """A trial's way from one epoch to another; `number` None asks for a new trial."""

    kind: Literal["new", "continued", "promoted"]
    number: int | None
    start: int
    until: int


@dataclass(frozen=True)
class Schedule:
    """When trials pause and who goes on.

    `rungs` are the epochs at which a trial pauses, rising; the last is a trial's full length.
    """

    rungs: tuple[int, ...]
    reduction_factor: int
    mode: Literal["min", "max"]

    @classmethod
    def halving(cls, epochs: int, reduction_factor: int, grace_period: int, mode: Literal["min", "max"]) -> "Schedule":
        """Rungs at epochs, epochs/reduction_factor and so on, none below grace_period."""
        rungs = [epochs]
        while (lower := round(rungs[0] / reduction_factor)) >= grace_period and lower < rungs[0]:
            rungs.insert(0, lower)
        return cls(tuple(rungs), reduction_factor, mode)

    @classmethod
    def straight(cls, epochs: int, mode: Literal["min", "max"]) -> "Schedule":
        """Every trial runs to its end."""
        return cls((epochs,), 2, mode)

    def next(self, trials: Sequence[Standing], may_start: bool) -> Stretch | None:
        """The stretch to run now, or None if there is nothing to do before a running one has ended.

        Args:
            trials: All trials that have started, ended ones included.
            may_start: Whether the budget has room for a new trial.
        """
        for trial in trials:
            if trial.state == "waiting" and trial.epoch not in self.rungs:  # cut off on its way to a rung
                return Stretch("continued", trial.number, trial.epoch, self._rung_after(trial.epoch))
        for rung, above in self._steps_down():
            ranked = self._ranked(trials, rung)
            for trial in ranked[: len(ranked) // self.reduction_factor]:
                if trial.state == "waiting" and trial.epoch == rung:
                    return Stretch("promoted", trial.number, rung, above)
        if may_start:
            return Stretch("new", None, 0, self.rungs[0])
        return self._last_resort(trials)

    def expected_epochs(self, trials: int) -> float:
        """How many epochs so many trials take together."""
        epochs, going_on = 0.0, float(trials)
        for below, rung in zip((0, *self.rungs), self.rungs, strict=False):
            epochs += going_on * (rung - below)
            going_on = max(1.0, going_on // self.reduction_factor)
        return epochs

    def _last_resort(self, trials: Sequence[Standing]) -> Stretch | None:
        """The best that waits goes on if nothing else will come and no trial has run to its end."""
        if any(trial.state == "running" or trial.finished or self.rungs[-1] in trial.values for trial in trials):
            return None
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
        sign = 1 if self.mode == "min" else -1
        return sorted((t for t in trials if rung in t.values), key=lambda t: (sign * t.values[rung], t.number))
