"""A metric value that ends a search."""

import math
import operator
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

RELATIONS: dict[str, Callable[[float, float], bool]]
RELATIONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


@dataclass(frozen=True)
class StopCondition:
    """A value of a metric that ends a search once a report reaches it."""

    metric: str
    relation: str
    bound: float

    @classmethod
    def from_text(cls, text: str) -> "StopCondition":
        """Parse a condition like "val/score>=0.4".

        Raises:
            ValueError: It has another form.
        """
        match = re.fullmatch(r"\s*([^<>=]*[^<>=\s])\s*(>=|<=|>|<)\s*([^<>=]+)", text)
        with suppress(ValueError):
            if match and math.isfinite(bound := float(match[3])):
                return cls(match[1], match[2], bound)
        raise ValueError(f"must be like val/score>=0.4, with one of >= > <= <, but got {text!r}")

    def __str__(self) -> str:
        short = f"{self.bound:g}"
        return f"{self.metric}{self.relation}{short if float(short) == self.bound else self.bound}"

    def is_met(self, metrics: Mapping[str, float]) -> bool:
        return self.metric in metrics and RELATIONS[self.relation](metrics[self.metric], self.bound)


def parse_stop_condition(value: Any) -> Any:
    """Return the normal form of a condition like "val/score>=0.4"."""
    return str(StopCondition.from_text(value)) if isinstance(value, str) and value else value
