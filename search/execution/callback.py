"""The callbacks of a search when a trial starts, reports or ends."""

from collections.abc import Mapping
from typing import Any


class TrialCallback:
    """A base class of the observers of a search. Methods run on Tune's event loop and must not raise or block.

    A config is flat, by dotted name. `at` is in seconds since 1970.
    """

    def on_trial_start(
        self,
        number: int,
        config: dict[str, Any],
        copied_from: int | None = None,
        confirms: Mapping[str, Any] | None = None,
    ) -> None:
        """Handle the start of trial `number`, a copy of another trial if `copied_from` is given.

        A confirming run has in `confirms` the `trial` whose config it trains (None: the defaults) and its new `seed`.
        """

    def on_trial_datasets(self, number: int, datasets: list[dict[str, str]]) -> None:
        """Handle the `datasets` of trial `number`."""

    def on_trial_report(self, number: int, epoch: int, metrics: dict[str, float], at: float) -> None:
        """Handle the `metrics` of trial `number` after `epoch` epochs."""

    def on_trial_end(self, number: int, outcome: str, reason: str, at: float) -> None:
        """Handle the end of trial `number`. It last held workers or reported `at`, possibly long ago."""
