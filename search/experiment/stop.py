"""Ends a search before its trials are spent: on a signal, with its script, or after its time budget."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

RESERVE = 1 / 6  # of a time budget and of GPU-hours for confirming runs, which are a fifth of the trials' epochs


class StopRequest:
    """Ends a search in good order when it is called with a reason."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.asked = threading.Event()  # set once the search is to end
        self.search_over = threading.Event()  # set once no trial of it is to go on, but confirming runs are
        self.reasons: list[str] = []  # what happens while the search ends already is no reason
        self.has_ended = False  # set once only the result is left to be shown
        self.prunes = True  # whether trials that wait at a rung are pruned at the end
        self._say = say

    def __call__(self, reason: str) -> None:
        if not self.asked.is_set():
            self.reasons += [reason] if reason not in self.reasons else []  # it may have ended the trials before
            self.asked.set()
            self._say(f"stopping: {reason}")

    def end_search(self, reason: str, confirms: bool = True) -> None:
        """End the trials at their next rung or end, and let confirming runs begin if the search `confirms`."""
        if not (self.asked.is_set() or self.search_over.is_set()):
            self.reasons.append(reason)
            self.search_over.set()
            self._say(f"no trial continues: {reason}" + ("; the best ones are confirmed" if confirms else ""))

    def interrupt(self, note: str = "once more to end at once") -> None:
        """End the search because the user asks for it, even if it ends already for another reason."""
        self.reasons.append("interrupted")
        self.prunes = False
        self.asked.set()
        if not self.has_ended:
            self._say(f"stopping: trials end at their next window; {note}")

    @property
    def is_interrupted(self) -> bool:
        return "interrupted" in self.reasons


@contextmanager
def handle_signals(stop: StopRequest, time_budget_s: float | None, reserve: float = 0.0) -> Iterator[None]:
    """End the search on Ctrl-C, SIGTERM and after the time budget. A second signal ends it at once.

    Only the main thread may handle signals. A search in another thread ends once an error, also Ctrl-C, ends the main
    thread: who corrects the script would wait for it, and start it again. A script that ends without an error waits.

    `reserve` is the share of the time budget that is kept for confirming runs.
    """

    def request_stop(number: int, frame: FrameType | None) -> None:
        if stop.is_interrupted:
            raise KeyboardInterrupt
        stop.interrupt()

    seconds = time_budget_s or 0.0
    timers = [threading.Timer(seconds, stop, ["time budget"])]
    if reserve:
        timers.append(threading.Timer((1 - reserve) * seconds, stop.end_search, ["time budget"]))

    def end_with_script(*error: Any) -> None:
        show_error(*error)
        stop.interrupt("its script has failed")

    before, show_error = {}, sys.excepthook
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)}
    else:
        sys.excepthook = end_with_script
    for timer in timers if time_budget_s else ():
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
        if sys.excepthook is end_with_script:
            sys.excepthook = show_error
