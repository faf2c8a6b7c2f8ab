"""Writes a file about a search while it runs."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from optuna.trial import FrozenTrial

from searchlight.search.execution.callback import TrialCallback
from searchlight.trainables.filesystem.paths import StoragePath


class FileCallback(TrialCallback, ABC):
    """Observes a search and writes a file about its trials every few seconds, in a thread.

    Args:
        folder: The folder of the file.
        say: Shows a line if the file cannot be written.
        location: The location of the search, if it is not `folder`.
        earlier: The trials of a resumed search.

    Attributes:
        file: The name of the file.
        every_s: The shortest time between two writings.
        share: The largest share of the driver's time that they take.
    """

    file: ClassVar[str]
    every_s: ClassVar[float]
    share: ClassVar[float]

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], None],
        location: StoragePath | None = None,
        earlier: Sequence[FrozenTrial] = (),
    ) -> None:
        self._path = folder / self.file
        self._say = say
        self._place = location or folder
        self._trials = {trial.number: trial for trial in earlier}
        self._changed = threading.Event()
        if earlier:  # their driver may have died before it wrote them
            self._changed.set()
        self._over = threading.Event()
        self._failure = ""
        self._thread = threading.Thread(target=self._run, daemon=True, name="export")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()
        self.close()

    def on_trial_changed(self, trial: FrozenTrial, is_over: bool = False) -> None:
        is_known = trial.number in self._trials
        self._trials[trial.number] = trial  # first: the thread may write at once, and forgets the change before
        if is_known:  # a start alone would load pandas while the gangs start
            self._changed.set()

    def _run(self) -> None:
        pause = self.every_s
        while not self._over.wait(pause):
            if self._changed.is_set():
                self.prepare()
                start = time.thread_time()
                self._write("the search continues")
                pause = max(self.every_s, (time.thread_time() - start) / self.share)

    def _write(self, then: str) -> None:
        self._changed.clear()
        trials = list(self._trials.values())  # copied, since the search adds trials
        try:
            self.write(sorted(trials, key=lambda trial: trial.number))
            self._failure = ""
        except OSError as error:  # e.g. a full disk
            self._changed.set()
            if then != self._failure:
                self._say(f"{self._place / self.file} cannot be written: {error}; {then}")
            self._failure = then

    def prepare(self) -> None:
        """Import what `write` needs, whose time does not count."""

    @abstractmethod
    def write(self, trials: Sequence[FrozenTrial]) -> None:
        """Write the file about `trials`.

        Raises:
            OSError: It cannot be written.
        """

    def close(self) -> None:  # not all files are written at the end
        """Write what the file lacks at the end of the search."""
