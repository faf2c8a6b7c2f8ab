"""The runs of one search in MLflow: a parent, and a nested child per trial. Repeated calls create no duplicates."""

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna.trial import FrozenTrial

from searchlight.search.analysis.confirmation import describe_config
from searchlight.search.space.objectives import Objective
from searchlight.search.study.datasets import Told
from searchlight.search.study.trial import get_outcome
from searchlight.search.tracking import provenance
from searchlight.search.tracking.description import format_commands
from searchlight.search.tracking.errors import error_message, get_http_status
from searchlight.search.tracking.events import Event, name_run
from searchlight.search.tracking.mlflow_database import create_database
from searchlight.search.tracking.options import TrackingOptions
from searchlight.search.tracking.run_content import (
    CONFIRM,
    FIRST,
    LONGEST_PARAM,
    LONGEST_TAG,
    METRICS,
    NOT_IN_A_KEY,
    PARAMS,
    add_link,
    build_search_params,
    build_version_tags,
    to_dataset_inputs,
)
from searchlight.trainables.checkpoint.images import find_best_images
from searchlight.trainables.filesystem.paths import StoragePath, local_copy, lock_file

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

# The UI shows KILLED in red like FAILED, but a pruned trial has a result.
ENDS = {"FINISHED": ["completed", "pruned"], "KILLED": ["interrupted"], "FAILED": ["diverged", "infeasible", "failed"]}
STATUS = {outcome: status for status, outcomes in ENDS.items() for outcome in outcomes}
KIND = {"mlflow.experimentKind": "custom_model_development"}  # the UI then opens on runs and charts, not on traces
NOTE = "mlflow.note.content"
RESUMED = "resumed_with"
REFUSALS = {400, 404}  # HTTP statuses that a retry does not change


@dataclass
class Runs:
    """The runs of a search. Each method may raise MLflow's errors, and can be called again afterwards."""

    config: TrackingOptions
    tracking_uri: str
    artifacts: StoragePath | None  # artifact location of a new experiment; None: the server's default
    about: Mapping[str, Any]  # the search's metadata; runs are found by its `id`
    objectives: Sequence[Objective]  # their best values are metrics, since the UI ranks by the last report
    start_time: float | None = None  # when the search began, in seconds since 1970. Default: now
    options: Mapping[str, Any] | None = None  # those in force, by key. Default: those that the search began with
    before_end: Callable[[int], None] = lambda number: None  # called with a trial's number before its run ends
    experiment_id: str = field(default="", init=False)
    run_id: str = field(default="", init=False)
    error: str = field(default="", init=False)  # why MLflow refused an event
    parent: "Run | None" = field(default=None, init=False)  # the parent run as it was found
    _children: dict[int, str] = field(default_factory=dict, init=False)
    _datasets: set[tuple[str, str]] = field(default_factory=set, init=False)  # by name and digest, on the parent
    _refused: set[str] = field(default_factory=set, init=False)  # names of metrics

    def open(self, over: bool = False) -> "dict[int, Run]":
        """Find or create the parent run. Return the existing runs of the search's trials, by number.

        If the search is `over`, do not reopen the parent run.
        """
        from mlflow.tracking import MlflowClient
        from mlflow.tracking.context.registry import resolve_tags

        config = self.config
        # Another search may create the tables of the same new database at the same time.
        with lock_file(self.artifacts.with_name("mlflow.db.lock")) if self.artifacts else nullcontext():
            create_database(self.tracking_uri)
            self._client = MlflowClient(tracking_uri=self.tracking_uri)
            self.experiment_id = self._get_or_create_experiment()
        versions = build_version_tags(provenance.read(config.local_path))
        own = {"mlflow.user": user} if (user := resolve_tags().get("mlflow.user")) else {}
        self._tags = {**own, **versions, "search": config.name, "search_id": self.about["id"]}
        runs = self.find_runs()
        if not self.run_id:
            task = self.about["config"]["task"]
            source = {"mlflow.source.name": task, "mlflow.source.type": "LOCAL", "task": task}
            if command := self.about["config"].get("command"):
                source["command"] = shlex.join(command)
            note = {NOTE: self._link_trials(f"The search has not ended.\n\n{format_commands(config.path)}")}
            start = int(1000 * (time.time() if self.start_time is None else self.start_time))
            tags = {**self._tags, **source, **note}
            self.parent = self._client.create_run(self.experiment_id, start, tags, config.name)
            self.run_id = self.parent.info.run_id
        else:
            if not over:
                self._client.update_run(self.run_id, "RUNNING")
            for key, value in versions.items():
                self._client.set_tag(self.run_id, key, value)
        self._log_search_params(over)
        return runs

    def list_initial_artifacts(self) -> list[Path]:
        """Return the artifacts that exist from the start: the search's YAML, code, and environment."""
        folder = self.config.local_path
        return [path for name in (*provenance.FILES, "code") if (path := folder / name).exists()]

    def send_artifact(self, path: Path) -> None:
        """Log a file, or the Python files of a folder, on the parent run."""
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]  # without compiled files
        for file in files:
            beside = file.parent.relative_to(path.parent) if path.is_dir() else None
            self._client.log_artifact(self.run_id, str(file), beside and beside.as_posix())

    def send_pictures(self, number: int) -> None:
        """Log the pictures of a trial's best report on its run. Replace earlier ones."""
        folder = find_best_images(self.config.path / "checkpoints" / str(number))
        if folder is not None and number in self._children:  # without one, MLflow refused its run
            with local_copy(folder) as local:
                self._client.log_artifacts(self._children[number], str(local), "pictures")

    def find_runs(self) -> "dict[int, Run]":
        """Return the existing runs of this search's trials by number. Store their ids and that of the parent run.

        They were created by an earlier driver, or by a call whose answer was lost.
        """
        runs: dict[int, Run] = {}
        query = f"tags.search_id = '{self.about['id']}'"
        for run in iterate_runs(self._client, self.experiment_id, query):
            if "trial_id" in run.data.tags:
                runs[int(run.data.tags["trial_id"])] = run
            else:
                self.parent, self.run_id = run, run.info.run_id
        self._children.update((number, run.info.run_id) for number, run in runs.items())
        return runs

    def reopen(self, trial: FrozenTrial, run: "Run | None", is_over: bool = False) -> bool:
        """Return whether events of `trial` are missing in its `run`. Reopen the run of a trial that continues."""
        outcome, has_ended = get_outcome(trial), trial.state.is_finished()
        if run is not None:
            is_running, is_known = not has_ended and not is_over, run.data.tags.get("outcome") == outcome
            if has_ended and is_known and run.info.status == STATUS[outcome]:
                return False
            if is_running and run.info.status != "RUNNING":
                self._client.update_run(run.info.run_id, "RUNNING")
            for tag in {"outcome", "reason"} & run.data.tags.keys() if is_running or not is_known else ():
                self._client.delete_tag(run.info.run_id, tag)
        return True

    def send_events(self, number: int, events: Sequence[Event]) -> list[Event]:
        """Send `events` in one call, which is as fast as sending one. Return what MLflow refuses.

        Of a report, that is the report with its refused metrics alone.
        """
        accepted, refused = self._split_refused(events)
        if not self._try_log_events(number, accepted):
            # Sent one by one, only the invalid events are refused.
            refused += [self._send_metrics(number, e) for e in accepted if not self._try_log_events(number, [e])]
        return refused

    def _split_refused(self, events: Sequence[Event]) -> tuple[list[Event], list[Event]]:
        """Return `events` without the metrics whose names MLflow refused before, and reports of these metrics alone."""
        accepted, refused = list[Event](), list[Event]()
        for event in events:
            names = self._refused & event["metrics"].keys() if event["kind"] == "reported" else frozenset()
            accepted.append(_select_metrics(event, event["metrics"].keys() - names) if names else event)
            refused += [_select_metrics(event, names)] if names else []
        return accepted, refused

    def _send_metrics(self, number: int, event: Event) -> Event:
        """Send each metric of an `event` that MLflow refused alone. Return the event with those that it refuses."""
        if event["kind"] != "reported":
            return event
        alone = {name: _select_metrics(event, {name}) for name in event["metrics"]}
        names = {name for name in alone if not self._try_log_events(number, [alone[name]])}
        if names != alone.keys():  # otherwise, the trial has no run
            self._refused |= names
        return _select_metrics(event, names)

    def end_parent(self, event: Event) -> None:
        """End the parent run with an `event` of `make_search_end`."""
        for name, value in event["metrics"].items():
            self._client.log_metric(self.run_id, NOT_IN_A_KEY.sub("_", name), value, event["time"])
        self._client.set_tag(self.run_id, NOTE, self._link_trials(event["note"]))
        if confirmed := event.get("confirmed"):  # events of older versions have none
            self._client.set_tag(self.run_id, "confirmed", confirmed[:LONGEST_TAG])
        if event["stopped"]:
            self._client.set_tag(self.run_id, "stopped", event["stopped"][:LONGEST_TAG])
        elif "stopped" in self._client.get_run(self.run_id).data.tags:
            self._client.delete_tag(self.run_id, "stopped")  # set by an earlier driver
        start = self.parent.info.start_time if self.parent is not None else 0
        self._client.set_terminated(self.run_id, event["status"], max(event["time"], start))

    def _log_search_params(self, over: bool) -> None:
        """Log the original options of the search as parameters, and options that a resume overrode as a tag.

        MLflow cannot change a parameter.
        """
        from mlflow.entities import Param

        assert self.parent is not None
        first = build_search_params(self.about["config"], self.about)
        new = [Param(name, text) for name, text in first.items() if name not in self.parent.data.params]
        for start in range(0, len(new), PARAMS):
            self._client.log_batch(self.run_id, params=new[start : start + PARAMS])
        if over:
            return
        params = build_search_params(self.options or self.about["config"], self.about)
        if overridden := [f"{name}={text}" for name, text in params.items() if first.get(name) != text]:
            self._client.set_tag(self.run_id, RESUMED, ", ".join(overridden))
        elif RESUMED in self.parent.data.tags:
            self._client.delete_tag(self.run_id, RESUMED)

    def _link_trials(self, note: str) -> str:
        return add_link(note, self.experiment_id, self.about["id"], self.objectives[0])

    def _get_or_create_experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        name = self.config.experiment
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            place = self.artifacts
            location = place.as_uri() if place else None
            try:
                return str(self._client.create_experiment(name, location, KIND))
            except MlflowException:  # another search created it between the two calls
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        return str(experiment.experiment_id)

    def _try_log_events(self, number: int, events: Sequence[Event]) -> bool:
        """Log `events` of trial `number`. Return whether MLflow accepted them all."""
        if number not in self._children and events[0]["kind"] != "started":
            return False  # its run was refused
        from mlflow.exceptions import MlflowException

        try:
            self._log_events(number, events)
        except MlflowException as error:
            if get_http_status(error) not in REFUSALS:
                raise
            self.error = error_message(error)[:300]
            return False
        return True

    def _log_events(self, number: int, events: Sequence[Event]) -> None:
        from mlflow.entities import Metric, Param, RunTag

        params: list[Param] = []
        tags: list[RunTag] = []
        metrics: list[Metric] = []
        for event in events:
            if event["kind"] == "started":
                self._create_child(number, event)
                params = [Param(name, str(value)[:LONGEST_PARAM]) for name, value in event["config"].items()]
            elif event["kind"] == "data":
                self._log_datasets(number, event["datasets"])
            elif event["kind"] == "reported":
                reported, at = event["metrics"], event["time"]
                own = [objective.metric for objective in self.objectives if objective.metric in reported]
                values = {**{f"{FIRST}/{name}": reported[name] for name in own}, **reported}.items()
                metrics += [Metric(NOT_IN_A_KEY.sub("_", name), value, at, event["epoch"]) for name, value in values]
            else:
                texts = {name: event[name][:LONGEST_TAG] for name in ("outcome", "reason", "micro_batches")}
                tags = [RunTag(name, text) for name, text in texts.items() if text]
                if event["best"] is not None:
                    point, at = event["best"]
                    keys = {NOT_IN_A_KEY.sub("_", f"{event['group']}/{name}"): value for name, value in point.items()}
                    metrics += [Metric(key, value, int(at * 1000), 0) for key, value in keys.items()]
        run_id = self._children[number]
        last = max(len(metrics) - 1, 0) // METRICS, max(len(params) - 1, 0) // PARAMS
        for i in range(max(last) + 1):
            some = metrics[i * METRICS : (i + 1) * METRICS], params[i * PARAMS : (i + 1) * PARAMS]
            self._client.log_batch(run_id, *some, tags if i == max(last) else [])
        if events[-1]["kind"] == "ended":
            self.before_end(number)
            self._client.set_terminated(run_id, STATUS[events[-1]["outcome"]], events[-1]["time"])

    def _log_datasets(self, number: int, datasets: Sequence[Told]) -> None:
        """Log the data sets of a trial on its run, and each once on the parent run."""
        inputs = to_dataset_inputs(datasets)
        self._client.log_inputs(self._children[number], [*inputs.values()])
        if new := inputs.keys() - self._datasets:
            self._client.log_inputs(self.run_id, [inputs[key] for key in new])
            self._datasets |= new

    def _create_child(self, number: int, event: Event) -> None:
        if number in self._children:  # created by an earlier call that failed later
            return
        known = {"precision": event["config"].get("precision"), "copied_from": event["copied_from"]}
        known |= {"mlflow.parentRunId": self.run_id, "trial_id": number, "purpose": "search"}
        if (confirms := event["confirms"]) is not None:
            confirmed = describe_config(confirms["trial"])
            known |= {"purpose": CONFIRM, "confirms": confirmed, "seed": confirms["seed"]}
        tags = self._tags | {name: str(value) for name, value in known.items() if value not in (None, "")}
        run = self._client.create_run(self.experiment_id, event["time"], tags, name_run(number, event))
        self._children[number] = run.info.run_id


def _select_metrics(event: Event, names: Set[str]) -> Event:
    """Return a report with the metrics in `names` alone."""
    return {**event, "metrics": {name: value for name, value in event["metrics"].items() if name in names}}


def iterate_runs(
    client: "MlflowClient", experiment_id: str, query: str = "", order_by: list[str] | None = None
) -> "Iterator[Run]":
    """Yield the runs of an experiment that match `query`."""
    token: str | None = None
    while token != "":
        page = client.search_runs([experiment_id], query, order_by=order_by, page_token=token)
        yield from page
        token = page.token or ""
