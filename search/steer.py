"""The commands of searchlight that look at a running search or change it."""

import json
import sys
import time
from dataclasses import replace
from typing import Any, get_args, get_origin

import click

from searchlight.search.formatting import SCHEMA, format_location
from searchlight.search.reporting.console.command_line import Command as CommandLine
from searchlight.search.reporting.console.search_state import (
    describe_status,
    print_explanation,
    print_log,
    print_trials,
)
from searchlight.search.reporting.explanation import explain_search, explain_trial
from searchlight.search.reporting.running_search import RunningSearch, split_pairs
from searchlight.search.reporting.status import build_status, select_trials
from searchlight.search.steering.command import Command, LogEntry, get_author
from searchlight.search.steering.operations import OPERATIONS, Argument
from searchlight.trainables.filesystem.paths import StoragePath

WATCH_S = 5.0  # between two states
NAME = click.Argument(["name"])
STORAGE = click.Option(["--storage"], metavar="PLACE", default="runs", help="Folder or bucket of the searches.")
JSON = click.Option(["--json", "as_json"], is_flag=True, help="Print the answer as JSON.")
COMMON = [
    click.Option(["--why"], default="", metavar="TEXT", help="The reason, for the log of the search."),
    click.Option(["--dry-run", "is_preview"], is_flag=True, help="Print what would change, and change nothing."),
    click.Option(["--as", "author"], default=get_author, metavar="AUTHOR", help="Who asks. Default: USER@MACHINE."),
    click.Option(["--id"], metavar="ID", help="An id of your own: a command with the same id is applied once."),
    click.Option(
        ["--revision"], type=int, metavar="N", help="Refuse the command if one after the N-th decides on the same."
    ),
    click.Option(
        ["--wait"], type=float, default=20.0, metavar="SECONDS", help="How long to wait for the driver. Default: 20."
    ),
    STORAGE,
    JSON,
]


def _create(operation: str) -> click.Command:
    """Create the command that sends an operation with its arguments."""
    arguments = OPERATIONS[operation].arguments

    def run(
        name: str,
        why: str,
        is_preview: bool,
        author: str,
        id: str | None,
        revision: int | None,
        wait: float,
        storage: str,
        as_json: bool,
        **given: Any,
    ) -> None:
        search = RunningSearch(name, storage)
        args = {key: _convert(value, arguments[key]) for key, value in given.items() if value is not None}
        made = Command(operation, args, author, why, revision, is_preview)
        made = replace(made, id=id) if id else made
        _print_answer(search.place, made, search.send(made, wait), as_json)

    parameters = [_build_parameter(key, argument) for key, argument in arguments.items()]
    return CommandLine(operation, params=[NAME, *parameters, *COMMON], callback=run, help=OPERATIONS[operation].help)


def _build_parameter(name: str, argument: Argument) -> click.Parameter:
    """Return the parameter of the command line for an argument: an option, if it is a flag or a number."""
    kind, option = argument.type, f"--{name.replace('_', '-')}"
    if kind in (str, str | int):
        return click.Argument([name])
    if kind == list[int]:
        return click.Argument([name], nargs=-1, required=True, type=int)
    if get_origin(kind) is dict:
        return click.Argument([name], nargs=-1, required=True, metavar="NAME=VALUE...")
    if kind == bool | None:
        return click.Option([option], is_flag=True, help=argument.help)
    number = float if float in get_args(kind) else int
    return click.Option([option], type=number, metavar="N", required=kind is int, help=argument.help)


def _convert(value: Any, argument: Argument) -> Any:
    """Return what was given on the command line as JSON has it."""
    if isinstance(value, tuple):
        return [*value] if argument.type == list[int] else split_pairs(value)
    return value


def _print_answer(place: StoragePath, made: Command, entry: LogEntry | None, as_json: bool) -> None:
    """Print the answer. Exit with code 2 if the command is refused, and with 1 if no driver has answered."""
    if entry is not None and as_json:
        print(json.dumps({"schema": SCHEMA, **entry.as_json()}))
    elif entry is not None:
        text = entry.answer.effect if entry.answer.accepted else f"refused: {entry.answer.effect}"
        print("\n".join([text, *(f"warning: {line}" for line in entry.answer.warnings)]))
        if entry.answer.undo and not made.is_preview:
            print(f"take it back: searchlight undo {format_location(place, made.id)}")
    else:
        print(
            f"no driver has answered yet: the command {made.id} waits. If the search was killed, it is applied after: "
            f"searchlight resume {format_location(place)}",
            file=sys.stderr,
        )
        raise click.exceptions.Exit(1)
    if not entry.answer.accepted:
        raise click.exceptions.Exit(2)


@click.command(cls=CommandLine, params=[NAME, STORAGE, JSON])
def log(name: str, storage: str, as_json: bool) -> None:
    """Print who changed the search NAME, when, why, and with what effect."""
    record = RunningSearch(name, storage).load()
    if as_json:
        return print(json.dumps({"schema": SCHEMA, "commands": [entry.as_json() for entry in record.commands]}))
    print_log(record)


@click.command(
    cls=CommandLine,
    params=[NAME, click.Option(["--watch"], is_flag=True, help="Print it again until it ends."), STORAGE, JSON],
)
def status(name: str, storage: str, as_json: bool, watch: bool) -> None:
    """Print the state of the search NAME, also while it runs.

    It has the budget, the best trial, the expected end, unfinished trials, what waits, and problems.
    """
    while True:
        search = RunningSearch(name, storage)
        record = search.load()
        found = build_status(record, search.load_driver())
        print(json.dumps(found) if as_json else "\n".join(describe_status(record, found)))
        sys.stdout.flush()  # it may be a pipe
        if not (watch and found["running"]):
            return
        time.sleep(WATCH_S)


@click.command(
    cls=CommandLine,
    params=[
        NAME,
        click.Option(
            ["--where"], default="", metavar="CONDITION", help='E.g. "val/loss<0.3 and epoch>3 and lr>=0.01".'
        ),
        click.Option(["--curves"], is_flag=True, help="Print each value by epoch as well."),
        STORAGE,
        JSON,
    ],
)
def trials(name: str, where: str, curves: bool, storage: str, as_json: bool) -> None:
    """Print the trials of the search NAME as a table, or as JSON."""
    record = RunningSearch(name, storage).load()
    rows = select_trials(record, where, curves)
    if as_json:
        return print(json.dumps({"schema": SCHEMA, "trials": rows}))
    if not rows:
        print(f"no trial of {record.name} meets {where}" if where else f"{record.name} has no trial yet")
    print_trials(record, rows)


@click.command(
    cls=CommandLine,
    params=[NAME, click.Option(["--trial"], type=int, metavar="N", help="Explain this trial."), STORAGE, JSON],
)
def explain(name: str, trial: int | None, storage: str, as_json: bool) -> None:
    """Print why trials of NAME ended as they did, where they fail, and whether the best one is shown to be real.

    With --trial: where it comes from, and how it compared at each rung.
    """
    record = RunningSearch(name, storage).load()
    found = explain_search(record) if trial is None else explain_trial(record, trial)
    if as_json:
        return print(json.dumps(found))
    print_explanation(record, found)


COMMANDS = [status, trials, explain, log, *map(_create, OPERATIONS)]
