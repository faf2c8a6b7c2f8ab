"""How a search is ended before its trials are spent: by a signal, the clock, or a budget."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType

from optuna.trial import FrozenTrial

from search.config.stop_condition import StopCondition
from search.execution.stoppers import Stoppers
from search.experiment.plan import SearchPlan
from search.study.trial import WITH_RESULT, get_outcome, get_reports, gpu_seconds_used, intermediate_values

CHECK_S = 1.0  # how far GPU-hours may be overdrawn


class StopRequest:
    """Ends a search in good order when it is called with a reason.

    Attributes:
        asked: Set once the search is to end.
        reasons: Why. What is spent while it ends already is no reason.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.asked = threading.Event()
        self.reasons: list[str] = []
        self._say = say

    def __call__(self, reason: str) -> None:
        if not self.asked.is_set():
            self.reasons.append(reason)
            self.asked.set()
            self._say(f"stopping: {reason}")

    def interrupt(self) -> None:
        """The user asks for it, whatever else does."""
        self.reasons.append("interrupted")
        self.asked.set()
        self._say("stopping: trials end at their next window; once more to end at once")

    @property
    def is_interrupted(self) -> bool:
        return "interrupted" in self.reasons


@contextmanager
def handle_signals(stop: StopRequest, time_budget_s: float | None) -> Iterator[None]:
    """Ctrl-C, SIGTERM and the time budget end the search. A second Ctrl-C ends it at once."""
    heard: list[int] = []

    def request_stop(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        if len(heard) > 1:
            raise KeyboardInterrupt
        stop.interrupt()

    timer = threading.Timer(time_budget_s, stop, ["time budget"]) if time_budget_s else None
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)}
    if timer:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def build_stoppers(
    planned: SearchPlan, worker: Mapping[str, float], stop: StopRequest, say: Callable[[str], None]
) -> Stoppers:
    """The budget that a search asks for. Its workers have the resources `worker`; without a GPU, each counts as one."""
    config = planned.config
    return Stoppers(
        planned.objective,
        planned.trials,
        StopCondition.from_text(config.stop_when) if config.stop_when else None,
        config.patience,
        config.gpu_hours,
        gpus=config.workers * (worker.get("GPU", 0) or 1),
        stop=stop,
        say=say,
    )


def start_budget_timer(budget: Stoppers, asked: threading.Event) -> None:
    """Let `budget` look at the clock until the search is to end. Returns at once."""

    def check() -> None:
        while not asked.wait(CHECK_S):
            budget.check_gpu_hours()

    threading.Thread(target=check, daemon=True, name="budget").start()


def restore_stoppers(budget: Stoppers, trials: Sequence[FrozenTrial], waits: Callable[[FrozenTrial], bool]) -> None:
    """Tell `budget` what the trials of an earlier run of the search reported, in that order, and what they held.

    That they failed alike is not among it: what made them fail may be mended.

    Args:
        waits: Whether a trial that has not ended had come to a rung.
    """
    told: list[tuple[float, int, Callable[[], None]]] = []
    for trial in trials:
        number, curve, outcome = trial.number, intermediate_values(trial), get_outcome(trial)
        budget.meter.restore(number, gpu_seconds_used(trial))
        last = 0.0
        for epoch, report in get_reports(trial).items():
            if epoch in curve:
                last = report["time"]
                told.append((last, number, partial(budget.record_report, number, report["metrics"])))
        if outcome == "diverged" and trial.datetime_complete is not None:
            told.append((trial.datetime_complete.timestamp(), number, partial(budget.record_segment_end, number)))
        elif curve and (outcome in WITH_RESULT or waits(trial)):
            told.append((last, number, partial(budget.record_segment_end, number)))
    for _, _, tell in sorted(told, key=lambda event: event[:2]):
        tell()
    budget.check_gpu_hours()
