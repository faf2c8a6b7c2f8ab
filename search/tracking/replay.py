"""Tells MLflow what it lacks of a search that ended, was killed, or could not reach it: the study has it all."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from search.analysis.best_trials import find_best, find_front
from search.analysis.divergence import find_divergence
from search.config.libraries import settle
from search.errors import UsageError
from search.storage.study_store import open_store, url_of
from search.storage.uploader import Uploader
from search.storage.working_copy import at_hand
from search.study.metadata import config_of
from search.study.record import Searched, read
from search.tracking import spool
from search.tracking.description import note_of_search
from search.tracking.errors import why
from search.tracking.events import Event, events_of, finished
from search.tracking.runs import Runs
from search.tracking.tracker import TrackingError
from search.tracking.uri import check_tracking, shown, store_of, take_login, tracked
from trainables.filesystem.paths import Place

if TYPE_CHECKING:
    from mlflow.entities import Run

FILES = ("trials.parquet", "report.html")


def replay(place: Place) -> str:
    """Tell MLflow what it lacks of the search at `place`; what was done, in a line.

    A trial that has not ended is interrupted then, until the search is taken up.

    Raises:
        UsageError: There is no such search, or another process runs it.
        TrackingError: MLflow cannot be told.
    """
    settle()
    take_login(os.environ)
    if not read(place).about:
        raise UsageError(f"name must be a search that has begun, but {place.name} ended before it did.")
    store = open_store(place, url_of(place))  # held against drivers, which tell MLflow by themselves
    try:
        with at_hand(place) as folder, Uploader(folder, place).ending(_warn):
            return _told(place, folder, read(place))
    finally:
        store.close()


def _warn(line: str) -> None:
    print(line, file=sys.stderr)


def _told(place: Place, folder: Path, searched: Searched) -> str:
    config, environment = config_of(searched.about, place, {}), tracked(searched.about)
    check_tracking(config, environment)
    uri, artifacts = store_of(config, environment)
    runs = Runs(config, uri, artifacts, searched.about["id"], searched.objectives)
    refused: list[Event] = []
    told = 0
    try:
        known = runs.open(searched.trials, over=True)
        for trial in searched.trials:
            if events := runs.lacking(trial, known.get(trial.number), over=True):
                refused += runs.tell(trial.number, events)
                told += 1
            runs.send_pictures(trial.number)
        runs.end(_end(place, folder, searched, runs.parent))
        for path in (*runs.files(), *(folder / name for name in FILES)):
            if path.exists():
                runs.send(path)
    except Exception as error:  # MLflow raises its own, urllib's and SQLAlchemy's
        raise TrackingError(
            f"MLflow at {shown(uri)} must take what it lacks of {place.name}, but {why(error)}. "
            "Nothing is lost: try again when it can."
        ) from error
    spool.keep(folder, refused, None)
    if refused:
        kept = f"{len(refused)} events are kept in {place / spool.FILE}."
        raise TrackingError(f"MLflow at {shown(uri)} must take every trial, but refused some: {runs.error}. {kept}")
    lacked = (
        f"lacked something of {told} of {len(searched.trials)} trials, and has it now" if told else "lacked no trial"
    )
    return f"MLflow at {shown(uri)} {lacked}; run {runs.run_id} has the search"


def _end(place: Place, folder: Path, searched: Searched, parent: "Run | None") -> Event:
    """How the search ended: as its driver put it down or had told MLflow; of one that was killed, as its trials are."""
    trials, objectives = searched.trials, searched.objectives
    best = find_best(trials, searched.mode)
    front = find_front(trials, objectives) if len(objectives) > 1 else None
    names = list(searched.about["searched"])
    note = note_of_search(place, names, objectives, best, front, find_divergence(trials))
    metrics = {f"best/{searched.objective}": best.value} if best else {}
    if kept := spool.end_in(folder):
        return {**kept, "note": note, "metrics": metrics}
    if not trials or any(not trial.state.is_finished() for trial in trials):
        status = "KILLED"
    elif parent is not None and parent.info.status != "RUNNING":
        stopped = parent.data.tags.get("stopped", "")
        return finished(parent.info.status, note, metrics, stopped, parent.info.end_time / 1000)
    else:
        status = "FINISHED" if best else "FAILED"
    times = [event["time"] / 1000 for trial in trials for event in events_of(trial, objectives, over=True)]
    return finished(status, note, metrics, "", max(times, default=None))
