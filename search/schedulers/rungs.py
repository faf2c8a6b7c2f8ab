"""Rungs: how much a trial has got when it is compared with others."""

from dataclasses import dataclass
from typing import Self

from search.config.fidelity import Unit, format_amount, unit_label
from search.config.objectives import Mode
from search.schedulers.base import TrialProgress


@dataclass(frozen=True)
class RungScheduler:
    """What the kinds of successive halving share.

    `rungs` rise, in `unit`; the last is all that a trial gets. One in `reduction_factor` goes on at each.
    """

    rungs: tuple[float, ...]
    reduction_factor: int
    mode: Mode
    unit: Unit = "epochs"

    @classmethod
    def from_config(
        cls, limit: float, reduction_factor: int, grace_period: float, mode: Mode, unit: Unit = "epochs"
    ) -> Self:
        """Rungs at limit, limit/reduction_factor and so on, none below grace_period."""
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
        """The next one for a trial that has got so much."""
        return next(rung for rung in self.rungs if rung > reached)


def _compute_lower_rung(rung: float, reduction_factor: int, unit: Unit) -> float:
    return round(rung / reduction_factor) if unit == "epochs" else rung / reduction_factor
