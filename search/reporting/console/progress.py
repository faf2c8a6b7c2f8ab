"""What a search shows while it runs: where it stands in a terminal, a line for each event elsewhere."""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from optuna.trial import FrozenTrial
from rich.console import Console
from rich.live import Live
from rich.text import Text

from search.config.fidelity import UNLIMITED
from search.config.flatten import flatten
from search.config.objectives import Objective
from search.config.search_space import Space
from search.execution.callback import TrialCallback
from search.formatting import format_value
from search.reporting.console.live_table import STYLES, LiveRow, LiveTable
from search.study.trial import get_outcome, intermediate_values

LOOKS_PER_S = 1  # one takes up to 10 ms from the search


class Progress(TrialCallback):
    """Observes a search and shows it on standard error.

    Args:
        space: Which parameters to name beside a trial.
        objective: The objective that decides which trial is the best.
        trials: How many will start.
        expected: How much they will get together, as the schedule expects, in its unit. None: nobody knows.
        earlier: The trials of a search that is taken up.
        budget_s: After how many seconds it ends in any case.
        quiet: Show nothing but what matters.

    Attributes:
        board: Where the search stands.
    """

    def __init__(
        self,
        space: Space,
        objective: Objective,
        trials: int,
        expected: float | None,
        console: Console,
        earlier: Sequence[FrozenTrial] = (),
        budget_s: float | None = None,
        quiet: bool = False,
    ) -> None:
        self.board = LiveTable(objective, trials, expected, budget_s)
        self._space = space
        self._console = console
        self._quiet = quiet
        self._live = None
        if console.is_interactive and not quiet:
            self._live = Live(self.board, console=console, refresh_per_second=LOOKS_PER_S, transient=True)
        for trial in earlier:
            self._restore_trial(trial)

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._live:
            with suppress(OSError):  # of a terminal that was lost
                self._live.stop()

    def say(self, text: str) -> None:
        """A line of its own, unless the search is quiet."""
        if not self._quiet:
            self.warn(text)

    def warn(self, text: str) -> None:
        """A line of its own that matters."""
        self._print(Text(text.rstrip()))

    def on_trial_start(self, number: int, config: dict[str, Any], copied_from: int | None = None) -> None:
        values = self._add_trial(number, config)
        if self._live is None:
            told = "  ".join(f"{name}={format_value(value)}" for name, value in values.items())
            origin = "" if copied_from is None else f"  from trial {copied_from}"
            self.say(f"trial {number:>3}  started   {told}{origin}")

    def on_trial_report(self, number: int, epoch: int, metrics: dict[str, float], at: float) -> None:
        self.board.record_report(number, epoch, metrics)
        if self._live is None:
            metric = self.board.objective.metric
            self.say(f"trial {number:>3}  epoch {epoch:<3} {metric} {format_value(metrics[metric])}")

    def on_trial_end(self, number: int, outcome: str, reason: str) -> None:
        row = self.board.end_trial(number, outcome, reason)
        if self._live is not None:
            self._print_trial_end(number, outcome, reason, row)
        elif not self._quiet or outcome == "failed":
            self.warn(f"trial {number:>3}  {outcome:<9} {reason}")

    def _print_trial_end(self, number: int, outcome: str, reason: str, row: LiveRow | None) -> None:
        """A line, with what the trial reached and what it was; that of one that failed may be longer."""
        told = [] if row is None or math.isnan(row.best) else [f"{format_value(row.best)} after epoch {row.epoch}"]
        told += [reason] if outcome in ("diverged", "failed") else []
        told += [f"{name}={format_value(value)}" for name, value in row.values.items()] if row else []
        text = Text.assemble(f"trial {number:>3}  ", (f"{outcome:<9}", STYLES[outcome]), " ", "  ".join(told))
        if outcome != "failed":
            text.truncate(self._console.width, overflow="ellipsis")
        self._print(text)

    def _print(self, text: Text) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def _add_trial(self, number: int, config: dict[str, Any]) -> dict[str, Any]:
        """The searched parameters that apply to a trial of which the board is told."""
        chosen = self._space.choose(lambda parameter: config.get(parameter.name))
        values = {name: value for name, value in chosen.items() if name in config}
        epochs = config.get("epochs")
        self.board.add_trial(number, values, epochs if epochs and epochs < UNLIMITED else None)
        return values

    def _restore_trial(self, trial: FrozenTrial) -> None:
        number, finished = trial.number, trial.state.is_finished()
        if not finished:
            self._add_trial(number, flatten(trial.user_attrs.get("config", {})))
        for epoch, value in sorted(intermediate_values(trial).items()):
            self.board.restore_report(number, epoch, value)
        if finished:
            self.board.end_trial(number, get_outcome(trial), trial.user_attrs.get("reason", ""))
