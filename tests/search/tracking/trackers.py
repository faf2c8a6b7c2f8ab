"""Builds trackers of searches, and reads what MLflow was told."""

import uuid

from mlflow.tracking import MlflowClient

from searchlight.search.tracking.events import make_search_end
from searchlight.search.tracking.runs import Runs
from searchlight.search.tracking.tracker import MLflowCallback
from searchlight.search.tracking.uri import resolve_tracking_uri
from tests.search.objectives import VAL_SCORE
from tests.search.trial_states import TrialStates


def runs_for(config, uri="", search_id="", objectives=(VAL_SCORE,), about=(), start_time=None):
    where = resolve_tracking_uri(config, {"MLFLOW_TRACKING_URI": uri} if uri else {})
    options = config.model_dump(mode="json", by_alias=True)
    known = {"id": search_id or uuid.uuid4().hex, "config": options, "searched": {}, "fixed": {}}
    return Runs(config, *where, known | dict(about), objectives, start_time, options)


def track(config, uri="", search_id="", objectives=(VAL_SCORE,), about=(), start_time=None, **more):
    """Return a tracker, with the `trials` that it observes."""
    tracker = MLflowCallback(runs_for(config, uri, search_id, objectives, about, start_time), **more)
    tracker.trials = TrialStates(tracker)
    return tracker


def track_stored(search, uri="", say=lambda line: None):
    """Return the tracker of a stored search, which observes it."""
    runs = runs_for(search.config, uri, objectives=search.study.objectives, about=search.study.metadata)
    tracker = MLflowCallback(runs, search.study.get_trials(), say)
    search.observers = [tracker]
    return tracker


def finish(tracker, files=(), timeout_s=120.0, stopped=""):
    tracker.finish(make_search_end("FINISHED", "**Best**", {"best/val/score": 0.3}, stopped), list(files), timeout_s)


def runs_in(uri, experiment_id, query=""):
    """Return the runs by the number of their trial, or "parent"."""
    found = MlflowClient(uri).search_runs([experiment_id], query)
    assert len(found) == len({run.data.tags.get("trial_id") for run in found}), "no run twice"
    return {run.data.tags.get("trial_id", "parent"): run for run in found}


def runs_of(tracker):
    return runs_in(tracker.tracking_uri, tracker.experiment_id)


def curve_of(uri, run, key="val/score"):
    return [(point.step, point.value) for point in MlflowClient(uri).get_metric_history(run.info.run_id, key)]
