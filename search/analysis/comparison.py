"""Comparison of searches: which one found the better value, by how much, and in what time."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from optuna.distributions import json_to_distribution
from optuna.trial import FrozenTrial

from searchlight.search.analysis.best_trials import (
    BestTrial,
    count_outcomes,
    find_best,
    find_improving_reports,
    get_best_value_until,
)
from searchlight.search.analysis.confirmation import Confirmation, describe_config
from searchlight.search.analysis.confirmed_best import confirm, get_confirmed_config
from searchlight.search.analysis.timeline import running_time
from searchlight.search.errors import UsageError
from searchlight.search.formatting import format_change, format_duration, format_interval, format_value, pluralize
from searchlight.search.space.search_space import Parameter
from searchlight.search.study.datasets import get_datasets
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.trial import OUTCOMES, WITH_RESULT, get_outcome, intermediate_values
from searchlight.trainables.filesystem.paths import StoragePath
from searchlight.trainables.flatten import flatten

ONE_EACH = "One search each: a small difference may be chance, and another --seed may reverse it."


class Improvement(NamedTuple):
    """A new best value: the seconds from the start of the search to it, the trials that had started, the value."""

    seconds: float
    trials: int
    value: float


class SearchCurve(NamedTuple):
    """A search, under a name that distinguishes it, its best trial, its new best values, its seconds without pauses."""

    name: str
    record: SearchRecord
    best: BestTrial | None
    steps: Sequence[Improvement]
    seconds: float

    def find_improvement(self, value: float) -> Improvement | None:
        """Return the first improvement that is at least as good as `value`, or None if there is none."""
        is_better = self.record.objective.is_better
        return next((step for step in self.steps if not is_better(value, step.value)), None)


def search_curve(record: SearchRecord, name: str = "") -> SearchCurve:
    """Return the progress of `record` as a curve, under another `name` if one is given."""
    clocked = running_time(record)
    begun = [trial.datetime_start.timestamp() for trial in record.trials if trial.datetime_start]
    reports = find_improving_reports(_select_with_result(record.trials), record.objective)
    steps = [Improvement(clocked.at(at), sum(start <= at for start in begun), value) for at, _, value in reports]
    best = find_best(record.trials, record.objective)
    return SearchCurve(name or record.name, record, best, steps, clocked.total)


def compare(locations: Sequence[StoragePath], searches: Sequence[SearchRecord]) -> list[SearchCurve]:
    """Return the curves of the `searches` at their `locations`. The others are compared with the first one.

    Raises:
        UsageError: The searches differ in task or objective. The message has a line for each of them.
    """
    first, *others = searches
    problems = []
    for location, other in zip(locations[1:], others, strict=True):
        if location.resolve() == locations[0].resolve():
            problems.append(f"--compare must name another search than {first.name}, but got {location.name}.")
            continue
        tasks = _get_task_name(first), _get_task_name(other)
        if all(tasks) and tasks[0] != tasks[1]:
            problems.append(
                f"--compare {other.name} must be a search of the same task as {first.name}, {tasks[0]}, "
                f"but is of {tasks[1]}."
            )
        if first.objective != other.objective:
            problems.append(
                f"--compare {other.name} must have the same objective as {first.name}, {first.objective}, "
                f"but has {other.objective}."
            )
    if problems:
        raise UsageError(*dict.fromkeys(problems))
    alike = len({search.name for search in searches}) < len(searches)
    names = [f"{location.parent.name}/{location.name}" if alike else location.name for location in locations]
    return [search_curve(search, name) for search, name in zip(searches, names, strict=True)]


def summarize_difference(first: SearchCurve, other: SearchCurve) -> str:
    """Return a sentence that names the better search at equal trials and epochs, with the gain and the time."""
    objective, count = first.record.objective, min(len(side.record.trials) for side in (first, other))
    trials = {side.name: _select_with_result(side.record.trials[:count]) for side in (first, other)}
    if without := [name for name, own in trials.items() if not own]:
        of_the_first = f" of its first {pluralize(count, 'trial')}" if first.best and other.best else ""
        return f"{' and '.join(without)} completed no trial{of_the_first}, so there is nothing to compare."
    epoch = min(max(max(intermediate_values(trial)) for trial in own) for own in trials.values())
    known = {name: [get_best_value_until(trial, epoch, objective) for trial in own] for name, own in trials.items()}
    values = {name: objective.best(value for value in own if value is not None) for name, own in known.items()}
    less, more = (other, first) if objective.is_better(values[first.name], values[other.name]) else (first, other)
    worse, better = values[less.name], values[more.name]
    lines = f"Of the first {pluralize(count, 'trial')} of each, by epoch {epoch}: "
    if worse == better:
        lines += f"{first.name} and {other.name} found the same {objective.metric}, {format_value(better)}."
    else:
        lines += (
            f"{more.name} found more, {objective.metric} {format_value(better)}, where {less.name} found "
            f"{format_value(worse)}. That is {format_change(better, worse)} better."
        )
    return " ".join([lines, *_describe_time_to_value(less, worse), *_describe_time_to_value(more, worse)])


def _select_with_result(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials that `find_best` chooses from."""
    return [trial for trial in trials if get_outcome(trial) in WITH_RESULT and intermediate_values(trial)]


def _describe_time_to_value(side: SearchCurve, value: float) -> list[str]:
    step = side.find_improvement(value)
    after = "" if step is None else f"{format_duration(step.seconds)} and {pluralize(step.trials, 'trial')}"
    return [f"{side.name} had {format_value(value)} after {after}."] if after else []


def build_comparison_rows(sides: Sequence[SearchCurve]) -> list[list[str]]:
    """Return a table with a column for each search. The first row is its head."""
    metric = sides[0].record.objective.metric
    steps = [side.steps[-1] if side.steps else None for side in sides]
    counts = [count_outcomes(side.record.trials) for side in sides]
    confirmed = [confirm(side.record) for side in sides]
    rows = {
        "": [side.name for side in sides],
        f"best {metric}": [format_value(side.best.value) if side.best else "-" for side in sides],
        "reached after": [format_duration(step.seconds) if step else "-" for step in steps],
        "trials begun by then": [str(step.trials) if step else "-" for step in steps],
    }
    for name, best in ((side.name, side.best) for side in sides):
        if best is not None:
            reached = [side.find_improvement(best.value) for side in sides]
            rows[f"reached {name}'s best after"] = [
                format_duration(step.seconds) if step else "never" for step in reached
            ]
    if any(len(each) == 1 for each in confirmed):
        rows[f"confirmed {metric} (90 % interval)"] = [*map(_format_confirmed, confirmed)]
    rows["ran for"] = [format_duration(side.seconds) for side in sides]
    rows["trials"] = [str(len(side.record.trials)) for side in sides]
    for outcome in (outcome for outcome in OUTCOMES if any(outcome in count for count in counts)):
        rows[f"  {outcome}"] = [str(count.get(outcome, 0)) for count in counts]
    return [[label, *cells] for label, cells in rows.items()]


def _format_confirmed(confirmations: Sequence[Confirmation]) -> str:
    if len(confirmations) != 1:
        return "-"
    config = get_confirmed_config(confirmations[0])
    return f"{format_value(config.mean)} ({format_interval(*config.interval)}), {describe_config(config.trial)}"


def build_config_rows(sides: Sequence[SearchCurve]) -> list[list[str]]:
    """Return a table of parameters in which the best trials differ, a column per search. The first row is its head."""
    configs = [flatten(side.best.config) if side.best else {} for side in sides]
    names = dict.fromkeys(name for config in configs for name in config)
    body = [[name, *(format_value(config.get(name, "-")) for config in configs)] for name in names]
    return [["", *(side.name for side in sides)], *(row for row in body if len(set(row[1:])) > 1)]


def config_differences(first: SearchCurve, other: SearchCurve) -> list[str]:
    """Return a line for each setting in which the two searches differ and which may explain their results."""
    own, theirs = first.record.about, other.record.about
    lines = []
    if changed := _find_changed_names(own.get("files", {}), theirs.get("files", {})):
        lines.append(f"The code of {other.name} differs from {first.name}: {', '.join(changed)}.")
    if other_data := _find_changed_names(_collect_data_digests(first.record), _collect_data_digests(other.record)):
        lines.append(f"The data of {other.name} differs from {first.name}: {', '.join(other_data)}.")
    before, after = _describe_space(first.record), _describe_space(other.record)
    for name in (name for name in _find_changed_names(before, after) if name != "seed"):
        was, is_ = (space.get(name, "absent") for space in (before, after))
        lines.append(f"{name} was {was} in {first.name}, {is_} in {other.name}.")
    if first.record.objectives[1:] != other.record.objectives[1:]:
        lines.append(f"Their further objectives differ; they are compared by {first.record.objective.metric} alone.")
    return lines


def _find_changed_names(own: dict[str, str], theirs: dict[str, str]) -> list[str]:
    return sorted(name for name in own.keys() | theirs.keys() if own.get(name) != theirs.get(name))


def _describe_space(record: SearchRecord) -> dict[str, str]:
    """Return the searched ranges and the fixed values as text."""
    ranges = record.about.get("searched", {}).items()
    lines = {name: f"searched in {Parameter(name, json_to_distribution(text), {})}" for name, text in ranges}
    return {**lines, **{name: format_value(value) for name, value in record.about.get("fixed", {}).items()}}


def _collect_data_digests(record: SearchRecord) -> dict[str, str]:
    """Return the digests of the data sets that the trials name, by name."""
    lines: dict[str, set[str]] = defaultdict(set)
    for trial in record.trials:
        for data in get_datasets(trial):
            lines[data["name"]].add(data["digest"])
    return {name: ", ".join(sorted(digests)) for name, digests in lines.items()}


def _get_task_name(record: SearchRecord) -> str:
    """Return the name of the task without the folder of its file, or "" if it is unknown."""
    return Path(str(record.about.get("config", {}).get("task", ""))).name
