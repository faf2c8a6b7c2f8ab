"""Updates the Parquet file of a running search."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from optuna.trial import FrozenTrial

from searchlight.search.execution.callback import TrialCallback
from searchlight.search.formatting import report_command
from searchlight.search.reporting.parquet import FILE, write_parquet
from searchlight.trainables.filesystem.paths import StoragePath

EVERY_S = 3.0
SHARE = 0.02  # largest share of the time spent on writing


class ParquetCallback(TrialCallback):
    """Observes a search and writes new reports to trials.parquet every few seconds, in a thread.

    Args:
        folder: The folder of the file.
        say: Shows a line if the file cannot be written.
        place: The location of the search, if it is not `folder`.
        earlier: The trials of a resumed search.
    """

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], None],
        place: StoragePath | None = None,
        earlier: Sequence[FrozenTrial] = (),
    ) -> None:
        self._path = folder / FILE
        self._say = say
        self._place = place or folder
        self._trials = {trial.number: trial for trial in earlier}
        self._changed = threading.Event()
        if earlier:  # their driver may have died before it wrote them
            self._changed.set()
        self._over = threading.Event()
        self._failure = ""
        self._thread = threading.Thread(target=self._run, daemon=True, name="export")

    def __enter__(self) -> "ParquetCallback":
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()
        if self._changed.is_set():
            self._write(f"{report_command(self._place)} writes it again")

    def on_trial_changed(self, trial: FrozenTrial, is_over: bool = False) -> None:
        is_known = trial.number in self._trials
        self._trials[trial.number] = trial  # first: the thread may write at once, and forgets the change before
        if is_known:  # a start alone would load pandas while the gangs start
            self._changed.set()

    def _run(self) -> None:
        pause = EVERY_S
        while not self._over.wait(pause):
            if self._changed.is_set():
                pa.array([0.0])  # imports pandas before the time is measured
                start = time.thread_time()
                self._write("the search continues")
                pause = max(EVERY_S, (time.thread_time() - start) / SHARE)

    def _write(self, then: str) -> None:
        self._changed.clear()
        trials = list(self._trials.values())  # copied, since the search adds trials
        try:
            write_parquet(sorted(trials, key=lambda trial: trial.number), self._path)
            self._failure = ""
        except (OSError, pa.ArrowException) as error:  # e.g. a full disk, or a value without a Parquet type
            self._changed.set()
            if then != self._failure:
                self._say(f"{self._place / FILE} cannot be written: {error}; {then}")
            self._failure = then
