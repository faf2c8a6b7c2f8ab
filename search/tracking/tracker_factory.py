"""Creation of the callback that logs a search to MLflow."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from searchlight.search.analysis.timeline import running_time
from searchlight.search.study.study import SearchStudy
from searchlight.search.tracking import provenance
from searchlight.search.tracking.events import write_spool
from searchlight.search.tracking.options import TrackingOptions
from searchlight.search.tracking.runs import Runs
from searchlight.search.tracking.tracker import MLflowCallback
from searchlight.search.tracking.uri import resolve_tracking_uri, tracking_environment


def create_tracker(
    config: TrackingOptions,
    options: Mapping[str, Any],
    modules: Mapping[str, Path],
    study: SearchStudy,
    say: Callable[[str], None],
    nodes: Sequence[Mapping[str, float]] | None = None,
) -> MLflowCallback:
    """Create the callback that logs a search to MLflow. First, it logs data of the study that MLflow has missed.

    Args:
        config: Where the search is, and where it is logged.
        options: All options of the search by key, as they are in force.
        modules: The files that the task imports, by the name of their copy.
        study: The open study of the search.
        say: Called with a line for the user.
        nodes: The resources of each node of Ray, or None if no trial will run any more.
    """
    write_spool(config.local_path, [], None)  # of an earlier driver: the study has the trials
    location = resolve_tracking_uri(config, tracking_environment(study.metadata))
    start_time = running_time(study.get_record()).start
    runs = Runs(config, *location, study.metadata, study.objectives, start_time, options)
    prepare = None
    if nodes is not None:
        prepare = partial(provenance.write, config.local_path, options["task"], modules, nodes)
    return MLflowCallback(runs, study.get_trials(), say, prepare)
