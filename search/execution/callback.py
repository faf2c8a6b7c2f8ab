"""What is called when a trial starts, reports or ends."""

from typing import Any, Protocol


class Observer(Protocol):
    """What follows a search as it goes. None of these may raise or wait: they run on Tune's event loop.

    A config comes flat, by dotted name; `at` is in seconds since 1970.
    """

    def trial_started(self, number: int, config: dict[str, Any], copied_from: int | None = None) -> None: ...
    def trial_named_data(self, number: int, datasets: list[dict[str, str]]) -> None: ...
    def trial_reported(self, number: int, epoch: int, metrics: dict[str, float], at: float) -> None: ...
    def trial_ended(self, number: int, outcome: str, reason: str) -> None: ...
