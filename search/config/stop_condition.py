"""The value of a metric that ends a search."""

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

RELATIONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True)
class StopCondition:
    """A value of a metric at which a search has found what it was started for."""

    metric: str
    relation: str
    bound: float

    @classmethod
    def from_text(cls, text: str) -> "StopCondition":
        """The target that `text`, like "val/score>=0.4", means.

        Raises:
            ValueError: It has another form.
        """
        match = re.fullmatch(r"\s*([^<>=]*[^<>=\s])\s*(>=|<=|>|<)\s*([^<>=]+)", text)
        try:
            found = cls(match[1], match[2], float(match[3])) if match else None
        except ValueError:
            found = None
        if found is None or not math.isfinite(found.bound):
            raise ValueError(f"must be like val/score>=0.4, with one of >= > <= <, but got {text!r}")
        return found

    def __str__(self) -> str:
        short = f"{self.bound:g}"
        return f"{self.metric}{self.relation}{short if float(short) == self.bound else self.bound}"

    def is_met(self, metrics: Mapping[str, float]) -> bool:
        return self.metric in metrics and RELATIONS[self.relation](metrics[self.metric], self.bound)
