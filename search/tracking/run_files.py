"""Records a search in the files of a library, one run for each trial, from a thread."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from optuna.trial import FrozenTrial

from searchlight.search.formatting import resume_command
from searchlight.search.space.objectives import Objective
from searchlight.search.study.changes import UNSEEN, SeenTrial, find_changes
from searchlight.search.study.trial import get_outcome
from searchlight.search.tracking.base import Tracker
from searchlight.search.tracking.errors import TrackingError, error_message
from searchlight.search.tracking.events import Event, build_events
from searchlight.trainables.filesystem.paths import StoragePath

EVERY_S = 1.0


class RunWriter(Protocol):
    """Writes the runs of trials. All calls come from one thread."""

    def write(self, number: int, events: Sequence[Event]) -> None:
        """Write the next events of trial `number`, described in `searchlight.search.tracking.events.make_event`.

        An event "started" begins the run anew, and "ended" closes it.
        """

    def close(self) -> None:
        """Close the runs that are open."""


class RunFiles(Tracker):
    """Passes the events of each trial to a writer.

    The study has everything, so a driver that resumes a search writes runs again that may be incomplete.

    Args:
        folder: The folder of the search on this disk, with a list of the complete runs.
        place: The location of the search.
        name: The name of the tracker.
        create_writer: Called in the thread, since the import of a library takes long.
        earlier: The trials of a resumed search.
        say, prepare: See `Tracker`.
    """

    def __init__(
        self,
        folder: Path,
        place: StoragePath,
        name: str,
        create_writer: Callable[[], RunWriter],
        objectives: Sequence[Objective],
        earlier: Sequence[FrozenTrial] = (),
        say: Callable[[str], None] = lambda line: None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(say, prepare)
        self._list = folder / f"{name}-complete.txt"
        self._place, self._name, self._create_writer = place, name, create_writer
        self._objectives = objectives
        self._complete = {*self._list.read_text(encoding="utf-8").split("\n")} if self._list.exists() else set()
        self._seen: dict[int, SeenTrial] = {}
        # The last state of each trial that has changed, and whether the search is over.
        self._changed: dict[int, tuple[FrozenTrial, bool]] = {}
        for trial in earlier:
            if self._describe_end(trial) in self._complete:
                self._seen[trial.number] = find_changes(trial).seen
            else:
                self._changed[trial.number] = trial, False
        self._error = ""
        self._finishing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)
        self._thread.start()

    def on_trial_changed(self, trial: FrozenTrial, is_over: bool = False) -> None:
        self._changed[trial.number] = trial, is_over

    def finish(self, end: Event, files: list[Path], timeout_s: float) -> None:
        self._finishing.set()
        self._thread.join(timeout_s)
        problem = "needs more time" if self._thread.is_alive() else self._error
        if problem:
            again = f"Nothing is lost: `{resume_command(self._place)}` writes what is missing."
            raise TrackingError(f"{self._name} must take every trial, but {problem}. {again}")

    def _run(self) -> None:
        self._prepare()
        try:
            self._write_all(self._create_writer())
        except Exception as error:  # a library may raise anything: the trials continue, and the end says so again
            self._error = error_message(error)
            self._say(f"{self._name} cannot write the trials: {self._error}. The search continues without it")

    def _write_all(self, writer: RunWriter) -> None:
        try:
            is_last = False
            while not is_last:
                is_last = self._finishing.wait(EVERY_S)  # no change follows
                for number in list(self._changed):  # copied, since the search adds trials
                    self._write_changes(writer, *self._changed.pop(number))
        finally:
            writer.close()

    def _write_changes(self, writer: RunWriter, trial: FrozenTrial, is_over: bool) -> None:
        changes = find_changes(trial, self._seen.get(trial.number, UNSEEN), is_over)
        if events := build_events(trial, changes, self._objectives):
            writer.write(trial.number, events)
        self._seen[trial.number] = changes.seen
        if changes.outcome and trial.state.is_finished():
            with self._list.open("a", encoding="utf-8") as file:
                file.write(f"{self._describe_end(trial)}\n")

    def _describe_end(self, trial: FrozenTrial) -> str:
        return f"{trial.number} {get_outcome(trial)}"
