"""What a scheduler is asked and what it answers: pure arithmetic over what the study knows.

Nothing is kept between two questions. A search that is taken up after a crash asks again and goes on.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, Self

from search.config.fidelity import Unit, format_amount, unit_label
from search.config.objectives import Mode


@dataclass(frozen=True)
class TrialProgress:
    """A trial that has begun: the objective after each epoch that it finished, and whether a gang trains it now.

    A copy begins at epoch `start` with the weights of `copied_from`, in the place of `replaces`, if that had not
    ended already. One that has `finished` came to its end, which for a function may lie before the last epoch, and one
    that `broke_off` diverged or failed.

    `epochs` is its own length, and `spent` what it had got by the end of each epoch, in order and in the schedule's
    unit of fidelity; None where that is the epochs themselves.

    `confirmed_before` counts the runs that confirmed the search before the trial began: they have numbers, too.
    """

    number: int
    values: Mapping[int, float]
    state: Literal["running", "waiting", "ended"]
    start: int = 0
    copied_from: int | None = None
    replaces: int | None = None
    finished: bool = False
    broke_off: bool = False
    epochs: float = math.inf
    spent: Mapping[int, float] | None = None
    confirmed_before: int = 0

    @property
    def index(self) -> int:
        """Return how many trials of the search began before it."""
        return self.number - self.confirmed_before

    @cached_property
    def epoch(self) -> int:
        return max(self.values, default=self.start)

    @cached_property
    def total_cost(self) -> float:
        """What it has got so far."""
        return self.epoch if self.spent is None else self.spent.get(self.epoch, 0.0)

    def is_complete(self, limit: float) -> bool:
        """Whether it has come to its end, which lies at its own epochs or where it has got `limit`."""
        return self.epoch >= self.epochs or self.total_cost >= limit

    def get_value_at(self, rung: float) -> float | None:
        """The objective of the first report by which it had got so much, or None before that.

        One that came to its end without would be no better for more of it, and has the value of its last report.
        """
        if self.total_cost >= rung:
            if self.spent is None:
                return self.values.get(int(rung))
            return next(self.values[epoch] for epoch, spent in self.spent.items() if spent >= rung)
        return self.values[self.epoch] if self.finished and self.values else None

    def current_rung(self, rungs: Sequence[float]) -> float | None:
        """The highest of `rungs` that it reached with its last report, or None if it stands between two of them."""
        if self.spent is None:
            return self.epoch if self.values and self.epoch in rungs else None
        before = max((spent for epoch, spent in self.spent.items() if epoch < self.epoch), default=0.0)
        return max((rung for rung in rungs if before < rung <= self.total_cost), default=None)

    def values_by_rung(self, rungs: Sequence[float]) -> dict[int, float]:
        """Its value at each of `rungs` that it reached, counted from 1; under 0, its last one if it reached none."""
        values = {place: value for place, rung in enumerate(rungs, 1) if (value := self.get_value_at(rung)) is not None}
        return values or ({0: self.values[self.epoch]} if self.values else {})


@dataclass(frozen=True)
class Segment:
    """A trial's way from the epoch `start` to where it has got `until`; `number` None asks for a new trial.

    `until` is in the unit of fidelity, `copied_from` and `replaces` are those of a copy, `draw` is the seed of
    what is random in it.
    """

    kind: Literal["new", "continued", "promoted", "copied"]
    number: int | None
    start: int
    until: float
    copied_from: int | None = None
    replaces: int | None = None
    draw: str = ""


@dataclass(frozen=True)
class Prune:
    """A trial that goes no further."""

    number: int
    reason: str


class Scheduler(Protocol):
    """Decides when trials pause, which continue and which end. Its text is what --dry-run says of it."""

    @property
    def unit(self) -> Unit:
        """The unit in which the budget of a trial is measured."""

    @property
    def limit(self) -> float:
        """The most that a trial gets."""

    @property
    def rungs(self) -> Sequence[float]:
        """How much trials have got when they are compared for the last time. The last rung is the limit."""

    def next_action(self, trials: Sequence[TrialProgress], may_start: bool) -> Segment | Prune | None:
        """Return what to do now, or None if there is nothing to do before a running segment has ended.

        Args:
            trials: All trials that have started, ended ones included.
            may_start: Whether the budget has room for a new trial.
        """

    def is_paused_at_rung(self, trial: TrialProgress) -> bool:
        """Return whether `trial` waits because others were better, and has lost if the search ends now."""

    def expected_cost(self, trials: int) -> float:
        """Return how much so many trials get together."""


class EpochScheduler:
    """A base of schedulers that know epochs alone, and pause no trial."""

    epochs: int
    unit: Unit = "epochs"

    @property
    def limit(self) -> float:
        return self.epochs

    @property
    def rungs(self) -> tuple[float, ...]:
        return (self.epochs,)

    def is_paused_at_rung(self, trial: TrialProgress) -> bool:
        return False


@dataclass(frozen=True)
class RungScheduler:
    """A base of the kinds of successive halving.

    `rungs` rise, in `unit`. The last one is all that a trial gets. One in `reduction_factor` continues at each.
    """

    rungs: tuple[float, ...]
    reduction_factor: int
    mode: Mode
    unit: Unit = "epochs"

    @classmethod
    def from_config(
        cls, limit: float, reduction_factor: int, grace_period: float, mode: Mode, unit: Unit = "epochs"
    ) -> Self:
        """Return a scheduler with rungs at limit, limit/reduction_factor and so on, none below grace_period."""
        rungs = [limit]
        while grace_period <= (lower := _compute_lower_rung(rungs[0], reduction_factor, unit)) < rungs[0]:
            rungs.insert(0, lower)
        return cls(tuple(rungs), reduction_factor, mode, unit)

    def __str__(self) -> str:
        return f"rungs: {', '.join(format_amount(rung) for rung in self.rungs)} {unit_label(self.unit)}"

    @property
    def limit(self) -> float:
        return self.rungs[-1]

    def is_paused_at_rung(self, trial: TrialProgress) -> bool:
        return False

    def expected_cost(self, trials: int) -> float:
        total, going_on = 0.0, float(trials)
        for below, rung in zip((0, *self.rungs), self.rungs, strict=False):
            total += going_on * (rung - below)
            going_on = max(1.0, going_on // self.reduction_factor)
        return total if trials else 0.0

    def get_next_rung(self, reached: float) -> float:
        """Return the next rung for a trial that has got so much."""
        return next(rung for rung in self.rungs if rung > reached)


def _compute_lower_rung(rung: float, reduction_factor: int, unit: Unit) -> float:
    return round(rung / reduction_factor) if unit == "epochs" else rung / reduction_factor
