"""Searches beside each other: which one found more, by how much, and in what time."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from optuna.distributions import json_to_distribution

from search.analysis.best_trials import Best, count_outcomes, find_best, improvements
from search.analysis.timeline import elapsed
from search.config.flatten import flatten
from search.config.objectives import sign
from search.config.search_space import Parameter
from search.errors import UsageError
from search.formatting import change, clock, counted, short
from search.study.datasets import datasets_of
from search.study.record import Searched
from search.study.trial import OUTCOMES, SETTLED, outcome_of
from trainables.filesystem.paths import Place


@dataclass(frozen=True)
class Step:
    """The first objective was better than ever, `seconds` after the start and when so many `trials` had begun."""

    seconds: float
    trials: int
    value: float


@dataclass(frozen=True)
class Side:
    """One of the searches that are compared.

    Attributes:
        name: By which it is told from the others.
        seconds: That it ran, without pauses.
    """

    name: str
    searched: Searched
    best: Best | None
    steps: tuple[Step, ...]
    seconds: float

    def reached(self, value: float) -> Step | None:
        """When it had found as much as `value`; None: never, or the time is not known."""
        better = sign(self.searched.objectives[0].mode)
        return next((step for step in self.steps if better * (step.value - value) <= 0), None)


def side_of(searched: Searched, name: str = "") -> Side:
    """What `searched` came to, under another `name` if one is given."""
    clocked = elapsed(searched.trials)
    begun = [trial.datetime_start.timestamp() for trial in searched.trials if trial.datetime_start]
    settled = [trial for trial in searched.trials if outcome_of(trial) in SETTLED]  # as in `find_best`
    steps = [
        Step(clocked(at), sum(start <= at for start in begun), value)
        for at, _, value in improvements(settled, searched.mode)
    ]
    best = find_best(searched.trials, searched.mode)
    return Side(name or searched.name, searched, best, tuple(steps), clocked.total)


def compare(places: Sequence[Place], searches: Sequence[Searched]) -> list[Side]:
    """The `searches` at their `places`, the first of which the others are compared with.

    Raises:
        UsageError: They are not after the same, a line each.
    """
    first, *others = searches
    problems = []
    for place, other in zip(places[1:], others, strict=True):
        if _resolved(place) == _resolved(places[0]):
            problems.append(f"--compare must name another search than {first.name}, but got {place.name}.")
            continue
        tasks = _task(first), _task(other)
        if all(tasks) and tasks[0] != tasks[1]:
            problems.append(
                f"--compare {other.name} must be a search of the same task as {first.name}, {tasks[0]}, "
                f"but is of {tasks[1]}."
            )
        if first.objectives[0] != other.objectives[0]:
            problems.append(
                f"--compare {other.name} must be after the same objective as {first.name}, {first.objectives[0]}, "
                f"but is after {other.objectives[0]}."
            )
    if problems:
        raise UsageError(*dict.fromkeys(problems))
    alike = len({search.name for search in searches}) < len(searches)
    names = [f"{place.parent.name}/{place.name}" if alike else place.name for place in places]
    return [side_of(search, name) for search, name in zip(searches, names, strict=True)]


def _resolved(place: Place) -> Place:
    return place.resolve() if isinstance(place, Path) else place


def verdict(first: Side, other: Side) -> str:
    """Which of the two found more, by how much, and in what time."""
    if first.best is None or other.best is None:
        without = [side.name for side in (first, other) if side.best is None]
        return f"{' and '.join(without)} completed no trial, so there is nothing to compare."
    mode, metric = first.searched.mode, first.searched.objective
    if first.best.value == other.best.value:
        told = f"{first.name} and {other.name} found the same {metric}, {short(first.best.value)}."
        return " ".join([told, *_when(first, first.best.value), *_when(other, first.best.value)])
    more, less = (first, other) if (first.best.value > other.best.value) == (mode == "max") else (other, first)
    assert more.best is not None, "both have one"
    assert less.best is not None, "both have one"
    told = (
        f"{more.name} found more: {metric} {short(more.best.value)}, where {less.name} found "
        f"{short(less.best.value)}. That is {change(more.best.value, less.best.value)} better."
    )
    return " ".join([told, *_when(less, less.best.value), *_when(more, less.best.value)])


def _when(side: Side, value: float) -> list[str]:
    step = side.reached(value)
    if step is None:
        return []
    return [f"{side.name} had {short(value)} after {clock(step.seconds)} and {counted(step.trials, 'trial')}."]


def rows(sides: Sequence[Side]) -> list[list[str]]:
    """The sides as a table with a column each; the first row is its head."""
    metric = sides[0].searched.objective
    steps = [side.steps[-1] if side.steps else None for side in sides]
    table = [
        ["", *(side.name for side in sides)],
        [f"best {metric}", *(short(side.best.value) if side.best else "-" for side in sides)],
        ["reached after", *(clock(step.seconds) if step else "-" for step in steps)],
        ["trials begun by then", *(str(step.trials) if step else "-" for step in steps)],
    ]
    for target in sides:
        if target.best is not None:
            reached = [side.reached(target.best.value) for side in sides]
            cells = [clock(step.seconds) if step else "never" for step in reached]
            table.append([f"reached {target.name}'s best after", *cells])
    table.append(["ran for", *(clock(side.seconds) for side in sides)])
    table.append(["trials", *(str(len(side.searched.trials)) for side in sides)])
    counts = [count_outcomes(side.searched.trials) for side in sides]
    for outcome in OUTCOMES:
        if any(outcome in count for count in counts):
            table.append([f"  {outcome}", *(str(count.get(outcome, 0)) for count in counts)])
    return table


def best_configs(sides: Sequence[Side]) -> list[list[str]]:
    """What the configs of the best trials differ in, with a column for each side; the first row is the head."""
    configs = [flatten(side.best.config) if side.best else {} for side in sides]
    names = dict.fromkeys(name for config in configs for name in config)
    body = [[name, *(short(config.get(name, "-")) for config in configs)] for name in names]
    return [["", *(side.name for side in sides)], *(row for row in body if len(set(row[1:])) > 1)]


def differences(first: Side, other: Side) -> list[str]:
    """What the two searches were begun with that differs, a line each: it may be why one found more."""
    own, theirs = first.searched.about, other.searched.about
    told = []
    changed = _changed(own.get("files", {}), theirs.get("files", {}))
    if changed:
        told.append(f"The code of {other.name} is other than that of {first.name}: {', '.join(changed)}.")
    if other_data := _changed(_data(first.searched), _data(other.searched)):
        told.append(f"The data of {other.name} is other than that of {first.name}: {', '.join(other_data)}.")
    before, after = _space(first.searched), _space(other.searched)
    for name in (name for name in _changed(before, after) if name != "seed"):
        was, is_ = (space.get(name, "not there") for space in (before, after))
        told.append(f"{name} was {was} in {first.name}, {is_} in {other.name}.")
    if first.searched.objectives[1:] != other.searched.objectives[1:]:
        told.append(f"Their further objectives differ; they are compared by {first.searched.objective} alone.")
    return told


def _changed(own: dict[str, str], theirs: dict[str, str]) -> list[str]:
    return sorted(name for name in own.keys() | theirs.keys() if own.get(name) != theirs.get(name))


def _space(searched: Searched) -> dict[str, str]:
    """What was searched, and what was fixed, as it is told."""
    ranges = searched.about.get("searched", {}).items()
    told = {name: f"searched in {Parameter(name, json_to_distribution(text), {})}" for name, text in ranges}
    return {**told, **{name: short(value) for name, value in searched.about.get("fixed", {}).items()}}


def _data(searched: Searched) -> dict[str, str]:
    """The digests of the data sets that its trials say they use, by name."""
    told: dict[str, set[str]] = defaultdict(set)
    for trial in searched.trials:
        for data in datasets_of(trial):
            told[data["name"]].add(data["digest"])
    return {name: ", ".join(sorted(digests)) for name, digests in told.items()}


def _task(searched: Searched) -> str:
    """Wherever its file lies; empty if that is not known."""
    return Path(str(searched.about.get("config", {}).get("task", ""))).name
