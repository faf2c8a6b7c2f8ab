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
from searchlight.search.study.trial import get_outcome, intermediate_values, is_confirming

if TYPE_CHECKING:
    from searchlight.search.execution.searcher import StudySearcher


class Progress(TrialCallback):
    """Observes a search and shows it on `console`. If `quiet`, it shows only warnings and failures.

    `earlier` are the trials of a resumed search.
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
        for trial in earlier:
            self._restore_trial(trial)

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

    def on_trial_start(
        self,
        number: int,
        config: dict[str, Any],
        copied_from: int | None = None,
        confirms: Mapping[str, Any] | None = None,
    ) -> None:
        parts = _format_values(self._add_trial(number, config, confirms is not None))
        parts += [] if copied_from is None else [f"from trial {copied_from}"]
        if confirms is not None:
            parts = [f"confirms {describe_config(confirms['trial'])} with seed {confirms['seed']}"]
            self._count_confirming()
        if self._live is None:
            self.say(f"trial {number:>3}  started   {'  '.join(parts)}")

    def on_trial_report(self, number: int, epoch: int, metrics: dict[str, float], at: float) -> None:
        self._board.record_report(number, epoch, metrics)
        if self._live is None:
            metric = self._board.objective.metric
            self.say(f"trial {number:>3}  epoch {epoch:<3} {metric} {format_value(metrics[metric])}")

    def on_trial_end(self, number: int, outcome: str, reason: str, at: float) -> None:
        row = self._board.end_trial(number, outcome, reason)
        self._count_confirming()  # a config that diverged gets no more runs
        if self._live is not None:
            self._print_trial_end(number, outcome, reason, row)
        elif not self._quiet or outcome == "failed":
            self.warn(f"trial {number:>3}  {outcome:<9} {reason}")

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

    def _add_trial(self, number: int, config: dict[str, Any], is_confirming: bool) -> dict[str, Any]:
        """Add a trial to the board. Return its active searched parameters."""
        chosen = self._space.choose(lambda parameter: config.get(parameter.name))
        values = {name: value for name, value in chosen.items() if name in config}
        epochs = config.get("epochs")
        self._board.add_trial(number, values, epochs if epochs and epochs < UNLIMITED else None, is_confirming)
        return values

    def _restore_trial(self, trial: FrozenTrial) -> None:
        number, finished, confirms = trial.number, trial.state.is_finished(), is_confirming(trial)
        if not finished or confirms:
            self._add_trial(number, flatten(trial.user_attrs.get("config", {})), confirms)
        for epoch, value in sorted(intermediate_values(trial).items()):
            self._board.restore_report(number, epoch, value)
        if finished:
            self._board.end_trial(number, get_outcome(trial), trial.user_attrs.get("reason", ""))


def _format_values(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={format_value(value)}" for name, value in values.items()]
