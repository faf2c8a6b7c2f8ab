"""Conditions on the values of a trial, such as "batch_size>=512 and width>=1024"."""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

RELATIONS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge, "<=": operator.le, "!=": operator.ne, "=": operator.eq, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
CONDITION = re.compile(r"\s*([^<>=!\s]+)\s*(>=|<=|!=|==?|>|<)\s*([^<>=!]*?)\s*")


@dataclass(frozen=True)
class Condition:
    """A relation between a parameter, or a metric, and a value. It does not hold if the parameter does not apply."""

    parameter: str
    relation: str
    value: Any

    def holds(self, values: Mapping[str, Any]) -> bool:
        if self.parameter not in values:
            return False
        try:
            return bool(RELATIONS[self.relation](values[self.parameter], self.value))
        except TypeError:  # a text is neither above nor below a number
            return False

    def __str__(self) -> str:
        return f"{self.parameter} {self.relation} {self.value}"


@dataclass(frozen=True)
class Region:
    """Values for which all conditions hold."""

    conditions: tuple[Condition, ...]

    def contains(self, values: Mapping[str, Any]) -> bool:
        return all(condition.holds(values) for condition in self.conditions)

    def __str__(self) -> str:
        return " and ".join(map(str, self.conditions))


def parse_region(text: str, parse_value: Callable[[str, str], Any]) -> Region:
    """Return the region that a text describes.

    Args:
        parse_value: Returns the value that a text stands for, from the name and the text. It raises a ValueError or a
            UsageError for an unknown name or a wrong value.

    Raises:
        ValueError: The text has another form.
    """
    conditions = []
    for part in re.split(r"\s+and\s+", text.strip()):
        match = CONDITION.fullmatch(part)
        if match is None or not match[3]:
            raise ValueError(f"must be like batch_size>=512 and width>=1024, but got {text!r}")
        name, relation = match[1], "=" if match[2] == "==" else match[2]
        conditions.append(Condition(name, relation, parse_value(name, match[3])))
    return Region(tuple(conditions))
