"""What every tracker of a search can do."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from searchlight.search.execution.callback import TrialCallback
from searchlight.search.tracking.errors import TrackingError, error_message
from searchlight.search.tracking.events import Event, make_search_end

END_TIMEOUT_S = 60.0
HURRIED_S = 3.0  # END_TIMEOUT_S after a second Ctrl-C
ERROR_NOTE = "The search ended with an error."


class Tracker(TrialCallback, ABC):
    """Observes a search and records its trials where a user compares them. If the search fails, so does the record.

    Args:
        say: Shows a line to the user.
        prepare: Writes the environment of the search. It is called in the thread of the tracker before anything else.
    """

    def __init__(self, say: Callable[[str], None], prepare: Callable[[], None] | None) -> None:
        self._say, self._write_environment = say, prepare

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is not None:
            timeout_s = HURRIED_S if issubclass(kind, KeyboardInterrupt) else END_TIMEOUT_S
            with suppress(TrackingError):  # the search's own error comes first; unsent events are kept
                self.finish(make_search_end("FAILED", ERROR_NOTE), [], timeout_s)

    def _prepare(self) -> None:
        try:
            if self._write_environment:
                self._write_environment()
        except Exception as error:  # e.g. a full disk or broken packages: the trials continue
            self._say(f"the environment of the search cannot be stored: {error_message(error)}")

    @property
    def mlflow(self) -> dict[str, str]:
        """Where MLflow has the search: `tracking_uri`, `experiment_id` and `run_id`. Empty with another tracker."""
        return {}

    def request_connection(self) -> None:
        """Connect now, since the search is about to end and connecting takes seconds."""

    @abstractmethod
    def finish(self, end: Event, files: list[Path], timeout_s: float) -> None:
        """Record the `end` of the search and these `files`. Wait until everything is recorded.

        Raises:
            TrackingError: `timeout_s` has passed, or something cannot be recorded.
        """


class NoTracker(Tracker):
    """Records no trials, but the environment of the search."""

    def __init__(self, say: Callable[[str], None], prepare: Callable[[], None] | None) -> None:
        super().__init__(say, prepare)
        self._thread = threading.Thread(target=self._prepare, daemon=True, name="environment")
        self._thread.start()

    def finish(self, end: Event, files: list[Path], timeout_s: float) -> None:
        self._thread.join(timeout_s)
