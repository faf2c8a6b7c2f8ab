"""Sends events to MLflow that are missing there, since a search was killed or could not reach it."""

import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from searchlight.search.analysis.result import SearchResult
from searchlight.search.analysis.timeline import running_time
from searchlight.search.errors import UsageError
from searchlight.search.folder.uploader import Uploader
from searchlight.search.folder.working_copy import downloaded_copy
from searchlight.search.storage.study_store import open_store, read_study_url
from searchlight.search.study.record import SearchRecord, load_search
from searchlight.search.tracking.description import render_description
from searchlight.search.tracking.errors import TrackingError, describe_mlflow_error
from searchlight.search.tracking.events import (
    SPOOL,
    Event,
    build_trial_events,
    make_search_end,
    read_spooled_end,
    write_spool,
)
from searchlight.search.tracking.options import TrackingOptions
from searchlight.search.tracking.runs import Runs
from searchlight.search.tracking.uri import (
    check_tracking,
    prepare_process,
    redact,
    resolve_tracking_uri,
    tracking_environment,
)
from searchlight.trainables.filesystem.paths import StoragePath

if TYPE_CHECKING:
    from mlflow.entities import Run

FILES = ("trials.parquet", "report.html", "best.yaml")


def replay(place: StoragePath) -> str:
    """Send the events of the search at `place` that MLflow does not have. Return a line that describes the result.

    A trial that has not ended is reported as interrupted until the search is resumed.

    Raises:
        UsageError: The search does not exist, or another process runs it.
        TrackingError: MLflow does not accept the events.
    """
    prepare_process()
    if not load_search(place).about:
        raise UsageError(f"name must be a search that has begun, but {place.name} ended before it did.")
    store = open_store(place, read_study_url(place))  # locks out drivers, which report to MLflow themselves
    warn = partial(print, file=sys.stderr)
    with closing(store), downloaded_copy(place) as folder, Uploader(folder, place).flush_on_exit(warn):
        return _send_missing_events(place, folder, load_search(place))


def _send_missing_events(place: StoragePath, folder: Path, searched: SearchRecord) -> str:
    config = TrackingOptions.from_stored(searched.about["config"], place)
    environment = tracking_environment(searched.about)
    check_tracking(config, environment)
    uri, artifacts = resolve_tracking_uri(config, environment)
    start = running_time(searched).start
    runs = Runs(config, uri, artifacts, searched.about, searched.objectives, start)
    refused: list[Event] = []
    num_sent = 0
    try:
        known = runs.open(over=True)
        for trial in searched.all_trials:
            events = build_trial_events(trial, searched.objectives, is_over=True)
            if runs.reopen(trial, known.get(trial.number), is_over=True) and events:
                refused += runs.send_events(trial.number, events)
                num_sent += 1
            runs.send_pictures(trial.number)
        runs.end_parent(_determine_search_end(place, folder, searched, runs.parent))
        for path in (*runs.list_initial_artifacts(), *(folder / name for name in FILES)):
            if path.exists():
                runs.send_artifact(path)
    except Exception as error:  # MLflow raises its own, urllib's and SQLAlchemy's
        raise TrackingError(
            f"MLflow at {redact(uri)} must take the events of {place.name}, but {describe_mlflow_error(error)}. "
            "Nothing is lost: try again when it can."
        ) from error
    write_spool(folder, refused, None)
    if refused:
        kept = f"{len(refused)} events are kept in {place / SPOOL}."
        raise TrackingError(f"MLflow at {redact(uri)} must take every trial, but refused some: {runs.error}. {kept}")
    sent = f"now has the missing events of {num_sent} of {len(searched.all_trials)} trials"
    return f"MLflow at {redact(uri)} {sent if num_sent else 'had all trials'}; run {runs.run_id} has the search"


def _determine_search_end(place: StoragePath, folder: Path, searched: SearchRecord, parent: "Run | None") -> Event:
    """Return how the search ended: as its driver or MLflow recorded it, or as its trials show."""
    result, trials = SearchResult.from_record(searched), searched.trials
    note, metrics = render_description(place, result), result.metrics
    if spooled := read_spooled_end(folder):
        return {**spooled, "note": note, "metrics": metrics, "confirmed": result.statement}
    is_killed = not trials or any(not trial.state.is_finished() for trial in trials)
    if not is_killed and parent is not None and parent.info.status != "RUNNING":
        status, stopped = parent.info.status, parent.data.tags.get("stopped", "")
        return make_search_end(status, note, metrics, stopped, parent.info.end_time / 1000, result.statement)
    status = "KILLED" if is_killed else "FINISHED" if result.best else "FAILED"
    return make_search_end(status, note, metrics, "", running_time(searched).end, result.statement)
