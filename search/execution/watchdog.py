"""Shows what a search waits for when it makes no progress."""

import threading
import time
from collections.abc import Callable
from typing import Any

import ray
from optuna.trial import FrozenTrial

from searchlight.search.execution.callback import TrialCallback
from searchlight.search.execution.cluster.connection import join_thread

QUIET_S = 60.0  # time without progress after which a line is shown
ROOM_S = 10.0  # a gang that waits longer for room is reported
LOOK_S = 2.0


class Watchdog(TrialCallback):
    """Observes a search, and queries its gangs after a time without progress.

    Args:
        registry: The registry of the gangs.
        told: The resources of one gang's workers, as text.
        say: Shows a line.

    Attributes:
        waiting: What gangs have waited for during more than ROOM_S, or "".
    """

    def __init__(self, registry: Any, told: str, say: Callable[[str], None]) -> None:
        self._registry = registry
        self._told = told
        self._say = say
        self.waiting = ""
        self._moved_at = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch_progress, daemon=True, name="watch")

    def on_trial_changed(self, trial: FrozenTrial, is_over: bool = False) -> None:
        self._moved_at = time.monotonic()

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        join_thread(self._thread)

    def _watch_progress(self) -> None:
        waiting_since: float | None = None
        while not self._ended.wait(LOOK_S):
            try:
                doing, waiting = ray.get(self._registry.statuses.remote(), timeout=LOOK_S)
                free = _format_free_resources()
            except ray.exceptions.RayError:  # Ray is busy or shutting down; retried
                continue
            now = time.monotonic()
            waiting_since = (waiting_since or now) if waiting else None
            was_waiting, self.waiting = bool(self.waiting), ""
            if waiting_since and now - waiting_since > ROOM_S:
                self.waiting = f"{waiting} of the gangs wait for room: {self._told} each, {free}"
                if not was_waiting:
                    self._say(self.waiting)
            if now - self._moved_at > QUIET_S:
                self._moved_at = now
                self._say(f"no progress for {QUIET_S:.0f} s: {'; '.join(doing) or 'no gang has started yet'}")


def _format_free_resources() -> str:
    """Return the free resources of the cluster as text."""
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    other = (":", "memory", "_group_")  # names of nodes and of placement groups
    named = {name: amount for name, amount in free.items() if not any(part in name for part in other)}
    return "free are " + (", ".join(f"{amount:g} {name}" for name, amount in sorted(named.items())) or "none")
