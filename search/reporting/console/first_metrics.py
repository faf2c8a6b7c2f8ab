"""Prints the metrics that a command gave in a short time, and the objective that they propose."""

import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console

from searchlight.search.command.try_first import Observation, is_held_out, propose_objectives, propose_patterns
from searchlight.search.formatting import format_value, join_words
from searchlight.search.reporting.console.tables import build_details, print_line

LAST_LINES = 10
MOST_PROPOSED = 4


class Source(NamedTuple):
    """A place where a metric can be read.

    Attributes:
        option: "--metric" or "--metrics-file".
        text: The value of the option.
        name: The metric.
        mode: "min" or "max", by its name.
        is_held_out: Whether it is of data that no training uses, as far as that is known.
    """

    option: str
    text: str
    name: str
    mode: str
    is_held_out: bool


def print_observation(console: Console, observation: Observation, objectives: Sequence[str]) -> bool:
    """Print what a command gave, what to judge it by, and what is missing. Return whether a search can judge it.

    Args:
        objectives: The metrics that the user wants to judge it by, if any.
    """
    if observation.failure and not observation.seen:
        lines = [*observation.output[-LAST_LINES:], f"the command failed: {observation.failure}"]
        for line in lines:
            print_line(console, line)
        return False
    how = "until it ended" if observation.has_ended else "and was stopped"
    print_line(console, f"the command ran {observation.seconds:.0f} s {how}")
    if observation.seen:
        rows = [
            [name, str(each.times), format_value(each.last), each.source]
            for name, each in sorted(observation.seen.items())
        ]
        console.print(build_details([["metric", "values", "last", "from"], *rows]))
    if observation.failure:
        print_line(console, f"the command failed: {observation.failure}")
        return False
    missing = [name for name in objectives if name not in observation.seen]
    if missing or not (observation.seen and (objectives or _propose_objective(console, observation))):
        return _propose_sources(console, observation, missing)
    return True


def _propose_objective(console: Console, observation: Observation) -> bool:
    best, *others = propose_objectives({name: each.times for name, each in observation.seen.items()}) or [""]
    if best:
        print_line(console, f"proposed: --objective {shlex.quote(best)}")
        if others:
            print_line(console, f"or one of: {', '.join(others[:MOST_PROPOSED])}")
        name, _, mode = best.rpartition(":")
        _warn_of_training(console, name, mode, is_held_out(name))
    return bool(best)


def _warn_of_training(console: Console, name: str, mode: str, is_held_out: bool) -> None:
    if mode == "min" and not is_held_out:
        print_line(console, f"{name} may be a loss of the training: neither it nor its line says val, test or eval")


def _propose_sources(console: Console, observation: Observation, missing: Sequence[str]) -> bool:
    """Say how metrics can be read that are only printed or in a file. Return whether all of `missing` are there.

    Args:
        missing: The objectives of the user that were not heard, if any.
    """
    wanted = {_simplify(name): name for name in missing}
    sources = list[Source]()
    for path, counts in observation.files.items():
        proposals = propose_objectives(counts)
        named = [each for each in proposals if each.rpartition(":")[0] in missing]
        for name, mode in (each.rsplit(":", 1) for each in (named or proposals[:1])):
            sources.append(Source("--metrics-file", f"{{trial_dir}}/{path}", name, mode, is_held_out(name)))
    for each in propose_patterns(observation.output):
        name = wanted.get(_simplify(each.name), each.name)
        sources.append(Source("--metric", f"{name}={each.pattern}", name, each.mode, each.is_held_out))
    sources.sort(key=lambda source: (source.name not in missing, not source.is_held_out))
    if not sources:
        what = f"{join_words(missing)} was not" if missing else "no metric was"
        print_line(console, f"missing: {what} heard" if not observation.seen else f"missing: {what} found to judge by")
        for line in observation.output[-LAST_LINES:]:
            print_line(console, f"  {line}")
        print_line(
            console,
            "Give --metric NAME=REGEX for a line of its output, call searchlight.report in the program, or try longer, "
            "e.g. --try-first 5m.",
        )
        return False
    absent = {*missing} - {source.name for source in sources}
    print_line(console, f"{join_words(sorted(absent))} was not heard, but these are there:" if absent else "proposed:")
    for source in sources[:MOST_PROPOSED]:
        objective = f"--objective {shlex.quote(f'{source.name}:{source.mode}')}"
        print_line(console, f"  {source.option} {shlex.quote(source.text)} {objective}")
    if not missing:
        _warn_of_training(console, sources[0].name, sources[0].mode, sources[0].is_held_out)
    return not absent


def _simplify(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()
