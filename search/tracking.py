"""Trials in MLflow: one parent run for a search, one nested child run per trial, sent by a thread of its own."""

import fcntl
import json
import math
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna.trial import FrozenTrial

from search.config import SearchConfig
from search.nested import flatten
from search.objectives import Objective
from search.trials import outcome_of, reports_of

if TYPE_CHECKING:
    from mlflow.entities import Run

STATUS = {
    "completed": "FINISHED",
    "pruned": "KILLED",
    "interrupted": "KILLED",
    "diverged": "FAILED",
    "failed": "FAILED",
}
KIND = {"mlflow.experimentKind": "custom_model_development"}  # the UI then opens on runs and charts, not on traces
RETRY_S = 2.0
CALL_S = 15.0  # how long one call may take when the end is waited for
BATCH = 1000  # MLflow's limits: of metrics in one call, and of characters
LINGER_S = 1.0  # what comes within it is sent together: a call has a price, and takes time from the search
LONGEST_PARAM = 6000
LONGEST_TAG = 5000
NOT_IN_A_KEY = re.compile(r"[^\w\-. :/]")  # what MLflow refuses in the name of a metric
OF_CHILDREN = ("mlflow.user", "mlflow.source.git.commit")  # of the tags that MLflow itself would give a run
REFUSALS = {400, 404}  # not worth a second try

Event = dict[str, Any]


class TrackingError(RuntimeError):
    """MLflow could not be told all; the message says what is kept where."""


class Tracker:
    """Observes a search and tells MLflow. Every call returns at once; `finish` waits until all is told.

    Begins with the first report: until then the gangs start, and MLflow's import and a new database would take
    seconds from them on a small machine. Runs have the times at which their trials began all the same.

    Args:
        config: Of the search.
        tracking_uri: MLflow's store or server.
        artifacts: Where a new experiment keeps its artifacts; None leaves it to the server.
        resolved: The YAML that runs the search again.
        objective, mode: Of which each trial's best is a metric of its run: the UI itself ranks by the last report.
        others: Further objectives, of which the values in that same report are.
        search_id: A tag by which the runs of this search are found again.
        earlier: The trials of a search that is taken up, as its study has them. MLflow is told what it lacks of them:
            what its driver had not sent when it died. Telling it a second time changes nothing, since a report has
            the same time then, which is part of what identifies it in MLflow.
    """

    def __init__(
        self,
        config: SearchConfig,
        tracking_uri: str,
        artifacts: Path | None,
        resolved: str,
        objective: str,
        mode: str,
        search_id: str,
        others: Sequence[Objective] = (),
        earlier: Sequence[FrozenTrial] = (),
    ) -> None:
        self.tracking_uri = tracking_uri
        self.experiment_id = ""
        self.run_id = ""
        self._config = config
        self._artifacts = artifacts
        self._resolved = resolved
        self._objective = objective
        self._better: Callable[..., dict[str, float]] = max if mode == "max" else min
        self._names = (objective, *(other.metric for other in others))
        # The objectives by name in the best report of each trial, and the time of its last report.
        self._best: dict[int, tuple[dict[str, float], float]] = {}
        for trial in earlier:
            for report in reports_of(trial).values():
                self._note_best(trial.number, report["metrics"], report["time"])
        self._search_id = search_id
        self._earlier = earlier
        self._unsure = False
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._pending: list[Event] = []
        self._refused: list[Event] = []
        self._complete = False
        self._start_ms = min([int(time.time() * 1000), *(_started(trial) for trial in earlier)])
        self._children: dict[int, str] = {}
        self._error = ""
        self._finishing = threading.Event()
        self._closing = threading.Event()
        self._needed = threading.Event()
        self._thread = threading.Thread(target=self._send_all, daemon=True, name="mlflow")
        self._thread.start()

    def trial_started(self, number: int, config: dict[str, Any], copied_from: int | None = None) -> None:
        self._put("started", trial=number, config=config, copied_from=copied_from)

    def trial_reported(self, number: int, epoch: int, metrics: dict[str, float], at: float) -> None:
        self._needed.set()
        self._note_best(number, metrics, at)
        self._put("reported", trial=number, **_report(epoch, metrics, at))

    def trial_ended(self, number: int, outcome: str, reason: str) -> None:
        self._put("ended", trial=number, outcome=outcome, reason=reason, best=self._best.get(number))

    def _note_best(self, number: int, metrics: Mapping[str, float], at: float) -> None:
        point = {name: metrics.get(name, math.nan) for name in self._names}
        if all(map(math.isfinite, point.values())):
            best, _ = self._best.get(number, (point, at))
            self._best[number] = (self._better(best, point, key=itemgetter(self._objective)), at)  # the first of equals

    def hurry(self) -> None:
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
            TrackingError: It has not within `timeout_s`; what it lacks lies in a file.
        """
        paths = [str(file) for file in files]
        self._put("finished", status=status, note=note, metrics=metrics, files=paths, stopped=stopped)
        self._needed.set()
        self._finishing.set()
        self._events.put(None)
        self._thread.join(timeout_s)
        self._closing.set()
        self._thread.join(min(CALL_S, timeout_s))  # a call that is under way now may still succeed
        self._take(wait=False)
        unsent = [*self._refused, *self._pending]
        path = self._config.folder / "mlflow-unsent.jsonl"
        if not unsent:
            path.unlink(missing_ok=True)  # of a driver before this one, from which the search was taken up
        else:
            path.write_text("".join(json.dumps(event) + "\n" for event in unsent), encoding="utf-8")
            problem = "refused some of it" if not self._pending else "is not reachable"
            raise TrackingError(
                f"MLflow at {self.tracking_uri} must take every trial, but {problem}: {self._error}. "
                f"{len(unsent)} events are kept in {path}. --resume {self._config.name} tells it what it lacks."
            )

    def _put(self, kind: str, **content: Any) -> None:
        self._events.put({"kind": kind, "time": int(time.time() * 1000), **content})

    def _send_all(self) -> None:
        """The thread: everything in order, again and again until it is taken."""
        self._needed.wait()
        self._retry(self._open)
        while not self._closing.is_set() and not (self._complete and not self._pending):
            self._take(wait=True)
            self._retry(self._send)
            self._finishing.wait(LINGER_S)

    def _take(self, wait: bool) -> None:
        """Move what was put so far to `_pending`; with `wait`, at least one event if there is nothing to send."""
        while not self._events.empty() or (wait and not self._pending and not self._complete):
            event = self._events.get()
            if event is None:
                self._complete = True
            else:
                self._pending.append(event)

    def _retry(self, action: Callable[[], None]) -> None:
        while not self._closing.is_set():
            try:
                return action()
            except Exception as error:  # MLflow raises its own, urllib's and SQLAlchemy's; finish() tells it
                self._error = " ".join(str(error).split())[:300]
                self._unsure = True
                self._closing.wait(RETRY_S)

    def _open(self) -> None:
        # Imported here: no earlier than it is needed.
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
        from mlflow.tracking.context.registry import resolve_tags

        config = self._config
        with _one_at_a_time(self._artifacts):
            self._client = MlflowClient(tracking_uri=self.tracking_uri)
            experiment = self._client.get_experiment_by_name(config.experiment)
            if experiment is None:
                location = self._artifacts.as_uri() if self._artifacts else None
                try:
                    self.experiment_id = self._client.create_experiment(config.experiment, location, KIND)
                except MlflowException:  # another search made it between the two calls
                    experiment = self._client.get_experiment_by_name(config.experiment)
            if experiment is not None:
                self.experiment_id = experiment.experiment_id
        tags = {**resolve_tags(), "search": config.name, "search_id": self._search_id, "task": config.task}
        self._tags = {key: tags[key] for key in (*OF_CHILDREN, "search", "search_id") if key in tags}
        runs = self._find_runs()
        if not self.run_id:
            run = self._client.create_run(self.experiment_id, self._start_ms, tags, config.name)
            self.run_id = run.info.run_id
        elif self._earlier:
            self._client.update_run(self.run_id, "RUNNING")
        self._client.log_text(self.run_id, self._resolved, "search.yaml")
        self._pending = [event for trial in self._earlier for event in self._lacking(trial, runs.get(trial.number))]

    def _find_runs(self) -> "dict[int, Run]":
        """The runs that MLflow has of this search's trials; notes their ids, and that of the parent.

        They are those of a driver before this one, or of a call that was never answered.
        """
        runs: dict[int, Run] = {}
        token: str | None = None
        while token != "":
            page = self._client.search_runs(
                [self.experiment_id], f"tags.search_id = '{self._search_id}'", page_token=token
            )
            for run in page:
                if "trial_id" in run.data.tags:
                    runs[int(run.data.tags["trial_id"])] = run
                else:
                    self.run_id = run.info.run_id
            token = page.token or ""
        self._children.update((number, run.info.run_id) for number, run in runs.items())
        return runs

    def _lacking(self, trial: FrozenTrial, run: "Run | None") -> list[Event]:
        """All events of `trial`, unless MLflow has its end, which is told last."""
        if "config" not in trial.user_attrs:
            return []
        number, outcome, ended = trial.number, outcome_of(trial), trial.state.is_finished()
        if run is not None and ended and run.data.tags.get("outcome") == outcome:
            if run.info.status == STATUS[outcome]:
                return []
        elif run is not None and not ended and run.info.status != "RUNNING":  # interrupted, and now it goes on
            self._client.update_run(run.info.run_id, "RUNNING")
            for tag in {"outcome", "reason"} & run.data.tags.keys():
                self._client.delete_tag(run.info.run_id, tag)
        config, copied_from = flatten(trial.user_attrs["config"]), trial.user_attrs.get("copied_from")
        events = [{"kind": "started", "time": _started(trial), "config": config, "copied_from": copied_from}]
        for epoch, report in reports_of(trial).items():
            events.append({"kind": "reported", **_report(epoch, report["metrics"], report["time"])})
        if ended:
            end = {"outcome": outcome, "reason": trial.user_attrs.get("reason", ""), "best": self._best.get(number)}
            events.append({"kind": "ended", "time": _milliseconds(trial.datetime_complete), **end})
        return [{"trial": number, **event} for event in events]

    def _send(self) -> None:
        """Send what is pending, a trial at a time: one call for all of it costs what one for a single metric does."""
        if self._unsure:  # a run may have been created, and the answer been lost
            self._find_runs()
            self._unsure = False
        while self._pending:
            trial = self._pending[0].get("trial")  # None: the parent's end
            events = [event for event in self._pending if event.get("trial") == trial]
            if not self._taken(trial, events):
                # One of them would be refused again, and everything behind it would wait: it is kept for finish().
                self._refused += [event for event in events if not self._taken(trial, [event])]
            self._pending = [event for event in self._pending if event.get("trial") != trial]

    def _taken(self, trial: int | None, events: list[Event]) -> bool:
        """Whether MLflow takes `events` or refuses one of them for what it is."""
        if trial is not None and trial not in self._children and events[0]["kind"] != "started":
            return False  # its run was refused
        from mlflow.exceptions import MlflowException

        try:
            if trial is None:
                self._send_finished(events)
            else:
                self._send_trial(trial, events)
        except MlflowException as error:
            if error.get_http_status_code() not in REFUSALS:  # type: ignore[no-untyped-call]
                raise
            self._error = " ".join(str(error).split())[:300]
            return False
        return True

    def _send_trial(self, number: int, events: list[Event]) -> None:
        from mlflow.entities import Metric, Param, RunTag

        params: list[Param] = []
        tags: list[RunTag] = []
        metrics: list[Metric] = []
        for event in events:
            if event["kind"] == "started":
                self._create_child(number, event)
                params = [Param(name, str(value)[:LONGEST_PARAM]) for name, value in event["config"].items()]
            elif event["kind"] == "reported":
                values, at = event["metrics"].items(), event["time"]
                metrics += [Metric(NOT_IN_A_KEY.sub("_", name), value, at, event["epoch"]) for name, value in values]
            else:
                tags = [RunTag("outcome", event["outcome"]), RunTag("reason", event["reason"][:LONGEST_TAG])]
                if event["best"] is not None:
                    point, at = event["best"]
                    keys = {NOT_IN_A_KEY.sub("_", f"best/{name}"): value for name, value in point.items()}
                    metrics += [Metric(key, value, int(at * 1000), 0) for key, value in keys.items()]
        run_id = self._children[number]
        for start in range(0, max(len(metrics), 1), BATCH):
            self._client.log_batch(run_id, metrics[start : start + BATCH], params, tags)
            params, tags = [], []
        if events[-1]["kind"] == "ended":
            self._client.set_terminated(run_id, STATUS[events[-1]["outcome"]], events[-1]["time"])

    def _create_child(self, number: int, event: Event) -> None:
        if number in self._children:  # sent before, when a later part of it failed
            return
        tags = {
            **self._tags,
            "mlflow.parentRunId": self.run_id,
            "trial_id": str(number),
            "precision": str(event["config"].get("precision", "")),
        }
        if event["copied_from"] is not None:
            tags["copied_from"] = str(event["copied_from"])
        run = self._client.create_run(self.experiment_id, event["time"], tags, f"trial-{number:03d}")
        self._children[number] = run.info.run_id

    def _send_finished(self, events: list[Event]) -> None:
        (event,) = events
        for name, value in event["metrics"].items():
            self._client.log_metric(self.run_id, NOT_IN_A_KEY.sub("_", name), value)
        for file in event["files"]:
            self._client.log_artifact(self.run_id, file)
        self._client.set_tag(self.run_id, "mlflow.note.content", event["note"])
        if event["stopped"]:
            self._client.set_tag(self.run_id, "stopped", event["stopped"][:LONGEST_TAG])
        elif self._earlier and "stopped" in self._client.get_run(self.run_id).data.tags:
            self._client.delete_tag(self.run_id, "stopped")  # of a driver before this one
        self._client.set_terminated(self.run_id, event["status"], event["time"])


def _report(epoch: int, metrics: dict[str, float], at: float) -> Event:
    return {"epoch": epoch, "metrics": metrics, "time": int(at * 1000)}


def _started(trial: FrozenTrial) -> int:
    return _milliseconds(trial.datetime_start)


def _milliseconds(moment: datetime | None) -> int:
    assert moment is not None
    return int(moment.timestamp() * 1000)


def store_of(config: SearchConfig, environment: dict[str, str]) -> tuple[str, Path | None]:
    """The tracking URI of a search, and the artifact folder of a store that we keep ourselves."""
    given = config.tracking_uri or environment.get("MLFLOW_TRACKING_URI", "")
    if given:
        return given, None
    return f"sqlite:///{config.storage / 'mlflow.db'}", config.storage / "mlartifacts"


@contextmanager
def _one_at_a_time(artifacts: Path | None) -> Iterator[None]:
    """Two searches must not create the tables of one new SQLite database at once."""
    if artifacts is None:
        yield
        return
    with open(artifacts.with_name("mlflow.db.lock"), "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
