"""A command to the driver of a search, its answer, and the log of both."""

import getpass
import re
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

from searchlight.search.errors import format_validation_errors
from searchlight.search.steering.operations import OPERATIONS

LOG = "commands.json"  # the log in the folder of a search, for MLflow; the study has it as well
ID = re.compile(r"[A-Za-z0-9][\w\-]{0,63}")  # it names a file


def get_author() -> str:
    """Return the user of this process and its machine, e.g. "ann@laptop"."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


@dataclass(frozen=True)
class Command:
    """A command to the driver of a search.

    Attributes:
        operation: A key of OPERATIONS.
        args: Its arguments, as JSON.
        id: Made by the author. A command is applied once, however often it is sent.
        revision: The number of commands that the author knew. A later one that contradicts this one refuses it.
            None: the author asks for it in any case.
        most: A `try` is refused if the author has tried so many points. None: as many as wanted.
        gpu_hours: A `try` is refused, and trials of the author's points are stopped, once these have taken so many
            GPU-hours. The last one counts. `keep` and `extend` are then for these trials alone. None: as many as the
            search has.
        at: When it was made, in seconds since 1970.
    """

    operation: str
    args: Mapping[str, Any] = field(default_factory=dict)
    author: str = field(default_factory=get_author)
    why: str = ""
    revision: int | None = None
    is_preview: bool = False
    most: int | None = None
    gpu_hours: float | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    at: float = field(default_factory=time.time)

    def is_same(self, other: "Command") -> bool:
        """Return whether both ask for the same, whoever sent them, and when."""
        return (self.operation, dict(self.args)) == (other.operation, dict(other.args))

    @property
    def subjects(self) -> frozenset[str]:
        """What the command decides on: two commands on one subject contradict each other."""
        if self.operation in ("stop", "keep", "extend"):
            return frozenset(f"trial {number}" for number in self.args["trials"])
        if self.operation == "budget":
            return frozenset(self.args)
        if self.operation == "believe":
            return frozenset(f"belief in {name}" for name in self.args["point"])
        if self.operation == "narrow":
            return frozenset(f"range of {name}" for name in self.args["ranges"])
        if self.operation in ("pause", "continue", "finish"):
            return frozenset({"whether trials run"})
        return frozenset({f"command {self.args['command']}"} if self.operation == "undo" else ())


@dataclass(frozen=True)
class Answer:
    """The driver's answer.

    Attributes:
        accepted: Whether the command is applied.
        effect: What changes, or why the command is refused.
        undo: Whether `undo` takes it back.
    """

    accepted: bool
    effect: str
    warnings: Sequence[str] = field(default_factory=list)
    undo: bool = False


@dataclass(frozen=True)
class LogEntry:
    """A command and its answer.

    Attributes:
        revision: Counts the entries of the log from 1 on.
        trials: How many trials there were when the command was applied, so that the log can be replayed.
    """

    revision: int
    command: Command
    answer: Answer
    trials: int = 0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def parse_command(content: Mapping[str, Any]) -> Command:
    """Return the command that a client has written.

    Raises:
        ValueError: The content is not a command.
    """
    try:
        command = Command(**content)
    except TypeError as error:
        raise ValueError(f"a command must have the fields of Command, but {error}") from error
    for part in fields(Command):
        _check_type(part.name, part.type, getattr(command, part.name))
    if command.operation not in OPERATIONS:
        raise ValueError(f"operation must be one of {', '.join(OPERATIONS)}, but got {command.operation!r}")
    arguments = OPERATIONS[command.operation].arguments
    if unknown := {*command.args} - {*arguments}:
        raise ValueError(f"{command.operation} must have no {', '.join(sorted(unknown))}")
    for name, argument in arguments.items():
        _check_type(f"{command.operation} {name}", argument.type, command.args.get(name))
    if not ID.fullmatch(command.id):
        raise ValueError(f"id must be letters, digits, '_' or '-', but got {command.id[:80]!r}")
    return command


def _check_type(label: str, kind: Any, value: Any) -> None:
    """Raise a ValueError if `value` is not of a type, as JSON has it."""
    try:
        TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        where, rule = format_validation_errors(error)[0].rstrip(".").split(" ", 1)
        raise ValueError(f"{label}{where and f' at {where}'} {rule}") from error


def parse_entry(content: Mapping[str, Any]) -> LogEntry:
    """Return an entry of the log as it is stored."""
    command, answer = Command(**content["command"]), Answer(**content["answer"])
    return LogEntry(content["revision"], command, answer, content.get("trials", 0))  # older logs lack it
