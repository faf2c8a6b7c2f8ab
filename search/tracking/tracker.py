"""The tracker of a search. It reports to MLflow from a thread, so that a slow server never blocks the search."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from searchlight.search.analysis.timeline import running_time
from searchlight.search.formatting import replay_command
from searchlight.search.study.changes import UNSEEN, SeenTrial, find_changes
from searchlight.search.study.study import SearchStudy
from searchlight.search.study.trial import get_reports
from searchlight.search.tracking import provenance
from searchlight.search.tracking.base import NoTracker, Tracker
from searchlight.search.tracking.errors import TrackingError, describe_mlflow_error, get_http_status
from searchlight.search.tracking.events import SPOOL, Event, build_events, write_spool
from searchlight.search.tracking.options import TrackingOptions
from searchlight.search.tracking.run_files import RunFiles, RunWriter
from searchlight.search.tracking.runs import Runs
from searchlight.search.tracking.tensorboard import TensorBoardRuns
from searchlight.search.tracking.uri import redact, resolve_tracking_uri, tracking_environment
from searchlight.search.tracking.wandb import WandbRuns

LATEST_S = 30.0  # MLflow is connected after this time, even without a report
RETRY_S = 2.0
CALL_S = 15.0  # how long a running call may take at the end
# Pauses between calls, in which events are collected. The pause is SPARED times as long as the last call, within
# LINGER_S and LONGEST_S, so that the search keeps most of the CPU time.
LINGER_S, LONGEST_S, SPARED = 1.0, 10.0, 4.0
SENDERS = 4  # concurrent calls to a server, which has as many workers by default
TRIES = 3  # attempts to send artifacts at the end


class MLflowCallback(Tracker):
    """Reports a search to MLflow. Every call returns at once; `finish` waits until all events are sent.

    It connects with the first report or after LATEST_S, since MLflow's import and a new database would slow down the
    start of the gangs. An unavailable server loses no events, since the study stores each event first.

    Args:
        earlier: The trials of a resumed search. All events of those whose runs are incomplete are sent. Sending a
            report twice changes nothing, since its time is part of its identity in MLflow.
        say, prepare: See `Tracker`.
    """

    def __init__(
        self,
        runs: Runs,
        earlier: Sequence[FrozenTrial] = (),
        say: Callable[[str], None] = lambda line: None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(say, prepare)
        self.tracking_uri = redact(runs.tracking_uri)
        self._runs, self._config = runs, runs.config
        runs.before_end = self._send_pictures
        self._earlier = earlier
        # The last state of each trial that has changed, and whether the search is over; then those that are being sent.
        self._changed: dict[int, tuple[FrozenTrial, bool]] = {trial.number: (trial, False) for trial in earlier}
        self._pending: dict[int, tuple[FrozenTrial, bool]] = {}
        self._seen: dict[int, SeenTrial] = {}  # what MLflow has
        self._refused: list[Event] = []
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

    @property
    def experiment_id(self) -> str:
        """The experiment's id, or "" until MLflow has answered."""
        return self._runs.experiment_id

    @property
    def run_id(self) -> str:
        """The parent run's id, or "" until MLflow has answered."""
        return self._runs.run_id

    @property
    def mlflow(self) -> dict[str, str]:
        return {"tracking_uri": self.tracking_uri, "experiment_id": self.experiment_id, "run_id": self.run_id}

    def on_trial_changed(self, trial: FrozenTrial, is_over: bool = False) -> None:
        self._changed[trial.number] = trial, is_over
        if not self._needed.is_set() and get_reports(trial):
            self._needed.set()

    def request_connection(self) -> None:
        self._needed.set()

    def finish(self, end: Event, files: list[Path], timeout_s: float) -> None:
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

    def _run(self) -> None:
        """Send the events of each trial in order. Retry each call until it succeeds."""
        self._prepare()
        while not self._needed.wait(LATEST_S):
            if self._changed:  # otherwise, no trial has begun
                break
        self._retry(self._open_runs)
        while not self._closing.is_set():
            start = time.monotonic()
            finishing = self._finishing.is_set()  # no event follows
            self._retry(self._send_changes)
            if finishing and not self._changed and not self._pending:
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
        for trial in self._earlier:
            if not self._runs.reopen(trial, runs.get(trial.number)):
                self._seen[trial.number] = find_changes(trial).seen

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

    def _send_changes(self) -> None:
        """Send what MLflow lacks of the trials that have changed. After an error, a repeated call sends it again."""
        for number in list(self._changed):  # copied, since the search adds trials
            self._pending[number] = self._changed.pop(number)
        if self._unsure and self._pending:
            self._runs.find_runs()
            self._unsure = False
        with ThreadPoolExecutor(self._senders, "mlflow") as pool:
            while self._pending and not self._closing.is_set():
                numbers = list(islice(self._pending, self._senders))
                for number, (seen, refused) in zip(numbers, pool.map(self._send_trial, numbers), strict=True):
                    self._seen[number] = seen
                    self._refused += refused
                    del self._pending[number]

    def _send_trial(self, number: int) -> tuple[SeenTrial, list[Event]]:
        """Send the changes of a trial. Return what MLflow has of it now, and the events that it refuses."""
        trial, is_over = self._pending[number]
        changes = find_changes(trial, self._seen.get(number, UNSEEN), is_over)
        events = build_events(trial, changes, self._runs.objectives)
        return changes.seen, self._runs.send_events(number, events) if events else []

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


def create_tracker(
    config: TrackingOptions,
    options: Mapping[str, Any],
    modules: Mapping[str, Path],
    study: SearchStudy,
    say: Callable[[str], None],
    nodes: Sequence[Mapping[str, float]] | None = None,
) -> Tracker:
    """Create the tracker of a search. First, it records what the study has and an earlier driver did not record.

    Args:
        config: Where the search is, and where it is logged.
        options: All options of the search by key, as they are in force.
        modules: The files that the task imports, by the name of their copy.
        study: The open study of the search.
        say: Called with a line for the user.
        nodes: The resources of each node of Ray, or None if no trial will run any more.
    """
    prepare = None
    if nodes is not None:
        prepare = partial(provenance.write, config.local_path, options["task"], modules, nodes)
    if config.tracker == "none":
        return NoTracker(say, prepare)
    trials = study.get_trials()
    if config.tracker != "mlflow":
        create_writer = partial(_create_writer, config, study.metadata["id"])
        places = config.local_path, config.path, config.tracker
        return RunFiles(*places, create_writer, study.objectives, trials, say, prepare)
    write_spool(config.local_path, [], None)  # of an earlier driver: the study has the trials
    location = resolve_tracking_uri(config, tracking_environment(study.metadata))
    start_time = running_time(study.get_record()).start
    runs = Runs(config, *location, study.metadata, study.objectives, start_time, options)
    return MLflowCallback(runs, trials, say, prepare)


def _create_writer(config: TrackingOptions, search_id: str) -> RunWriter:
    if config.tracker == "tensorboard":
        return TensorBoardRuns(config.local_path)
    return WandbRuns(config.local_path, config.experiment, config.name, search_id)
