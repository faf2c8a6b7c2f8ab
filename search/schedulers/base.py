"""The interface of schedulers, which compute their answers from the trials of a study alone.

A scheduler keeps no state between two calls. So a search that resumes after a crash calls it again and continues.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, Protocol, Self

from searchlight.search.space.fidelity import Unit, format_amount, unit_label
from searchlight.search.space.objectives import Mode

# Between two rungs, as a share of the reduction factor. Rounding would put a rung of 50 epochs at 1, below one at 2.
CLOSEST = 0.75


@dataclass(frozen=True)
class TrialProgress:
    """A trial that has started: the objective after each finished epoch, and whether a gang trains it now.

    A copy starts at epoch `start` with the weights of `copied_from`. It replaces the trial `replaces`, unless that had
    ended already. A trial that has `finished` reached its end, which for a function may lie before the last epoch. A
    trial that `broke_off` diverged or failed.

    `epochs` is the length of the trial. `spent` is its budget used by the end of each epoch, in order and in the
    scheduler's unit of fidelity. It is None where that unit is epochs.

    `confirmed_before` is the number of confirming runs before the trial started, since they have numbers, too.
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
        """Return the number of trials of the search that started before this one."""
        return self.number - self.confirmed_before

    @cached_property
    def epoch(self) -> int:
        return max(self.values, default=self.start)

    @cached_property
    def total_cost(self) -> float:
        """Return the budget that the trial has used so far."""
        return self.epoch if self.spent is None else self.spent.get(self.epoch, 0.0)

    def is_complete(self, limit: float) -> bool:
        """Return whether the trial has reached its own number of epochs or the budget `limit`."""
        return self.epoch >= self.epochs or self.total_cost >= limit

    def get_value_at(self, rung: float) -> float | None:
        """Return the objective of the first report at or after the budget `rung`, or None before that.

        A trial that finished below `rung` has the value of its last report, since more budget would not change it.
        """
        if self.total_cost >= rung:
            if self.spent is None:
                return self.values.get(int(rung))
            return next(self.values[epoch] for epoch, spent in self.spent.items() if spent >= rung)
        return self.values[self.epoch] if self.finished and self.values else None

    def current_rung(self, rungs: Sequence[float]) -> float | None:
        """Return the highest of `rungs` that the last report reached, or None if the trial is between two rungs."""
        if self.spent is None:
            return self.epoch if self.values and self.epoch in rungs else None
        before = max((spent for epoch, spent in self.spent.items() if epoch < self.epoch), default=0.0)
        return max((rung for rung in rungs if before < rung <= self.total_cost), default=None)

    def values_by_rung(self, rungs: Sequence[float]) -> dict[int, float]:
        """Return the value at each reached rung, counted from 1. If none was reached, key 0 has the last value."""
        values = {place: value for place, rung in enumerate(rungs, 1) if (value := self.get_value_at(rung)) is not None}
        return values or ({0: self.values[self.epoch]} if self.values else {})


@dataclass(frozen=True)
class Segment:
    """A part of a trial, from the epoch `start` to the budget `until`. `number` None asks for a new trial.

    `until` is in the unit of fidelity. A copy has the number of the trial that it continues, `copied_from`, and of the
    trial that it replaces, `replaces`. `draw` is the seed of its random choices.
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
    """A trial to prune, and the reason."""

    number: int
    reason: str


@dataclass(frozen=True)
class SchedulerSettings:
    """What a scheduler is created from. Each uses what it knows.

    Attributes:
        limit: The largest budget of a trial, in `unit`.
        mode: "min" or "max", the direction of the first objective.
        unit: The unit of fidelity.
        judged_from: The first epoch whose value predicts the final one.
        seed: The seed of random choices.
        reduction_factor: At a rung, one of this many trials continues.
        grace_period: The budget before which no trial ends early, or None for the default.
        population: The size of a population, or None for the default.
        exploit_every: The epochs between comparisons of a population, or None for the default.
        starts_with_defaults: Whether the first trial has the task's defaults.
    """

    limit: float
    mode: Mode
    unit: Unit = "epochs"
    judged_from: int = 1
    seed: int = 0
    reduction_factor: int = 3
    grace_period: float | None = None
    population: int | None = None
    exploit_every: int | None = None
    starts_with_defaults: bool = False

    @property
    def lowest_rung(self) -> float:
        """The lowest budget of a rung. The default for samples and seconds is two rungs below the limit."""
        if self.grace_period is not None:
            return self.grace_period
        return self.judged_from if self.unit == "epochs" else self.limit / self.reduction_factor / self.reduction_factor


class SchedulerTraits:
    """What sets a class of schedulers apart. Each attribute has the value that holds for most of them.

    Attributes:
        own_options: The options that only some schedulers use, and this one does.
        counts_epochs: Whether it compares trials by epochs only.
        makes_copies: Whether trials may continue from another trial's weights with other hyperparameters.
        pauses: Whether trials pause, and continue later where they were.
    """

    own_options: ClassVar[tuple[str, ...]] = ()
    counts_epochs: ClassVar[bool] = False
    makes_copies: ClassVar[bool] = False
    pauses: ClassVar[bool] = False

    @property
    def max_fresh_trials(self) -> int | None:
        """The number of trials that start from new weights, or None if all do."""
        return None


class Scheduler(Protocol):
    """Decides when trials pause, which continue and which end. --dry-run prints its `__str__`.

    `SchedulerTraits` describes what is not described here.

    >>> from searchlight.search.schedulers.asha import ASHAScheduler
    >>> asha = ASHAScheduler.create(SchedulerSettings(limit=9, mode="min"))
    >>> asha.next_action([], may_start=True)
    Segment(kind='new', number=None, start=0, until=1, copied_from=None, replaces=None, draw='')
    """

    own_options: ClassVar[tuple[str, ...]]
    counts_epochs: ClassVar[bool]
    makes_copies: ClassVar[bool]
    pauses: ClassVar[bool]

    @classmethod
    def create(cls, settings: SchedulerSettings) -> Self:
        """Return the scheduler of a search.

        Raises:
            UsageError: Trials are too short for it.
        """

    @property
    def max_fresh_trials(self) -> int | None:
        """The number of trials that start from new weights, or None if all do."""

    @property
    def unit(self) -> Unit:
        """The unit in which the budget of a trial is measured."""

    @property
    def limit(self) -> float:
        """The largest budget of a trial."""

    @property
    def rungs(self) -> Sequence[float]:
        """The budgets at which trials are compared. The last rung is the limit."""

    def next_action(self, trials: Sequence[TrialProgress], may_start: bool) -> Segment | Prune | None:
        """Return the next action, or None if the scheduler must wait for a running segment to end.

        Args:
            trials: All trials that have started, ended ones included.
            may_start: Whether the budget has room for a new trial.
        """

    def is_paused_at_rung(self, trial: TrialProgress) -> bool:
        """Return whether `trial` waits at a rung because others were better. If the search ends now, it is pruned."""

    def expected_cost(self, trials: int) -> float:
        """Return the expected total budget of `trials` trials."""


class EpochScheduler(SchedulerTraits):
    """A base of schedulers that count epochs only and pause no trial."""

    counts_epochs = True
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
class RungScheduler(SchedulerTraits):
    """A base of the variants of successive halving.

    `rungs` are ascending budgets in `unit`. The last one is the limit of a trial. One trial in `reduction_factor`
    continues at each rung.
    """

    own_options: ClassVar[tuple[str, ...]] = ("reduction_factor", "grace_period")
    rungs: tuple[float, ...]
    reduction_factor: int
    mode: Mode
    unit: Unit = "epochs"

    @classmethod
    def create(cls, settings: SchedulerSettings) -> Self:
        return cls.from_config(
            settings.limit, settings.reduction_factor, settings.lowest_rung, settings.mode, settings.unit
        )

    @classmethod
    def from_config(
        cls, limit: float, reduction_factor: int, grace_period: float, mode: Mode, unit: Unit = "epochs"
    ) -> Self:
        """Return a scheduler with rungs at limit, limit/reduction_factor and so on, none below grace_period.

        Epochs are rounded. Below two rungs, none is added that is nearer to the next one than CLOSEST.
        """
        rungs = [limit]
        while grace_period <= (lower := _compute_lower_rung(rungs[0], reduction_factor, unit)) < rungs[0]:
            if len(rungs) > 1 and rungs[0] < CLOSEST * reduction_factor * lower:
                break
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
        """Return the next rung above the budget `reached`."""
        return next(rung for rung in self.rungs if rung > reached)


def _compute_lower_rung(rung: float, reduction_factor: int, unit: Unit) -> float:
    return round(rung / reduction_factor) if unit == "epochs" else rung / reduction_factor
