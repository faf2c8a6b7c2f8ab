"""The calls by which a search tells others that a trial starts, reports or ends."""

from collections.abc import Mapping
from typing import Any


class TrialCallback:
    """A base class of what follows a search. Its methods must not raise or wait: they run on Tune's event loop.

    A config is flat, by dotted name. `at` is in seconds since 1970.
    """

    def on_trial_start(
        self,
        number: int,
        config: dict[str, Any],
        copied_from: int | None = None,
        confirms: Mapping[str, Any] | None = None,
    ) -> None:
        """Trial `number` starts, as a copy of another trial if `copied_from` is given.

        A confirming run has in `confirms` the `trial` whose config it trains (None: the defaults) and its new `seed`.
        """

    def on_trial_datasets(self, number: int, datasets: list[dict[str, str]]) -> None:
        """Trial `number` uses `datasets`."""

    def on_trial_report(self, number: int, epoch: int, metrics: dict[str, float], at: float) -> None:
        """Trial `number` reports `metrics` after `epoch` epochs."""

    def on_trial_end(self, number: int, outcome: str, reason: str, at: float) -> None:
        """Trial `number` ends. It last held workers or reported `at`, and may have waited at a rung since."""
