"""Trials of earlier searches, as a search's folder or an MLflow experiment has them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search.config.flatten import flatten
from search.config.objectives import Mode
from search.errors import UsageError, nearest
from search.storage.working_copy import names_in
from search.tracking.errors import told
from search.tracking.runs import NOT_IN_A_KEY
from search.tracking.uri import shown
from trainables.filesystem.paths import Place, place

MLFLOW = "mlflow:"
LARGEST = 1e308  # SQL stores of MLflow have no infinity, and keep the largest number instead
OUTCOMES = {"FINISHED": "completed", "KILLED": "pruned", "FAILED": "failed"}  # of runs that other tools wrote


@dataclass(frozen=True)
class Found:
    """A trial of an earlier search: its outcome, its whole config by dotted name, its finite objectives by epoch."""

    outcome: str
    config: dict[str, Any]
    values: dict[int, float]


def find_trials(source: str, objective: str, mode: Mode, tracking_uri: str) -> list[Found]:
    """The trials of `source`, the folder of a search or "mlflow:EXPERIMENT".

    Raises:
        UsageError: There is none, it cannot be read, or it was after something else.
    """
    if source.startswith(MLFLOW):
        return _of_experiment(source.removeprefix(MLFLOW), objective, tracking_uri)
    return _of_search(place(source), objective, mode)


def _of_search(folder: Place, objective: str, mode: Mode) -> list[Found]:
    from search.study.record import read
    from search.study.trial import curve_of, outcome_of

    try:
        known = None if folder.is_dir() else names_in(folder.parent)
    except OSError as error:  # of a bucket
        raise UsageError(f"--warm-start {folder.name} must be a search that can be read, but {error}.") from error
    if known is not None:
        raise UsageError(
            f"--warm-start must be a search, its folder or mlflow:EXPERIMENT, but there is no {folder}."
            + (f" {nearest(folder.name, known)}" if known else "")
        )
    try:
        searched = read(folder)
    except UsageError as error:
        raise UsageError(*(f"--warm-start {folder.name}: {problem}" for problem in error.problems)) from error
    if (searched.objective, searched.mode) != (objective, mode):
        raise UsageError(
            f"--warm-start {folder.name} must have searched for the {mode} of {objective}, but did for the "
            f"{searched.mode} of {searched.objective}. Leave it out."
        )
    return [Found(outcome_of(t), flatten(t.user_attrs.get("config", {})), dict(curve_of(t))) for t in searched.trials]


def _of_experiment(name: str, objective: str, tracking_uri: str) -> list[Found]:
    path = Path(tracking_uri.removeprefix("sqlite:///"))
    if tracking_uri.startswith("sqlite:///") and not path.is_file():  # MLflow would make one
        raise UsageError(f"--warm-start mlflow:{name} must be in a store that exists, but there is no {path}.")
    from mlflow.tracking import MlflowClient

    key = NOT_IN_A_KEY.sub("_", objective)
    try:
        client = MlflowClient(tracking_uri=tracking_uri)
        experiment = client.get_experiment_by_name(name)
        known = [] if experiment else [one.name for one in client.search_experiments()]
        runs = list(_runs(client, experiment.experiment_id)) if experiment else []
        found = [_of_run(client, run, key) for run in runs]
    except Exception as error:  # MLflow raises its own, urllib's and SQLAlchemy's
        raise UsageError(
            f"--warm-start mlflow:{name} must be readable, but {shown(tracking_uri)} is not: {told(error)}"
        ) from error
    if experiment is None:
        raise UsageError(
            f"--warm-start mlflow:{name} must be an experiment of {shown(tracking_uri)}, but there is none of that "
            f"name. {nearest(name, known)}"
        )
    metrics = {metric for run in runs for metric in run.data.metrics}
    if key not in metrics:
        raise UsageError(
            f"--warm-start mlflow:{name} must have runs with the metric {objective!r}, but has none. "
            + (nearest(objective, metrics) if metrics else "It has no metric at all.")
        )
    return found


def _runs(client: Any, experiment_id: str) -> Iterator[Any]:
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


def _of_run(client: Any, run: Any, key: str) -> Found:
    history = client.get_metric_history(run.info.run_id, key) if key in run.data.metrics else []
    by_step = {point.step: point.value for point in sorted(history, key=lambda point: (point.timestamp, point.step))}
    finite = {step: value for step, value in sorted(by_step.items()) if abs(value) < LARGEST}
    tags = run.data.tags
    outcome = tags.get("outcome") or OUTCOMES.get(run.info.status, "interrupted")
    if "trial_id" not in tags:  # another tool's steps may be updates: they are counted
        finite = dict(enumerate(finite.values(), start=1))
        if any(not math.isfinite(value) or abs(value) >= LARGEST for value in by_step.values()):
            outcome = "diverged"
    return Found(outcome, dict(run.data.params), finite)
