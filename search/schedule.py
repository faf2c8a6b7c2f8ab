"""What runs next: pure arithmetic over what the study knows.

Asynchronous successive halving (Li et al. 2020, arXiv 1810.05934, algorithm 2), the variant that promotes: a trial
pauses at each rung, and goes on once it is among the best 1/reduction of those that reached the rung.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Standing:
    """A trial that has begun: the objective after each epoch that it finished, and whether a gang trains it now."""

    number: int
    values: Mapping[int, float]
    state: Literal["running", "waiting", "ended"]

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
        # When nothing else will come, the best of a rung goes on, so that some trial runs to its end.
        at_least = 0 if may_start or any(trial.state == "running" for trial in trials) else 1
        for rung, above in reversed(list(zip(self.rungs, self.rungs[1:], strict=False))):
            best = self._ranked(trials, rung)
            for number in best[: max(at_least, len(best) // self.reduction_factor)]:
                trial = next(trial for trial in trials if trial.number == number)
                if trial.state == "waiting" and trial.epoch == rung:
                    return Stretch("promoted", number, rung, above)
        return Stretch("new", None, 0, self.rungs[0]) if may_start else None

    def expected_epochs(self, trials: int) -> float:
        """How many epochs so many trials take together."""
        epochs, going_on = 0.0, float(trials)
        for below, rung in zip((0, *self.rungs), self.rungs, strict=False):
            epochs += going_on * (rung - below)
            going_on = max(1.0, going_on // self.reduction_factor)
        return epochs

    def _rung_after(self, epoch: int) -> int:
        return next(rung for rung in self.rungs if rung > epoch)

    def _ranked(self, trials: Sequence[Standing], rung: int) -> list[int]:
        sign = 1 if self.mode == "min" else -1
        return [number for _, number in sorted((sign * t.values[rung], t.number) for t in trials if rung in t.values)]
