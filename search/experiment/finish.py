"""What came of a search, for those who wait for it: the result, the page, and the end of its run in MLflow."""

import time

from search.analysis.best_trials import count_outcomes, find_best, find_pareto_front
from search.analysis.divergence import find_divergence
from search.analysis.result import SearchResult
from search.experiment.plan import SearchPlan
from search.experiment.stop import StopRequest
from search.formatting import log_model_command
from search.reporting.console.progress import Progress
from search.study.record import SearchRecord
from search.tracking.description import render_description
from search.tracking.model.best_model import ModelError, log_best
from search.tracking.tracker import MLflowCallback, TrackingError

TRACKING_TIMEOUT_S = 60.0
ERROR_NOTE = "The search ended with an error."
HURRIED_S = 3.0  # after a second Ctrl-C


def finish(
    planned: SearchPlan,
    searched: SearchRecord,
    tracker: MLflowCallback,
    progress: Progress,
    stop: StopRequest,
    start: float,
) -> SearchResult:
    """Write the page, end the parent run, and make a model of the best checkpoint if that was asked for.

    What MLflow or the disk does not take is told, and keeps nobody from the result.

    Args:
        start: When the search began, of `time.monotonic`.
    """
    config, trials = planned.config, searched.trials
    parquet, page = config.local_path / "trials.parquet", config.local_path / "report.html"
    files = [parquet] if parquet.is_file() else []  # its writer has told why, if it could not
    status, note, metrics = "FAILED", ERROR_NOTE, dict[str, float]()
    stopped, timeout_s = ", ".join(stop.reasons), TRACKING_TIMEOUT_S
    try:
        best, divergence = find_best(trials, planned.objective), find_divergence(trials)
        front = find_pareto_front(trials, planned.objectives) if len(planned.objectives) > 1 else None
        names = [parameter.name for parameter in planned.space.parameters]
        note = render_description(config.path, names, planned.objectives, best, front, divergence)
        status = "KILLED" if stop.is_interrupted else "FINISHED" if best else "FAILED"
        metrics = {f"best/{planned.objective.metric}": best.value} if best else {}
        from search.reporting.html import try_write_report  # plotly takes its time

        files += [page] if try_write_report(searched, page, progress.warn) else []
    except KeyboardInterrupt:  # a second Ctrl-C, which goes on
        timeout_s = HURRIED_S
        raise
    finally:  # an error goes on, and the parent run has ended all the same
        try:
            tracker.finish(status, note, metrics, files, timeout_s, stopped)
        except TrackingError as error:
            progress.warn(str(error))
    where = {
        "tracking_uri": tracker.tracking_uri,
        "experiment_id": tracker.experiment_id,
        "run_id": tracker.run_id,
    }
    if (config.log_model or config.register_ is not None) and best is not None:
        where |= _log_best(planned, stop.is_interrupted, progress)
    seconds = time.monotonic() - start
    return SearchResult(config.name, count_outcomes(trials), best, divergence, where, seconds, stopped, front, searched)


def _log_best(planned: SearchPlan, interrupted: bool, progress: Progress) -> dict[str, str]:
    """Where MLflow has the best checkpoint as a model, if it could be made. Nobody who interrupts waits for that."""
    place, name = planned.config.path, planned.config.register_ or ""
    try:
        if not interrupted:
            progress.say("making a model of the best checkpoint")
            return {"model": log_best(place, name)}
    except ModelError as error:
        progress.warn(str(error))
        return {}
    except KeyboardInterrupt:  # of the model, since the search has ended: what came of it is still told
        pass
    progress.warn(f"the best checkpoint is no model in MLflow yet: {log_model_command(place, name)}")
    return {}
