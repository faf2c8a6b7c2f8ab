"""Shows a running search: its state in a terminal, or a line for each event elsewhere."""

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from optuna.trial import FrozenTrial
from rich.console import Console
from rich.live import Live
from rich.text import Text

from searchlight.search.analysis.confirmation import describe_config
from searchlight.search.execution.callback import TrialCallback
from searchlight.search.formatting import format_value
from searchlight.search.reporting.console.live_table import STYLES, LiveRow, LiveTable
from searchlight.search.space.fidelity import UNLIMITED
from searchlight.search.space.flatten import flatten
from searchlight.search.space.search_space import Space
from searchlight.search.study.changes import UNSEEN, SeenTrial, find_changes
from searchlight.search.study.trial import get_confirming_run

if TYPE_CHECKING:
    from searchlight.search.execution.searcher import StudySearcher


class Progress(TrialCallback):
    """Observes a search and shows it on `console`. If `quiet`, it shows only warnings and failures.

    `earlier` are the trials of a resumed search, which were shown before.
    """

    def __init__(
        self, board: LiveTable, space: Space, console: Console, earlier: Sequence[FrozenTrial] = (), quiet: bool = False
    ) -> None:
        self._board, self._space, self._console, self._quiet = board, space, console, quiet
        self._live = None
        # Rich needs ipywidgets to update a table in a notebook.
        self._count_confirming: Callable[[], None] = lambda: None
        has_widgets = console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None
        if (console.is_interactive or has_widgets) and not quiet:
            # Each refresh takes up to 10 ms from the search.
            self._live = Live(board, console=console, refresh_per_second=1, transient=True)
        self._seen: dict[int, SeenTrial] = {}
        for trial in earlier:
            self._update(trial, is_earlier=True)

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._live:
            with suppress(OSError):  # the terminal was closed
                self._live.stop()

    def follow(self, searcher: "StudySearcher") -> None:
        """Show the used budget and the running trials of `searcher` from now on."""
        self._board.spent = lambda: searcher.reports.spent
        self._board.live = lambda: searcher.study.live

        def count() -> None:
            if searcher.confirmation is not None and self._board.confirming:
                self._board.confirming_runs = searcher.confirmation.count_runs(searcher.study.get_trials())

        self._count_confirming = count

    def say(self, text: str) -> None:
        """Show a line, unless the search is quiet."""
        if not self._quiet:
            self.warn(text)

    def warn(self, text: str) -> None:
        """Show a line, also if the search is quiet."""
        self._print(Text(text.rstrip()))

    def on_trial_changed(self, trial: FrozenTrial, is_over: bool = False) -> None:
        self._update(trial, is_over)

    def _update(self, trial: FrozenTrial, is_over: bool = False, is_earlier: bool = False) -> None:
        """Add what is new in `trial` to the board, and show it unless it `is_earlier`."""
        number = trial.number
        changes = find_changes(trial, self._seen.get(number, UNSEEN), is_over)
        self._seen[number] = changes.seen
        has_lines = self._live is None and not is_earlier
        if changes.has_begun:
            parts = self._add_trial(trial)
            if has_lines:
                self.say(f"trial {number:>3}  started   {'  '.join(parts)}")
        for epoch, report in changes.reports:
            self._board.record_report(number, epoch, report["metrics"], is_earlier)
            if has_lines:
                metric = self._board.objective.metric
                self.say(f"trial {number:>3}  epoch {epoch:<3} {metric} {format_value(report['metrics'][metric])}")
        if changes.outcome:
            row = self._board.end_trial(number, changes.outcome, changes.reason)
            self._count_confirming()  # a config that diverged gets no more runs
            if self._live is not None and not is_earlier:
                self._print_trial_end(number, changes.outcome, changes.reason, row)
            elif has_lines and (not self._quiet or changes.outcome == "failed"):
                self.warn(f"trial {number:>3}  {changes.outcome:<9} {changes.reason}")

    def _add_trial(self, trial: FrozenTrial) -> list[str]:
        """Add a trial to the board. Return its active searched parameters, or what it confirms, as texts."""
        config = flatten(trial.user_attrs["config"])
        chosen = self._space.choose(lambda parameter: config.get(parameter.name))
        values = {name: value for name, value in chosen.items() if name in config}
        epochs, run = config.get("epochs"), get_confirming_run(trial)
        limit = epochs if epochs and epochs < UNLIMITED else None
        self._board.add_trial(trial.number, values, limit, run is not None)
        if run is not None:
            self._count_confirming()
            return [f"confirms {describe_config(run.trial)} with seed {run.seed}"]
        parent = trial.user_attrs.get("copied_from")
        return _format_values(values) + ([] if parent is None else [f"from trial {parent}"])

    def _print_trial_end(self, number: int, outcome: str, reason: str, row: LiveRow | None) -> None:
        """Show the result and values of a trial, in one line unless it failed."""
        parts = [] if row is None or math.isnan(row.best) else [f"{format_value(row.best)} after epoch {row.epoch}"]
        parts += [reason] if outcome in ("diverged", "failed") else []
        parts += _format_values(row.values) if row else []
        text = Text.assemble(f"trial {number:>3}  ", (f"{outcome:<9}", STYLES[outcome]), " ", "  ".join(parts))
        if outcome != "failed":
            text.truncate(self._console.width, overflow="ellipsis")
        self._print(text)

    def _print(self, text: Text) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)


def _format_values(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={format_value(value)}" for name, value in values.items()]
