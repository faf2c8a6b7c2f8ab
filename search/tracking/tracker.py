"""Reports a search to MLflow from a thread, so that a slow or unreachable server never blocks the search."""

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from searchlight.search.analysis.best_trials import BestReports
from searchlight.search.execution.callback import TrialCallback
from searchlight.search.formatting import replay_command
from searchlight.search.study.record import load_search
from searchlight.search.study.trial import get_reports, is_confirming
from searchlight.search.tracking.errors import TrackingError, describe_mlflow_error, error_message, get_http_status
from searchlight.search.tracking.events import SPOOL, Event, make_event, make_search_end, make_trial_end, write_spool
from searchlight.search.tracking.runs import Runs
from searchlight.search.tracking.uri import redact

LATEST_S = 30.0  # MLflow is connected after this time, even without a report
RETRY_S = 2.0
CALL_S = 15.0  # how long a running call may take at the end
# Pauses between calls, in which events are collected. The pause is SPARED times as long as the last call, within
# LINGER_S and LONGEST_S, so that the search keeps most of the CPU time.
LINGER_S, LONGEST_S, SPARED = 1.0, 10.0, 4.0
MOST = 5000  # events in memory; after a longer outage, events are read from the study
SENDERS = 4  # concurrent calls to a server, which has as many workers by default
TRIES = 3  # attempts to send artifacts at the end
END_TIMEOUT_S = 60.0
HURRIED_S = 3.0  # END_TIMEOUT_S after a second Ctrl-C
ERROR_NOTE = "The search ended with an error."


class MLflowCallback(TrialCallback):
    """Reports a search to MLflow. Every call returns at once; `finish` waits until all events are sent.

    It connects with the first report or after LATEST_S, since MLflow's import and a new database would slow down the
    start of the gangs. An unavailable server loses no events, since the study stores each event first. If the search
    raises an error, the parent run ends as failed.

    Args:
        earlier: The trials of a resumed search, whose missing events are sent. Sending a report twice changes nothing,
            since its time is part of its identity in MLflow.
        say: Shows a line when MLflow becomes unavailable or available again.
        prepare: Called in the thread before anything else, to write the parent's artifacts.
    """

    def __init__(
        self,
        runs: Runs,
        earlier: Sequence[FrozenTrial] = (),
        say: Callable[[str], None] = lambda line: None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self.tracking_uri = redact(runs.tracking_uri)
        self._runs, self._config = runs, runs.config
        runs.before_end = self._send_pictures
        self._earlier, self._say, self._prepare = earlier, say, prepare
        self._bests = BestReports(runs.objectives)
        self._confirming = {trial.number for trial in earlier if is_confirming(trial)}
        for trial in earlier:
            for epoch, report in get_reports(trial).items():
                self._bests.record_report(trial.number, epoch, report["metrics"], report["time"])
        self._events: queue.SimpleQueue[tuple[int, Event]] = queue.SimpleQueue()
        self._pending: dict[int, list[Event]] = {}
        self._refused: list[Event] = []
        self._behind = threading.Event()  # some events are not in memory
        self._cut_off = threading.Event()  # the search ends before its trials, and the study does not record that
        self._senders = SENDERS if runs.artifacts is None else 1
        self._unsure = False  # a run may have been created by a call whose answer was lost
        self._failures = 0
        self._error = self._file_error = ""
        self._artifacts: dict[str, Callable[[], None]] = {}  # functions that send missing artifacts, by name
        self._end: Event | None = None
        self._files: list[Path] = []
        self._ended = False
        self._finishing, self._closing, self._needed = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="mlflow")
        self._thread.start()

    def __enter__(self) -> "MLflowCallback":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is not None:
            timeout_s = HURRIED_S if issubclass(kind, KeyboardInterrupt) else END_TIMEOUT_S
            with suppress(TrackingError):  # the search's own error comes first; unsent events are kept
                self.finish(make_search_end("FAILED", ERROR_NOTE), [], timeout_s)

    @property
    def experiment_id(self) -> str:
        """The experiment's id, or "" until MLflow has answered."""
        return self._runs.experiment_id

    @property
    def run_id(self) -> str:
        """The parent run's id, or "" until MLflow has answered."""
        return self._runs.run_id

    def on_trial_start(
        self,
        number: int,
        config: dict[str, Any],
        copied_from: int | None = None,
        confirms: Mapping[str, Any] | None = None,
    ) -> None:
        if confirms is not None:
            self._confirming.add(number)
        self._enqueue(number, make_event("started", config=config, copied_from=copied_from, confirms=confirms))

    def on_trial_datasets(self, number: int, datasets: list[dict[str, str]]) -> None:
        self._enqueue(number, make_event("data", datasets=datasets))

    def on_trial_report(self, number: int, epoch: int, metrics: dict[str, float], at: float) -> None:
        self._needed.set()
        self._bests.record_report(number, epoch, metrics, at)
        self._enqueue(number, make_event("reported", at, epoch=epoch, metrics=metrics))

    def on_trial_end(self, number: int, outcome: str, reason: str, at: float) -> None:
        if outcome == "interrupted":
            self._cut_off.set()
        best = self._bests.get_best(number)
        self._enqueue(number, make_trial_end(outcome, reason, best, at, number in self._confirming))

    def request_connection(self) -> None:
        """Connect now, since the search is about to end and connecting takes seconds."""
        self._needed.set()

    def finish(self, end: Event, files: list[Path], timeout_s: float) -> None:
        """End the parent run with the event `end` and these `files`. Wait until MLflow has all events.

        Raises:
            TrackingError: `timeout_s` has passed, or MLflow refused events.
        """
        self._end, self._files = end, files
        self._needed.set()
        self._finishing.set()
        try:
            self._thread.join(timeout_s)
            self._closing.set()
            self._thread.join(min(CALL_S, timeout_s))  # a running call may still succeed
        finally:  # after a second Ctrl-C too
            self._closing.set()
            try:
                write_spool(self._config.local_path, self._refused, None if self._ended else self._end)
            except OSError as error:  # e.g. a full disk: the end is still reported
                self._say(f"the events that MLflow has missed cannot be stored: {error}")
        rule = f"MLflow at {self.tracking_uri} must take every trial, but"
        again = f"Nothing is lost: `{replay_command(self._config.path)}` sends what is missing."
        if not self._ended:
            raise TrackingError(f"{rule} {self._error if self._failures else 'needs more time for it'}. {again}")
        if self._refused:
            kept = f"{len(self._refused)} events are kept in {self._config.path / SPOOL}."
            raise TrackingError(f"{rule} refused some of it: {self._runs.error}. {kept}")
        if self._artifacts:
            raise TrackingError(f"{rule} has not taken {next(iter(self._artifacts))}: {self._file_error}. {again}")

    def _enqueue(self, number: int, event: Event) -> None:
        if self._events.qsize() < MOST:
            self._events.put((number, event))
        else:
            self._behind.set()

    def _run(self) -> None:
        """Send all events in order. Retry each call until it succeeds."""
        try:
            if self._prepare:
                self._prepare()
        except Exception as error:  # e.g. a full disk or broken packages: the trials continue
            self._say(f"the environment of the search cannot be stored: {error_message(error)}")
        while not self._needed.wait(LATEST_S):
            if self._earlier or not self._events.empty():  # otherwise, no trial has begun
                break
        self._retry(self._open_runs)
        while not self._closing.is_set():
            start = time.monotonic()
            finishing = self._finishing.is_set()  # no event follows
            if self._behind.is_set():
                self._retry(self._resync_from_study)
            self._drain_queue()
            self._retry(self._send_pending)
            if finishing and not self._pending and not self._behind.is_set():
                return self._finish()
            took = time.monotonic() - start
            self._finishing.wait(min(LONGEST_S, max(LINGER_S, SPARED * took)))

    def _retry(self, action: Callable[[], None]) -> None:
        while not self._closing.is_set():
            try:
                action()
            except Exception as error:  # MLflow raises its own errors and those of urllib and SQLAlchemy
                self._error, self._unsure = describe_mlflow_error(error), True
                self._failures += 1
                if self._failures == 2:  # not after a single failure
                    self._say(f"MLflow at {self.tracking_uri} {self._error}. The search continues, and sends it later")
                if self._finishing.is_set() and get_http_status(error) in (401, 403):
                    return self._closing.set()  # a wrong login cannot change, since it was read at the start
                self._closing.wait(RETRY_S)
            else:
                if self._failures > 1:
                    self._say(f"MLflow at {self.tracking_uri} is back, and gets the missed events")
                self._failures = 0
                return

    def _open_runs(self) -> None:
        runs = self._runs.open()
        self._add_files(self._runs.list_initial_artifacts())
        self._send_artifacts()
        missing = {t.number: self._runs.get_missing_events(t, runs.get(t.number)) for t in self._earlier}
        self._pending = {number: events for number, events in missing.items() if events}

    def _send_artifacts(self) -> None:
        """Send artifacts. Errors do not delay trials: the artifact store may be elsewhere."""
        try:
            for name, send in list(self._artifacts.items()):
                send()
                del self._artifacts[name]
        except Exception as error:  # any artifact store may fail; reported at the end
            self._file_error = describe_mlflow_error(error)

    def _send_pictures(self, number: int) -> None:
        """Send the pictures of a trial before its end, so that another driver sends them if this one dies.

        After an error, those of later trials are sent at the end.
        """
        try:
            if not self._file_error:
                return self._runs.send_pictures(number)
        except Exception as error:  # any artifact store may fail
            self._file_error = describe_mlflow_error(error)
        self._artifacts[f"the pictures of trial {number}"] = partial(self._runs.send_pictures, number)

    def _add_files(self, files: Sequence[Path]) -> None:
        self._artifacts |= {path.name: partial(self._runs.send_artifact, path) for path in files}

    def _resync_from_study(self) -> None:
        """Drop the events in memory, and send missing ones from the study."""
        self._behind.clear()
        self._drain_queue()
        self._pending = {}  # the study already has these events
        runs, over = self._runs.find_runs(), self._cut_off.is_set()
        for trial in load_search(self._config.path).all_trials:
            if events := self._runs.get_missing_events(trial, runs.get(trial.number), over):
                self._pending[trial.number] = events
            if len(self._pending) >= self._senders:
                self._send_pending()

    def _drain_queue(self) -> None:
        """Move the queued events to `_pending`, by trial."""
        while not self._events.empty():
            number, event = self._events.get()
            self._pending.setdefault(number, []).append(event)

    def _send_pending(self) -> None:
        if self._unsure and self._pending:
            self._runs.find_runs()
            self._unsure = False
        with ThreadPoolExecutor(self._senders, "mlflow") as pool:
            while self._pending and not self._closing.is_set():
                numbers = list(islice(self._pending, self._senders))
                refused = pool.map(self._runs.send_events, numbers, [self._pending[number] for number in numbers])
                for number, events in zip(numbers, refused, strict=True):
                    self._refused += events
                    del self._pending[number]

    def _finish(self) -> None:
        self._retry(self._end_parent)
        self._add_files(self._files)
        for _ in range(TRIES):
            self._send_artifacts()
            if not self._artifacts or self._closing.wait(RETRY_S):
                return

    def _end_parent(self) -> None:
        assert self._end is not None
        self._runs.end_parent(self._end)
        self._ended = True
