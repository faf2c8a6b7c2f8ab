"""Rewrites the report of a search while it runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from optuna.trial import FrozenTrial

from searchlight.search.reporting.file_callback import FileCallback
from searchlight.search.steering.command import LogEntry
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.trial import split_trials
from searchlight.trainables.filesystem.atomic_file import write_atomic
from searchlight.trainables.filesystem.paths import StoragePath

PAGE = "report.html"
REFRESH_S = 10  # interval at which an open page loads itself again


class LivePage(FileCallback):
    """Writes report.html from the first report on. The end of the search writes the whole report.

    Args:
        record: The search as it begins.

    Attributes:
        commands: The commands so far.
    """

    file, every_s, share = PAGE, 10.0, 0.01

    def __init__(self, folder: Path, say: Callable[[str], None], location: StoragePath, record: SearchRecord) -> None:
        super().__init__(folder, say, location, record.all_trials)
        self._record = record
        self.commands: Sequence[LogEntry] = record.commands

    def prepare(self) -> None:
        import searchlight.search.reporting.html  # noqa: F401  # imports plotly, which takes a while

    def write(self, trials: Sequence[FrozenTrial]) -> None:
        searched, runs = split_trials(trials)
        record = replace(self._record, trials=searched, confirming_runs=runs, commands=[*self.commands])
        try:
            text = render_live(record)
        except Exception as error:  # any error: the search is more important than its page
            raise OSError(f"{type(error).__name__}: {error}") from error
        write_atomic(self._path, text)


def render_live(record: SearchRecord, controls: str = "") -> str:
    """Return the report of a search that runs, which loads itself again, with the HTML of `controls`."""
    from searchlight.search.reporting.html.report import render_report

    written = f"the search runs; written at {datetime.now():%H:%M:%S}, and again while it runs"
    state = f"{written}; trials that have not ended count as interrupted"
    return render_report(record, state, refresh_s=REFRESH_S, controls=controls)
