"""What is called when a trial starts, reports or ends."""

from typing import Any, Protocol


class TrialCallback(Protocol):
    """What follows a search as it goes. None of these may raise or wait: they run on Tune's event loop.

    A config comes flat, by dotted name; `at` is in seconds since 1970.
    """

    def on_trial_start(self, number: int, config: dict[str, Any], copied_from: int | None = None) -> None: ...
    def on_trial_datasets(self, number: int, datasets: list[dict[str, str]]) -> None: ...
    def on_trial_report(self, number: int, epoch: int, metrics: dict[str, float], at: float) -> None: ...
    def on_trial_end(self, number: int, outcome: str, reason: str) -> None: ...
