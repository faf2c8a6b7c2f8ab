"""The axis of a parameter, and the positions of its values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial

from searchlight.search.formatting import format_value
from searchlight.search.reporting.html import theme
from searchlight.search.space.objectives import Objective
from searchlight.search.study.record import SearchRecord

ROOM = 0.04  # margin on each side, as a share of the searched range
SPREAD = 0.3  # largest distance of points from their choice, which makes overlapping points visible
GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples modulo 1 are spread evenly
MARGIN = 0.06  # margin on each side, as a share of the values' range
FAR = 3.0  # values beyond this multiple of the range of the best nine tenths are not shown


@dataclass(frozen=True)
class Axis:
    """The axis of one parameter, over its searched range."""

    name: str
    distribution: Any

    @property
    def choices(self) -> tuple[Any, ...]:
        """The choices of a categorical parameter, else an empty tuple."""
        return self.distribution.choices if isinstance(self.distribution, CategoricalDistribution) else ()

    @property
    def log(self) -> bool:
        return bool(getattr(self.distribution, "log", False))

    def get_position(self, trial: FrozenTrial) -> float:
        """Return the position of a trial: its value, or a point near its choice."""
        value = trial.params[self.name]
        if self.choices:
            return float(self.choices.index(value) + SPREAD * 2 * (trial.number * GOLDEN % 1 - 0.5))
        return float(value)

    def to_share(self, value: float) -> float:
        """Return the position of a number in the searched range, from 0 to 1."""
        low, high, at = map(self._scale, (self.distribution.low, self.distribution.high, value))
        return (at - low) / (high - low) if high > low else 0.5

    def from_share(self, share: float) -> float:
        """Return the number at a position from 0 to 1 in the searched range."""
        low, high = self._scale(self.distribution.low), self._scale(self.distribution.high)
        scaled = low + share * (high - low)
        return math.exp(scaled) if self.log else scaled

    def build_layout(self) -> dict[str, Any]:
        """Return the layout of plotly's axis."""
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


def build_axes(record: SearchRecord, names: Sequence[str]) -> list[Axis]:
    """Return the axes of the parameters `names`, each of which a trial must have."""
    latest = {name: d for trial in record.trials for name, d in trial.distributions.items()}
    return [Axis(name, latest[name]) for name in names]


def robust_range(values: Sequence[float | None], objective: Objective) -> list[float] | None:
    """Return the range of an axis without extremely bad values, or None if all values fit."""
    losses = sorted(objective.loss(value) for value in values if value is not None and math.isfinite(value))
    if len(losses) < 5:
        return None
    best, most, worst = losses[0], quantiles(losses, n=10, method="inclusive")[-1], losses[-1]
    if worst - best <= FAR * (most - best) or most == best:
        return None
    room = MARGIN * (most - best)
    return sorted(map(objective.loss, (best - room, most + room)))
