"""MLflow follows a search: told by a thread of its own, which a slow store or a server that is away never stops."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from search.analysis.best_trials import BestReports
from search.config import SearchConfig
from search.config.objectives import Objective
from search.execution.callback import TrialCallback
from search.formatting import replay_command
from search.study.trial import get_reports
from search.tracking import spool
from search.tracking.errors import describe_mlflow_error, error_message, is_login_error
from search.tracking.events import (
    Event,
    build_search_end_event,
    build_trial_datasets_event,
    build_trial_end_event,
    build_trial_report_event,
    build_trial_start_event,
)
from search.tracking.runs import Runs
from search.tracking.uri import redact
from trainables.filesystem.paths import StoragePath

LATEST_S = 30.0  # after which MLflow is told that trials began, whether one has reported or not
RETRY_S = 2.0
CALL_S = 15.0  # how long one call may take when the end is waited for
# What comes within so many seconds is sent together, since a call has a price. Where telling it takes long, as of many
# trials at a time, as much longer is waited as leaves the search most of the time.
LINGER_S, LONGEST_S, SPARED = 1.0, 10.0, 4.0
MOST = 5000  # events in memory: of a longer outage MLflow is told from the study
SENDERS = 4  # calls at a time to a server, which has as many workers by default; a database is written to by one
TRIES = 3  # of artifacts at the end


class TrackingError(RuntimeError):
    """MLflow could not be told all; the message says what to do."""


class MLflowCallback(TrialCallback):
    """Observes a search and tells MLflow. Every call returns at once; `finish` waits until all is told.

    Begins with the first report, or half a minute after the search: until then the gangs start, and MLflow's import
    and a new database would take seconds from them on a small machine. Runs have the times at which their trials began
    all the same.

    Nothing is lost while the server is away, since the study has all that MLflow is to be told, and has it first.

    Args:
        config: Of the search.
        tracking_uri: MLflow's store or server.
        artifacts: Where a new experiment keeps its artifacts; None leaves it to the server.
        objectives: Of which each trial's best are metrics of its run.
        search_id: A tag by which the runs of this search are found again.
        earlier: The trials of a search that is taken up, as its study has them. MLflow is told what it lacks of them:
            what its driver had not sent when it died. Telling it a second time changes nothing, since a report has
            the same time then, which is part of what identifies it in MLflow.
        trials: Those that the study has when it is called, from a thread.
        say: Tells the user in a line that MLflow is away, or back.
        prepare: Called in the thread before anything else, to write what the parent's artifacts are to have.
    """

    def __init__(
        self,
        config: SearchConfig,
        tracking_uri: str,
        artifacts: StoragePath | None,
        objectives: Sequence[Objective],
        search_id: str,
        earlier: Sequence[FrozenTrial] = (),
        trials: Callable[[], Sequence[FrozenTrial]] = tuple,
        say: Callable[[str], None] = lambda line: None,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self.tracking_uri = redact(tracking_uri)
        self._config = config
        self._runs = Runs(config, tracking_uri, artifacts, search_id, objectives, self._send_pictures)
        self._earlier = earlier
        self._trials = trials
        self._say = say
        self._prepare = prepare
        self._bests = BestReports(objectives)
        for trial in earlier:
            for epoch, report in get_reports(trial).items():
                self._bests.record_report(trial.number, epoch, report["metrics"], report["time"])
        self._events: queue.SimpleQueue[tuple[int, Event]] = queue.SimpleQueue()
        self._pending: dict[int, list[Event]] = {}
        self._refused: list[Event] = []
        self._behind = threading.Event()  # what is in memory is not all
        self._cut_off = threading.Event()  # the search ends before its trials, of which the study knows nothing
        self._senders = SENDERS if artifacts is None else 1
        self._unsure = False  # a run may have been created, and the answer been lost
        self._failures = 0
        self._error = self._file_error = ""
        self._unfiled: list[Path] = []
        self._unseen: list[int] = []  # trials whose pictures MLflow has not
        self._end: Event | None = None
        self._files: list[Path] = []
        self._ended = False
        self._finishing = threading.Event()
        self._closing = threading.Event()
        self._needed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="mlflow")
        self._thread.start()

    @property
    def experiment_id(self) -> str:
        """Empty until MLflow has answered."""
        return self._runs.experiment_id

    @property
    def run_id(self) -> str:
        """Of the parent; empty until MLflow has answered."""
        return self._runs.run_id

    def on_trial_start(self, number: int, config: dict[str, Any], copied_from: int | None = None) -> None:
        self._enqueue(number, build_trial_start_event(config, copied_from))

    def on_trial_datasets(self, number: int, datasets: list[dict[str, str]]) -> None:
        self._enqueue(number, build_trial_datasets_event(datasets))

    def on_trial_report(self, number: int, epoch: int, metrics: dict[str, float], at: float) -> None:
        self._needed.set()
        self._bests.record_report(number, epoch, metrics, at)
        self._enqueue(number, build_trial_report_event(epoch, metrics, at))

    def on_trial_end(self, number: int, outcome: str, reason: str) -> None:
        if outcome == "interrupted":
            self._cut_off.set()
        self._enqueue(number, build_trial_end_event(outcome, reason, self._bests.get_best(number)))

    def request_connection(self) -> None:
        """The search is about to end: the seconds that MLflow needs to get ready may begin now."""
        self._needed.set()

    def finish(
        self,
        status: str,
        note: str,
        metrics: dict[str, float],
        files: list[Path],
        timeout_s: float,
        stopped: str = "",
    ) -> None:
        """End the parent run and wait until MLflow has everything. `stopped` is why the search ended early.

        Raises:
            TrackingError: It has not within `timeout_s`, or refused some of it.
        """
        self._end = build_search_end_event(status, note, metrics, stopped)
        self._files = files
        self._needed.set()
        self._finishing.set()
        try:
            self._thread.join(timeout_s)
            self._closing.set()
            self._thread.join(min(CALL_S, timeout_s))  # a call that is under way now may still succeed
        finally:  # after a second Ctrl-C too
            self._closing.set()
            self._write_unsent_events()
        rule = f"MLflow at {self.tracking_uri} must take every trial, but"
        again = f"Nothing is lost: `{replay_command(self._config.path)}` tells it what it lacks."
        if not self._ended:
            raise TrackingError(f"{rule} {self._error if self._failures else 'needs more time for it'}. {again}")
        if self._refused:
            kept = f"{len(self._refused)} events are kept in {self._config.path / spool.FILE}."
            raise TrackingError(f"{rule} refused some of it: {self._runs.error}. {kept}")
        if self._unfiled or self._unseen:
            what = self._unfiled[0].name if self._unfiled else f"the pictures of trial {self._unseen[0]}"
            raise TrackingError(f"{rule} has not taken {what}: {self._file_error}. {again}")

    def _write_unsent_events(self) -> None:
        try:
            spool.write_spool(self._config.local_path, self._refused, None if self._ended else self._end)
        except OSError as error:  # of a full disk: how the search ended is told all the same
            self._say(f"what MLflow has not taken cannot be kept: {error}")

    def _enqueue(self, number: int, event: Event) -> None:
        if self._events.qsize() < MOST:
            self._events.put((number, event))
        else:
            self._behind.set()

    def _run(self) -> None:
        """The thread: everything in order, again and again until it is taken."""
        try:
            self._prepare()
        except Exception as error:  # of a full disk, or of packages that are half installed: trials are worth more
            self._say(f"what the search runs with cannot be kept: {error_message(error)}")
        while not self._needed.wait(LATEST_S):
            if self._earlier or not self._events.empty():  # else no trial has begun, and maybe none will
                break
        self._retry(self._open_runs)
        while not self._closing.is_set():
            start = time.monotonic()
            finishing = self._finishing.is_set()  # nothing comes after that
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
            except Exception as error:  # MLflow raises its own, urllib's and SQLAlchemy's; the user is told
                self._record_failure(error)
                if self._finishing.is_set() and is_login_error(error):
                    return self._closing.set()  # that changes with the environment, which is read at the start
                self._closing.wait(RETRY_S)
            else:
                return self._reset_failures()

    def _record_failure(self, error: Exception) -> None:
        self._error = describe_mlflow_error(error)
        self._unsure = True
        self._failures += 1
        if self._failures == 2:  # not of a single hiccup
            self._say(f"MLflow at {self.tracking_uri} {self._error}. The search goes on, and it is told later")

    def _reset_failures(self) -> None:
        if self._failures > 1:
            self._say(f"MLflow at {self.tracking_uri} is back, and is told what it missed")
        self._failures = 0

    def _open_runs(self) -> None:
        runs = self._runs.open(self._earlier)
        self._unfiled = self._runs.list_initial_artifacts()
        self._send_artifacts()
        lacking = {
            trial.number: self._runs.get_missing_events(trial, runs.get(trial.number)) for trial in self._earlier
        }
        self._pending = {number: events for number, events in lacking.items() if events}

    def _send_artifacts(self) -> None:
        """Send artifacts. They may lie elsewhere than runs, with a login of its own: trials do not wait for them."""
        try:
            while self._unfiled:
                self._runs.send_artifact(self._unfiled[0])
                del self._unfiled[0]
            while self._unseen:
                self._runs.send_pictures(self._unseen[0])
                del self._unseen[0]
        except Exception as error:  # of any store of artifacts that there is; told at the end, if it stays so
            self._file_error = describe_mlflow_error(error)

    def _send_pictures(self, number: int) -> None:
        """Send what a trial drew. Before its end: of a driver that is killed in between, the next one sends it again.

        Where artifacts were not taken before, no other trial waits for that: they are tried again at the end.
        """
        try:
            if not self._file_error:
                return self._runs.send_pictures(number)
        except Exception as error:  # as above
            self._file_error = describe_mlflow_error(error)
        if number not in self._unseen:
            self._unseen.append(number)

    def _resync_from_study(self) -> None:
        """Forget what is in memory, and tell from the study what MLflow lacks."""
        self._behind.clear()
        self._drain_queue()
        self._pending = {}  # the study, which is read now, had it first
        runs, over = self._runs.find_runs(), self._cut_off.is_set()
        for trial in self._trials():
            if events := self._runs.get_missing_events(trial, runs.get(trial.number), over):
                self._pending[trial.number] = events
            if len(self._pending) >= self._senders:
                self._send_pending()

    def _drain_queue(self) -> None:
        """Move what was put so far to `_pending`, by trial."""
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
        self._unfiled += self._files
        for _ in range(TRIES):
            self._send_artifacts()
            if not (self._unfiled or self._unseen) or self._closing.wait(RETRY_S):
                return

    def _end_parent(self) -> None:
        assert self._end is not None
        self._runs.end_parent(self._end)
        self._ended = True
