"""How the values of a parameter lie on an axis."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial

from search.config.objectives import Objective
from search.formatting import format_value
from search.reporting.html import theme
from search.study.record import SearchRecord

ROOM = 0.04  # of the axis, beyond what was searched on either side
SPREAD = 0.3  # how far from a choice the points of its trials may lie, so that they do not hide each other
GOLDEN = (math.sqrt(5) - 1) / 2  # whose multiples are spread evenly
MARGIN = 0.06  # of the axis, beyond its values on either side
FAR = 3.0  # times the way from the best to the worst of nine in ten: what is worse is not shown


@dataclass(frozen=True)
class Axis:
    """The axis of one parameter, as long as what was searched of it."""

    name: str
    distribution: Any

    @property
    def choices(self) -> tuple[Any, ...]:
        """None for a number."""
        return self.distribution.choices if isinstance(self.distribution, CategoricalDistribution) else ()

    @property
    def log(self) -> bool:
        return bool(getattr(self.distribution, "log", False))

    def get_position(self, trial: FrozenTrial) -> float:
        """Where a trial is drawn: at its value, or near to its choice."""
        value = trial.params[self.name]
        if self.choices:
            return float(self.choices.index(value) + SPREAD * 2 * (trial.number * GOLDEN % 1 - 0.5))
        return float(value)

    def to_share(self, value: float) -> float:
        """Of a number, how far it lies between the ends of what was searched: from 0 to 1."""
        low, high, at = map(self._scale, (self.distribution.low, self.distribution.high, value))
        return (at - low) / (high - low) if high > low else 0.5

    def from_share(self, share: float) -> float:
        """The number that lies so far between the ends."""
        low, high = self._scale(self.distribution.low), self._scale(self.distribution.high)
        scaled = low + share * (high - low)
        return math.exp(scaled) if self.log else scaled

    def build_layout(self) -> dict[str, Any]:
        """Of plotly's axis."""
        title = {"title_text": theme.escape_text(self.name)}
        if self.choices:
            names = [theme.escape_text(format_value(choice)) for choice in self.choices]
            ticks = {"tickvals": list(range(len(names))), "ticktext": names, "showgrid": False}
            return {**title, **ticks, "range": [-0.5, len(names) - 0.5]}
        ends = [self.from_share(-ROOM), self.from_share(1 + ROOM)]
        if not self.log:
            return {**title, "range": ends}
        decades = math.log10(ends[1] / ends[0])
        return {**title, "type": "log", "range": [math.log10(end) for end in ends], "dtick": 1 if decades > 2 else "D2"}

    def _scale(self, value: float) -> float:
        return math.log(value) if self.log else float(value)


def build_axes(searched: SearchRecord, names: Sequence[str]) -> list[Axis]:
    """Those of the parameters `names`, each of which some trial has."""
    latest = {name: d for trial in searched.trials for name, d in trial.distributions.items()}
    return [Axis(name, latest[name]) for name in names]


def robust_range(values: Sequence[float | None], objective: Objective) -> list[float] | None:
    """Return the range of an axis without the values that are so bad that the others would be one line, if any.

    Return None if all values are to be shown.
    """
    losses = sorted(objective.loss(value) for value in values if value is not None and math.isfinite(value))
    if len(losses) < 5:
        return None
    best, most, worst = losses[0], quantiles(losses, n=10, method="inclusive")[-1], losses[-1]
    if worst - best <= FAR * (most - best) or most == best:
        return None
    room = MARGIN * (most - best)
    return sorted(map(objective.loss, (best - room, most + room)))
