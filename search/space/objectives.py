"""The objectives of a search: one metric, or several for a Pareto front."""

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeVar

Mode = Literal["min", "max"]
MODES: tuple[Mode, Mode] = ("min", "max")
Named = tuple[str, Mode | None]  # a metric of the command line, and its mode if it has one
T = TypeVar("T")


def to_loss(value: float, mode: Mode) -> float:
    """Return `value` with the sign that makes smaller values better. Applying it twice returns `value`."""
    return value if mode == "min" else -value


@dataclass(frozen=True)
class Objective:
    """A metric of every report, and whether its smaller or its larger values are better."""

    metric: str
    mode: Mode

    def __str__(self) -> str:
        return f"{self.metric}:{self.mode}"

    def loss(self, value: float) -> float:
        """Return `value` with the sign that makes smaller values better, as a sort key."""
        return to_loss(value, self.mode)

    def is_better(self, value: float, other: float) -> bool:
        """Return whether `value` is better than `other`, and not equal to it."""
        return self.loss(value) < self.loss(other)

    def best(self, items: Iterable[T], key: Callable[[T], Any] = float) -> T:  # type: ignore[assignment]
        """Return the item with the best value under `key`, the first of equal ones.

        Raises:
            ValueError: There are no items.
        """
        return min(items, key=lambda item: self.loss(key(item)))

    def worst(self, values: Iterable[float]) -> float:
        """Return the worst of `values`."""
        return max(values, key=self.loss)


def select_non_dominated(points: Mapping[T, Sequence[float]]) -> list[T]:
    """Return the keys of the non-dominated `points`, where smaller values are better, in sorted order.

    A point dominates another if no value is worse and one is better. Of equal points, all are returned.
    """
    front: list[T] = []
    # In this order, no point is dominated by a later one.
    for key, point in sorted(points.items(), key=lambda item: (tuple(item[1]), item[0])):
        if not any(points[other] != point and all(map(operator.le, points[other], point)) for other in front):
            front.append(key)
    return front


class HasObjectives:
    """A base class of objects with objectives. The first one decides which trials continue."""

    objectives: tuple[Objective, ...]

    @property
    def objective(self) -> Objective:
        """The objective that ranks trials during training."""
        return self.objectives[0]


def parse_objectives(
    texts: Sequence[str], declared: Objective | None, owner: str
) -> tuple[tuple[Objective, ...], list[str]]:
    """Return the objectives of `texts`, "metric" or "metric:min", and a line for each problem with them.

    Args:
        declared: The objective that a task class declares, which must come first. A function has none.
        owner: The name of that task or function.
    """
    parsed = [_split_mode(text) for text in texts]
    problems = [*_check_first(parsed, declared, owner)]
    given = parsed[1:] if declared else parsed

    for metric, mode in given:
        if mode is None:
            name, _, word = metric.rpartition(":")
            near = [mode for mode in MODES if word.lower().startswith(mode)] or get_close_matches(word, MODES, n=1)
            meant = [f"{name}:{mode}" for mode in near if name]
            remedy = " or ".join(meant or [f"{metric}:max", f"{metric}:min"])
            problems.append(f"--objective {metric} must say which values are better, but does not. Use {remedy}.")
    for metric, times in Counter(metric for metric, _ in parsed).items():
        if not metric:
            problems.append("--objective must name a metric, but got ''.")
        elif times > 1:
            problems.append(f"--objective {metric} must be given once, but got it {times} times.")

    objectives = (Objective(metric, mode) for metric, mode in given if mode)
    return (*([declared] if declared else []), *objectives), problems


def _split_mode(text: str) -> Named:
    metric, _, mode = text.rpartition(":")
    return next(((metric, known) for known in MODES if mode == known), (text, None))


def _check_first(parsed: Sequence[Named], declared: Objective | None, owner: str) -> Iterator[str]:
    if declared is None:
        if not parsed:
            yield f"--objective must be given, e.g. val/loss:min: the metric that {owner} reports and is judged by."
    elif parsed and parsed[0][0] != declared.metric:
        rule, help_ = ("begin with", "Put it first.") if len(parsed) > 1 else ("be", "Leave it out.")
        yield f"--objective must {rule} that of {owner}, {declared.metric!r}, but got {parsed[0][0]!r}. {help_}"
    elif parsed and parsed[0][1] not in (None, declared.mode):
        yield (
            f"--objective {declared.metric} must be {declared.mode} in {owner}, but got {parsed[0][1]}. Leave it out."
        )
