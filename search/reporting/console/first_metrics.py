"""Prints the metrics that a command gave in a short time, and the objective that they propose."""

import re
import shlex
from collections.abc import Sequence

from rich.console import Console

from searchlight.search.command.try_first import Observation, propose_objectives, propose_patterns
from searchlight.search.formatting import format_value
from searchlight.search.reporting.console.tables import build_details, print_line

LAST_LINES = 10
MOST_PROPOSED = 4


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
    missing = [name for name in objectives if name not in observation.seen]
    if observation.failure:
        print_line(console, f"the command failed: {observation.failure}")
    elif not observation.seen or missing:
        print_line(console, f"missing: {', '.join(missing) or 'no metric was heard'}")
        _propose_patterns(console, observation, missing)
    elif not objectives:
        return _propose_objective(console, observation)
    return not observation.failure and not missing and bool(observation.seen)


def _propose_objective(console: Console, observation: Observation) -> bool:
    best, *others = propose_objectives({name: each.times for name, each in observation.seen.items()}) or [""]
    if best:
        print_line(console, f"proposed: --objective {shlex.quote(best)}")
        if others:
            print_line(console, f"or one of: {', '.join(others[:MOST_PROPOSED])}")
    else:
        print_line(console, "missing: which metric is judged. Give --objective NAME:min or --objective NAME:max.")
    return bool(best)


def _propose_patterns(console: Console, observation: Observation, missing: Sequence[str]) -> None:
    """Say how metrics can be read that are only printed."""
    wanted = {_simplify(name): name for name in missing}
    proposed = propose_patterns(observation.output)
    proposed.sort(key=lambda each: _simplify(each[0]) not in wanted)
    if not proposed:
        for line in observation.output[-LAST_LINES:]:
            print_line(console, f"  {line}")
        print_line(
            console,
            "Give --metric NAME=REGEX for a line of its output, call searchlight.report in the program, or try longer, "
            "e.g. --try-first 5m.",
        )
        return
    print_line(console, "its output has these:")
    for printed, pattern in proposed[:MOST_PROPOSED]:
        name = wanted.get(_simplify(printed), printed)
        mode = propose_objectives({printed: 1})[0].rpartition(":")[2]
        print_line(
            console, f"  --metric {shlex.quote(f'{name}={pattern}')} --objective {shlex.quote(f'{name}:{mode}')}"
        )


def _simplify(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()
