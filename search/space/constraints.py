"""Constraints on the metrics of trials."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from searchlight.search.space.stop_condition import StopCondition


@dataclass(frozen=True)
class Constraint(StopCondition):
    """A largest or smallest value of a metric, which a feasible trial meets at its best report."""

    @classmethod
    def from_text(cls, text: str) -> "Constraint":
        """Parse a constraint like "val/latency_ms<=20".

        Raises:
            ValueError: It has another form.
        """
        with suppress(ValueError):
            condition = StopCondition.from_text(text)
            if condition.relation in ("<=", ">="):
                return cls(condition.metric, condition.relation, condition.bound)
        raise ValueError(f"must be like val/latency_ms<=20, with <= or >=, but got {text!r}")

    def measure_violation(self, metrics: Mapping[str, float]) -> float:
        """Return how far the metric lies beyond the bound, in its unit. At most 0: the constraint is met."""
        excess = metrics[self.metric] - self.bound
        return excess if self.relation == "<=" else -excess


def parse_constraint(value: Any) -> Any:
    """Return the normal form of a constraint like "val/latency_ms<=20"."""
    return str(Constraint.from_text(value)) if isinstance(value, str) else value
