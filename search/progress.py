"""What a search shows while it runs: a live line in a terminal, plain lines elsewhere."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from optuna.trial import FrozenTrial
from rich.console import Console
from rich.live import Live
from rich.text import Text

from search.shown import clock, short
from search.space import Space
from search.trials import curve_of


class Progress:
    """Observes a search and shows it on standard error.

    Args:
        space: Which parameters to name beside a trial.
        objective, mode: What is the best.
        trials: How many will start.
        expected: How much they will get together, as the schedule expects, in its unit. None: nobody knows.
        earlier: The trials of a search that is taken up.

    Attributes:
        spent: How much they have got so far. Default: an epoch by each report.
    """

    def __init__(
        self,
        space: Space,
        objective: str,
        mode: str,
        trials: int,
        expected: float | None,
        console: Console,
        earlier: Sequence[FrozenTrial] = (),
    ) -> None:
        self._searched = [parameter.name for parameter in space.parameters]
        self._objective = objective
        self._sign = 1 if mode == "max" else -1
        self._trials = trials
        self._expected = expected
        self._console = console
        self._start = time.monotonic()
        self.spent: Callable[[], float] = lambda: self._epochs
        self._epochs = 0
        self._first: tuple[float, float] | None = None  # report: when, and what had been spent by then
        self._running: set[int] = set()
        self._ended = 0
        self._best: tuple[float, int, int] | None = None
        for trial in earlier:
            self._epochs += len(curve_of(trial))
            self._ended += trial.state.is_finished()
            if not trial.state.is_finished():
                self._running.add(trial.number)
            for epoch, value in curve_of(trial).items():
                self._note(value, trial.number, epoch)
        self._live = Live(get_renderable=self._line, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> "Progress":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def say(self, text: str) -> None:
        """A line of its own."""
        self._console.print(text.rstrip(), highlight=False, markup=False, soft_wrap=True)

    def trial_started(self, number: int, config: dict[str, Any], copied_from: int | None = None) -> None:
        self._running.add(number)
        values = "  ".join(f"{name}={short(config[name])}" for name in self._searched if name in config)
        origin = "" if copied_from is None else f"  from trial {copied_from}"
        self.say(f"trial {number:>3}  started   {values}{origin}")

    def trial_reported(self, number: int, epoch: int, metrics: dict[str, float], at: float) -> None:
        self._epochs += 1
        self._first = self._first or (time.monotonic(), self.spent())
        value = metrics[self._objective]
        self._note(value, number, epoch)
        self.say(f"trial {number:>3}  epoch {epoch:<3} {self._objective} {short(value)}")

    def trial_ended(self, number: int, outcome: str, reason: str) -> None:
        self._running.discard(number)
        self._ended += 1
        self.say(f"trial {number:>3}  {outcome:<9} {reason}")

    def _note(self, value: float, number: int, epoch: int) -> None:
        if math.isfinite(value) and (self._best is None or self._sign * value > self._sign * self._best[0]):
            self._best = (value, number, epoch)

    def _line(self) -> Text:
        elapsed = time.monotonic() - self._start
        best = "none yet"
        if self._best is not None:
            best = f"{short(self._best[0])} (trial {self._best[1]}, epoch {self._best[2]})"
        return Text(
            no_wrap=True,
            overflow="ellipsis",
            text=f"{self._ended}/{self._trials} trials done, {len(self._running)} going on, "
            f"best {self._objective} {best}, {clock(elapsed)} gone{self._left()}",
        )

    def _left(self) -> str:
        if self._expected is None or self._first is None or (spent := self.spent()) <= self._first[1]:
            return ""
        pace = (time.monotonic() - self._first[0]) / (spent - self._first[1])
        return f", about {clock(max(0.0, self._expected - spent) * pace)} left"
