"""What the commands to a search have changed, computed from the log alone: a resumed search continues with it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optuna.trial import FrozenTrial

from searchlight.search.samplers.belief import RunningBelief
from searchlight.search.steering.command import Command, LogEntry
from searchlight.search.steering.region import Region


@dataclass(frozen=True)
class SteeringState:
    """The commands that are in force, the earliest first.

    Attributes:
        trials: How many trials there were when each was applied, by its id.
    """

    commands: Sequence[Command] = ()
    trials: Mapping[str, int] = field(default_factory=dict)

    def find(self, *operations: str) -> list[Command]:
        return [command for command in self.commands if command.operation in operations]

    def get_reasons(self, operation: str) -> dict[int, str]:
        """Return who asked to stop or keep a trial and why, by trial number."""
        return {
            number: describe_author(command) for command in self.find(operation) for number in command.args["trials"]
        }

    def get_extensions(self) -> Counter[int]:
        """Return by how many epochs trials train longer than planned, by trial number."""
        given = (dict.fromkeys(command.args["trials"], command.args["epochs"]) for command in self.find("extend"))
        return sum(map(Counter, given), Counter())

    def get_beliefs(self) -> dict[str, tuple[RunningBelief, ...]]:
        """Return what is believed about parameters. A later command replaces an earlier one, or drops values of it."""
        found: dict[str, tuple[RunningBelief, ...]] = {}
        for command in self.find("believe"):
            since = self.trials.get(command.id, 0)
            for name, told in command.args["point"].items():
                values = told if isinstance(told, list) else [told]  # logs of older versions have one
                if told is None:  # with which they dropped all values
                    found[name] = ()
                elif command.args.get("drop"):
                    found[name] = tuple(held for held in found.get(name, ()) if held.center not in values)
                else:
                    found[name] = tuple(RunningBelief(value, since) for value in values)
        return {name: held for name, held in found.items() if held}

    @property
    def pause(self) -> Command | None:
        """The command that pauses the search, if it is the last one of its kind."""
        last = next(reversed(self.find("pause", "continue")), None)
        return last if last is not None and last.operation == "pause" else None

    def get_limit(self, name: str) -> Any:
        """Return the last value of a budget, or of `confirm`, or None if no command has changed it."""
        given = reversed(self.find("budget", "finish"))
        return next((command.args[name] for command in given if command.args.get(name) is not None), None)


@dataclass
class Controls:
    """What commands decide in the loop that gives segments to gangs. Without commands, nothing.

    Attributes:
        kept: Numbers of trials that train to their full budget.
        extended: The epochs by which trials train longer than that, by number.
        is_paused: Whether no segment begins.
        is_draining: Whether it is paused, but no trial is to lose what it has trained.
        concurrency: How many trials may run at a time, or None.
        apply_waiting: Applies the commands that have arrived.
        update_trials: Brings trials into the state that the log of commands describes, e.g. after a segment.
        free_gangs: Lets idle workers leave if no trial may begin. Called once it is known how a trial goes on.
    """

    kept: frozenset[int] = frozenset()
    extended: Mapping[int, int] = field(default_factory=dict)
    is_paused: bool = False
    is_draining: bool = False
    concurrency: int | None = None
    apply_waiting: Callable[[], None] = lambda: None
    update_trials: Callable[[], None] = lambda: None
    free_gangs: Callable[[], None] = lambda: None


def is_of(trial: FrozenTrial, command: Command) -> bool:
    """Return whether `trial` has the point of a `try` command."""
    is_copy = "copied_from" in trial.user_attrs  # of a member, whose values it may have
    return not is_copy and bool(trial.system_attrs.get("fixed_params", trial.params) == command.args["point"])


def describe_author(command: Command) -> str:
    """Return e.g. "by ann@laptop: it diverges anyway"."""
    return f"by {command.author}" + (f": {command.why}" if command.why else "")


def find_subjects(command: Command, log: Sequence[LogEntry]) -> frozenset[str]:
    """Return what a command decides on. An undo decides on what the command decided that it takes back."""
    subjects = command.subjects
    if command.operation == "undo":
        undone = (entry.command for entry in log if entry.command.id == command.args["command"])
        subjects = subjects.union(*(find_subjects(each, log) for each in undone))
    return subjects


def find_undone(log: Sequence[LogEntry]) -> set[str]:
    """Return the ids of the commands that were undone. An undo may be undone itself."""
    undone: set[str] = set()
    for entry in reversed(log):
        command = entry.command
        if command.operation == "undo" and entry.answer.accepted and command.id not in undone:
            undone.add(command.args["command"])
    return undone


def build_state(log: Sequence[LogEntry]) -> SteeringState:
    """Return the accepted commands of a log without those that were undone."""
    accepted, undone = [entry.command for entry in log if entry.answer.accepted], find_undone(log)
    return SteeringState(
        tuple(command for command in accepted if command.id not in undone and command.operation != "undo"),
        {entry.command.id: entry.trials for entry in log},
    )


def are_allowed(regions: Sequence[Region], values: Mapping[str, Any]) -> bool:
    """Return whether no region to avoid contains `values`."""
    return not any(region.contains(values) for region in regions)
