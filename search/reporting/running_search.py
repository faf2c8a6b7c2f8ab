"""A search as Python code looks at it and changes it, also while another process runs it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

from searchlight.search.analysis.confirmed_best import confirm, find_confirmed_best
from searchlight.search.analysis.result import SearchResult
from searchlight.search.errors import UsageError
from searchlight.search.folder.locations import parse_storage, resolve_place
from searchlight.search.formatting import format_location
from searchlight.search.option import find_pair_problems
from searchlight.search.reporting.console.search_state import describe_status
from searchlight.search.reporting.explanation import explain_search, explain_trial
from searchlight.search.reporting.status import build_status, has_ended, select_trials
from searchlight.search.steering.command import Command, LogEntry, get_author
from searchlight.search.steering.driver_state import DriverState, read_state
from searchlight.search.steering.mailbox import send, wait_for_answer
from searchlight.search.steering.operations import OPERATIONS
from searchlight.search.study.record import SearchRecord, load_search
from searchlight.trainables.filesystem.paths import StoragePath

if TYPE_CHECKING:
    from pandas import DataFrame

WAIT_S = 20.0  # for the answer of the driver


class RunningSearch:
    """A search by its folder, or by its name in the folder `storage`.

    The commands are those of the command line. They return the driver's answer with its place in the log.

    Raises:
        UsageError: A command is refused, or the search does not run.
        TimeoutError: No driver has answered. The command waits for the next one.
    """

    def __init__(self, name: str | StoragePath, storage: str = "runs") -> None:
        self.place = resolve_place(name, parse_storage(storage)) if isinstance(name, str) else name
        self.name = self.place.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.place)!r})"

    def load(self) -> SearchRecord:
        """Return the present record of the search."""
        return load_search(self.place)

    def load_driver(self) -> DriverState | None:
        """Return what the last driver has written of itself, or None if there is nothing yet."""
        return read_state(self.place)

    def status(self) -> dict[str, Any]:
        """Return what `searchlight status --json` prints."""
        return build_status(self.load(), self.load_driver())

    def trials(self, where: str = "") -> "DataFrame":
        """Return a row for each trial that meets a condition, such as "val/loss<0.3 and epoch>3"."""
        from pandas import DataFrame

        rows = select_trials(self.load(), where)
        return DataFrame([row | row.pop("params") for row in rows])

    def explain(self, trial: int | None = None) -> dict[str, Any]:
        """Return what `searchlight explain --json` prints."""
        return explain_search(self.load()) if trial is None else explain_trial(self.load(), trial)

    def best(self) -> dict[str, Any] | None:
        """Return the best trial so far, or the confirmed one, with its value, config and checkpoint."""
        record = self.load()
        best = find_confirmed_best(record, confirm(record))
        return asdict(best) if best else None

    def log(self) -> list[LogEntry]:
        """Return the commands so far with their answers."""
        return [*self.load().commands]

    if TYPE_CHECKING:  # the commands: see `_build_method`

        def __getattr__(self, name: str) -> Callable[..., LogEntry]: ...

    def give(self, operation: str, args: Mapping[str, Any], why: str = "", author: str = "") -> LogEntry:
        """Give a command, and return its accepted answer."""
        command = Command(operation, args, author or get_author(), why)
        entry = self.send(command)
        if entry is None:
            raise TimeoutError(f"no driver has answered yet: the command {command.id} to {self.name} waits")
        if not entry.answer.accepted:
            raise UsageError(entry.answer.effect)
        return entry

    def send(self, command: Command, wait_s: float | None = None) -> LogEntry | None:
        """Send a command, and return its answer, accepted or not, or None if no driver has answered in time.

        Raises:
            UsageError: The search does not run, or the command has another form.
        """
        if has_ended(self.load()):
            resume = f"searchlight resume {format_location(self.place)}"
            raise UsageError(f"{self.name} must run, but has ended. Resume it first: {resume}")
        send(self.place, command)
        entry = wait_for_answer(self.place, command, WAIT_S if wait_s is None else wait_s)
        if entry is not None:
            return entry
        # The driver may have answered after an earlier client was killed, or just now.
        return next((entry for entry in self.log() if entry.command.id == command.id), None)

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows each time: the state and the table of the trials so far."""
        try:
            record = self.load()
        except UsageError as error:  # it has not begun
            return f"<p>{escape(str(error))}</p>"
        state = "\n".join(describe_status(record, build_status(record, self.load_driver())))
        return f"<pre>{escape(state)}</pre>{SearchResult.from_record(record)._repr_html_()}"


def _build_method(operation: str) -> Callable[..., LogEntry]:
    """Return the method that gives a command, with its arguments in order or by name, and `why`."""
    arguments = OPERATIONS[operation].arguments
    names = [*arguments]

    def command(search: RunningSearch, *values: Any, why: str = "", **options: Any) -> LogEntry:
        if names and arguments[names[0]].type == list[int]:
            options[names[0]] = [*values]
        else:
            options |= zip(names[: len(values)], values, strict=True)
        return search.give(operation, options, why)

    command.__name__ = operation
    command.__doc__ = f"{OPERATIONS[operation].help}\n\nArguments: {', '.join([*names, 'why'])}."
    return command


for _operation in OPERATIONS:
    setattr(RunningSearch, f"{_operation}_" if iskeyword(_operation) else _operation, _build_method(_operation))


def split_pairs(pairs: Sequence[str]) -> dict[str, str]:
    """Return NAME=VALUE texts as a dict. Several may be one text, separated by commas.

    Raises:
        UsageError: A text has another form, or a name has different values.
    """
    parts: list[str] = []
    for text in pairs:
        for part in text.split(","):
            if "=" in part or not parts:
                parts.append(part)
            else:
                parts[-1] += f",{part}"  # of a list of choices, such as precision=fp32,bf16
    if problems := [*find_pair_problems(parts, example="lr=0.001")]:
        raise UsageError(*problems)
    return dict(part.split("=", 1) for part in parts)
