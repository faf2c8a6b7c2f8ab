"""The files by which commands reach the driver of a search: they lie in the search's folder or bucket."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict

from searchlight.search.errors import UsageError
from searchlight.search.steering.command import Command, LogEntry, parse_command, parse_entry
from searchlight.trainables.filesystem.atomic_file import write_atomic
from searchlight.trainables.filesystem.paths import StoragePath

FOLDER = "commands"  # in the folder of a search
REQUEST, ANSWER = ".request.json", ".answer.json"
POLL_S = 0.2  # interval at which a client looks for an answer


def send(place: StoragePath, command: Command) -> None:
    """Leave a command for the driver of the search at `place`.

    Raises:
        UsageError: The folder cannot be written, or the driver would refuse to read the command.
    """
    folder = place / FOLDER
    try:
        parse_command(asdict(command))
    except ValueError as error:
        raise UsageError(f"{error}.") from error
    other = next((each for each in read_requests(place) if each.id == command.id), command)
    if not other.is_same(command):
        raise UsageError(f"an id must be new, but {command.id} is that of {other.operation}, which waits.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_answer(place, command.id)  # it is answered again, as the log says
        write_atomic(folder / f"{command.id}{REQUEST}", json.dumps(asdict(command)))
    except OSError as error:
        raise UsageError(f"--storage must be a place that can be written to, but {error}.") from error


def read_requests(place: StoragePath, warn: Callable[[str], None] | None = None) -> list[Command]:
    """Return the commands that wait, in the order in which they were made. Files that hold none are deleted if `warn`
    is told of that, and else left out.
    """
    commands = []
    for path in (place / FOLDER).iterdir() if (place / FOLDER).is_dir() else ():
        if path.name.endswith(REQUEST):
            try:
                commands.append(parse_command(json.loads(path.read_text(encoding="utf-8"))))
            except (ValueError, UnicodeDecodeError, TypeError) as error:
                if warn is None:
                    continue
                path.unlink()
                warn(f"{path} must hold a command, and is deleted: {error}.")
            except FileNotFoundError:  # a client has replaced it
                continue
    return sorted(commands, key=lambda command: (command.at, command.id))


def write_answer(place: StoragePath, entry: LogEntry) -> None:
    """Answer a command. The log has it already, so that it is not applied again if this process is killed here."""
    folder = place / FOLDER
    write_atomic(folder / f"{entry.command.id}{ANSWER}", json.dumps(entry.as_json()))
    (folder / f"{entry.command.id}{REQUEST}").unlink(missing_ok=True)


def list_answers(place: StoragePath) -> list[str]:
    """Return the ids of the commands whose answers lie in the folder."""
    names = (path.name for path in (place / FOLDER).iterdir()) if (place / FOLDER).is_dir() else ()
    return [name.removesuffix(ANSWER) for name in names if name.endswith(ANSWER)]


def remove_answer(place: StoragePath, id: str) -> None:
    (place / FOLDER / f"{id}{ANSWER}").unlink(missing_ok=True)


def wait_for_answer(place: StoragePath, command: Command, limit_s: float) -> LogEntry | None:
    """Return the answer to a command, or None if no driver has answered after `limit_s`."""
    path, deadline = place / FOLDER / f"{command.id}{ANSWER}", time.monotonic() + limit_s
    while True:
        if path.exists():
            entry = parse_entry(json.loads(path.read_text(encoding="utf-8")))
            path.unlink(missing_ok=True)
            return entry
        if time.monotonic() >= deadline:
            return None
        time.sleep(POLL_S)
