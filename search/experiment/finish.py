"""What came of a search, for those who wait for it: the result, the page, and the end of its run in MLflow."""

import time

from search.analysis.best_trials import count_outcomes, find_best, find_front
from search.analysis.divergence import find_divergence
from search.analysis.result import Result
from search.experiment.plan import Plan
from search.experiment.stop import Stop
from search.formatting import log_it
from search.reporting.console.progress import Progress
from search.study.record import Searched
from search.tracking.description import note_of_search
from search.tracking.model.best_model import ModelError, log_best
from search.tracking.tracker import Tracker, TrackingError

TRACKING_TIMEOUT_S = 60.0
ERROR_NOTE = "The search ended with an error."
HURRIED_S = 3.0  # after a second Ctrl-C


def finish(
    planned: Plan,
    searched: Searched,
    tracker: Tracker,
    progress: Progress,
    stop: Stop,
    start: float,
) -> Result:
    """Write the page, end the parent run, and make a model of the best checkpoint if that was asked for.

    What MLflow or the disk does not take is told, and keeps nobody from the result.

    Args:
        start: When the search began, of `time.monotonic`.
    """
    config, mode, trials = planned.config, planned.mode, searched.trials
    parquet, page = config.folder / "trials.parquet", config.folder / "report.html"
    files = [parquet] if parquet.is_file() else []  # its writer has told why, if it could not
    status, note, metrics = "FAILED", ERROR_NOTE, dict[str, float]()
    stopped, timeout_s = ", ".join(stop.reasons), TRACKING_TIMEOUT_S
    try:
        best, divergence = find_best(trials, mode), find_divergence(trials)
        front = find_front(trials, planned.objectives) if len(planned.objectives) > 1 else None
        names = [parameter.name for parameter in planned.space.parameters]
        note = note_of_search(config.place, names, planned.objectives, best, front, divergence)
        status = "KILLED" if stop.interrupted else "FINISHED" if best else "FAILED"
        metrics = {f"best/{planned.objective}": best.value} if best else {}
        from search.reporting.html import save_page  # plotly takes its time

        files += [page] if save_page(searched, page, progress.warn) else []
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
        where |= _log_best(planned, stop.interrupted, progress)
    seconds = time.monotonic() - start
    return Result(config.name, count_outcomes(trials), best, divergence, where, seconds, stopped, front, searched)


def _log_best(planned: Plan, interrupted: bool, progress: Progress) -> dict[str, str]:
    """Where MLflow has the best checkpoint as a model, if it could be made. Nobody who interrupts waits for that."""
    place, name = planned.config.place, planned.config.register_ or ""
    try:
        if not interrupted:
            progress.say("making a model of the best checkpoint")
            return {"model": log_best(place, name)}
    except ModelError as error:
        progress.warn(str(error))
        return {}
    except KeyboardInterrupt:  # of the model, since the search has ended: what came of it is still told
        pass
    progress.warn(f"the best checkpoint is no model in MLflow yet: {log_it(place, name)}")
    return {}
