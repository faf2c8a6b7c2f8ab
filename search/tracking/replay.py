"""Tells MLflow what it lacks of a search that ended, was killed, or could not reach it: the study has it all."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from search.analysis.best_trials import find_best, find_pareto_front
from search.analysis.divergence import find_divergence
from search.config.libraries import configure_libraries
from search.errors import UsageError
from search.storage.study_store import open_store, read_study_url
from search.storage.uploader import Uploader
from search.storage.working_copy import downloaded_copy
from search.study.metadata import build_resume_config
from search.study.record import SearchRecord, load_search
from search.tracking import spool
from search.tracking.description import render_description
from search.tracking.errors import describe_mlflow_error
from search.tracking.events import Event, build_search_end_event, build_trial_events
from search.tracking.runs import Runs
from search.tracking.tracker import TrackingError
from search.tracking.uri import (
    check_tracking,
    move_credentials_to_environment,
    redact,
    resolve_tracking_uri,
    tracking_environment,
)
from trainables.filesystem.paths import StoragePath

if TYPE_CHECKING:
    from mlflow.entities import Run

FILES = ("trials.parquet", "report.html")


def replay(place: StoragePath) -> str:
    """Tell MLflow what it lacks of the search at `place`; what was done, in a line.

    A trial that has not ended is interrupted then, until the search is taken up.

    Raises:
        UsageError: There is no such search, or another process runs it.
        TrackingError: MLflow cannot be told.
    """
    configure_libraries()
    move_credentials_to_environment(os.environ)
    if not load_search(place).about:
        raise UsageError(f"name must be a search that has begun, but {place.name} ended before it did.")
    store = open_store(place, read_study_url(place))  # held against drivers, which tell MLflow by themselves
    try:
        with downloaded_copy(place) as folder, Uploader(folder, place).flush_on_exit(_warn):
            return _send_missing_events(place, folder, load_search(place))
    finally:
        store.close()


def _warn(line: str) -> None:
    print(line, file=sys.stderr)


def _send_missing_events(place: StoragePath, folder: Path, searched: SearchRecord) -> str:
    config, environment = build_resume_config(searched.about, place, {}), tracking_environment(searched.about)
    check_tracking(config, environment)
    uri, artifacts = resolve_tracking_uri(config, environment)
    runs = Runs(config, uri, artifacts, searched.about["id"], searched.objectives)
    refused: list[Event] = []
    told = 0
    try:
        known = runs.open(searched.trials, over=True)
        for trial in searched.trials:
            if events := runs.get_missing_events(trial, known.get(trial.number), over=True):
                refused += runs.send_events(trial.number, events)
                told += 1
            runs.send_pictures(trial.number)
        runs.end_parent(_determine_search_end(place, folder, searched, runs.parent))
        for path in (*runs.list_initial_artifacts(), *(folder / name for name in FILES)):
            if path.exists():
                runs.send_artifact(path)
    except Exception as error:  # MLflow raises its own, urllib's and SQLAlchemy's
        raise TrackingError(
            f"MLflow at {redact(uri)} must take what it lacks of {place.name}, but {describe_mlflow_error(error)}. "
            "Nothing is lost: try again when it can."
        ) from error
    spool.write_spool(folder, refused, None)
    if refused:
        kept = f"{len(refused)} events are kept in {place / spool.FILE}."
        raise TrackingError(f"MLflow at {redact(uri)} must take every trial, but refused some: {runs.error}. {kept}")
    lacked = (
        f"lacked something of {told} of {len(searched.trials)} trials, and has it now" if told else "lacked no trial"
    )
    return f"MLflow at {redact(uri)} {lacked}; run {runs.run_id} has the search"


def _determine_search_end(place: StoragePath, folder: Path, searched: SearchRecord, parent: "Run | None") -> Event:
    """How the search ended: as its driver put it down or had told MLflow; of one that was killed, as its trials are."""
    trials, objectives = searched.trials, searched.objectives
    best = find_best(trials, searched.objective)
    front = find_pareto_front(trials, objectives) if len(objectives) > 1 else None
    names = list(searched.about["searched"])
    note = render_description(place, names, objectives, best, front, find_divergence(trials))
    metrics = {f"best/{searched.objective.metric}": best.value} if best else {}
    if kept := spool.read_end(folder):
        return {**kept, "note": note, "metrics": metrics}
    if not trials or any(not trial.state.is_finished() for trial in trials):
        status = "KILLED"
    elif parent is not None and parent.info.status != "RUNNING":
        stopped = parent.data.tags.get("stopped", "")
        return build_search_end_event(parent.info.status, note, metrics, stopped, parent.info.end_time / 1000)
    else:
        status = "FINISHED" if best else "FAILED"
    times = [event["time"] / 1000 for trial in trials for event in build_trial_events(trial, objectives, over=True)]
    return build_search_end_event(status, note, metrics, "", max(times, default=None))
