"""Trials of earlier searches, as a search's folder or an MLflow experiment has them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search.config.flatten import flatten
from search.config.objectives import Objective
from search.errors import UsageError, suggest_nearest
from search.storage.working_copy import list_searches
from search.tracking.errors import error_message
from search.tracking.runs import NOT_IN_A_KEY
from search.tracking.uri import redact
from trainables.filesystem.paths import StoragePath, parse_path

MLFLOW = "mlflow:"
LARGEST = 1e308  # SQL stores of MLflow have no infinity, and keep the largest number instead
OUTCOMES = {"FINISHED": "completed", "KILLED": "pruned", "FAILED": "failed"}  # of runs that other tools wrote


@dataclass(frozen=True)
class SourceTrial:
    """A trial of an earlier search: its outcome, its whole config by dotted name, its finite objectives by epoch."""

    outcome: str
    config: dict[str, Any]
    values: dict[int, float]


def load_source_trials(source: str, objective: Objective, tracking_uri: str) -> list[SourceTrial]:
    """The trials of `source`, the folder of a search or "mlflow:EXPERIMENT".

    Raises:
        UsageError: There is none, it cannot be read, or it was after something else.
    """
    if source.startswith(MLFLOW):
        return _load_experiment_trials(source.removeprefix(MLFLOW), objective.metric, tracking_uri)
    return _load_search_trials(parse_path(source), objective)


def _load_search_trials(folder: StoragePath, objective: Objective) -> list[SourceTrial]:
    from search.study.record import load_search
    from search.study.trial import get_outcome, intermediate_values

    try:
        known = None if folder.is_dir() else list_searches(folder.parent)
    except OSError as error:  # of a bucket
        raise UsageError(f"--warm-start {folder.name} must be a search that can be read, but {error}.") from error
    if known is not None:
        raise UsageError(
            f"--warm-start must be a search, its folder or mlflow:EXPERIMENT, but there is no {folder}."
            + (f" {suggest_nearest(folder.name, known)}" if known else "")
        )
    try:
        searched = load_search(folder)
    except UsageError as error:
        raise UsageError(*(f"--warm-start {folder.name}: {problem}" for problem in error.problems)) from error
    if searched.objective != objective:
        raise UsageError(
            f"--warm-start {folder.name} must have searched for the {objective.mode} of {objective.metric}, but did "
            f"for the {searched.objective.mode} of {searched.objective.metric}. Leave it out."
        )
    return [
        SourceTrial(get_outcome(t), flatten(t.user_attrs.get("config", {})), dict(intermediate_values(t)))
        for t in searched.trials
    ]


def _load_experiment_trials(name: str, objective: str, tracking_uri: str) -> list[SourceTrial]:
    path = Path(tracking_uri.removeprefix("sqlite:///"))
    if tracking_uri.startswith("sqlite:///") and not path.is_file():  # MLflow would make one
        raise UsageError(f"--warm-start mlflow:{name} must be in a store that exists, but there is no {path}.")
    from mlflow.tracking import MlflowClient

    key = NOT_IN_A_KEY.sub("_", objective)
    try:
        client = MlflowClient(tracking_uri=tracking_uri)
        experiment = client.get_experiment_by_name(name)
        known = [] if experiment else [one.name for one in client.search_experiments()]
        runs = list(_iterate_trial_runs(client, experiment.experiment_id)) if experiment else []
        found = [_parse_run(client, run, key) for run in runs]
    except Exception as error:  # MLflow raises its own, urllib's and SQLAlchemy's
        raise UsageError(
            f"--warm-start mlflow:{name} must be readable, but {redact(tracking_uri)} is not: {error_message(error)}"
        ) from error
    if experiment is None:
        raise UsageError(
            f"--warm-start mlflow:{name} must be an experiment of {redact(tracking_uri)}, but there is none of that "
            f"name. {suggest_nearest(name, known)}"
        )
    metrics = {metric for run in runs for metric in run.data.metrics}
    if key not in metrics:
        raise UsageError(
            f"--warm-start mlflow:{name} must have runs with the metric {objective!r}, but has none. "
            + (suggest_nearest(objective, metrics) if metrics else "It has no metric at all.")
        )
    return found


def _iterate_trial_runs(client: Any, experiment_id: str) -> Iterator[Any]:
    """The runs that have parameters, oldest first: a run that has none is no trial, but the parent of some."""
    token = None
    while True:
        page = client.search_runs(
            [experiment_id], order_by=["attributes.start_time ASC"], max_results=1000, page_token=token
        )
        yield from (run for run in page if run.data.params)
        token = page.token
        if not token:
            return


def _parse_run(client: Any, run: Any, key: str) -> SourceTrial:
    history = client.get_metric_history(run.info.run_id, key) if key in run.data.metrics else []
    by_step = {point.step: point.value for point in sorted(history, key=lambda point: (point.timestamp, point.step))}
    finite = {step: value for step, value in sorted(by_step.items()) if abs(value) < LARGEST}
    tags = run.data.tags
    outcome = tags.get("outcome") or OUTCOMES.get(run.info.status, "interrupted")
    if "trial_id" not in tags:  # another tool's steps may be updates: they are counted
        finite = dict(enumerate(finite.values(), start=1))
        if any(not math.isfinite(value) or abs(value) >= LARGEST for value in by_step.values()):
            outcome = "diverged"
    return SourceTrial(outcome, dict(run.data.params), finite)
