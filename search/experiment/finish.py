"""The end of a search: its result, its report, its run in MLflow, and a model of its best checkpoint."""

from dataclasses import replace

from searchlight.search.analysis.result import SearchResult
from searchlight.search.analysis.timeline import running_time
from searchlight.search.experiment.audit_follower import AUDIT_FILE
from searchlight.search.experiment.plan import SearchPlan
from searchlight.search.experiment.stop import StopRequest
from searchlight.search.formatting import log_model_command
from searchlight.search.reporting.console.progress import Progress
from searchlight.search.reporting.parquet import FILE
from searchlight.search.study.record import SearchRecord
from searchlight.search.tracking.description import render_description
from searchlight.search.tracking.errors import ModelError, TrackingError
from searchlight.search.tracking.events import make_search_end
from searchlight.search.tracking.model.best_model import log_best
from searchlight.search.tracking.tracker import END_TIMEOUT_S, ERROR_NOTE, HURRIED_S, MLflowCallback


def finish(
    planned: SearchPlan, searched: SearchRecord, tracker: MLflowCallback, progress: Progress, stop: StopRequest
) -> SearchResult:
    """Write the report, end the parent run, and log the best checkpoint as a model if the config asks for that.

    What MLflow or the disk refuses is reported in a line. It does not keep the user from the result.
    """
    config = planned.config
    parquet, page = config.local_path / FILE, config.local_path / "report.html"
    files = [path for path in (parquet, config.local_path / AUDIT_FILE) if path.is_file()]  # else its writer said why
    stopped, timeout_s = ", ".join(stop.reasons), END_TIMEOUT_S
    end = make_search_end("FAILED", ERROR_NOTE, stopped=stopped)
    try:
        result = SearchResult.from_record(searched)
        status = "KILLED" if stop.is_interrupted else "FINISHED" if result.best else "FAILED"
        note, ended_at = render_description(config.path, result), running_time(searched).end
        end = make_search_end(status, note, result.metrics, stopped, ended_at, result.statement)
        from searchlight.search.reporting.html import try_write_report  # importing plotly takes a while

        files += [page] if try_write_report(searched, page, progress.warn) else []
    except KeyboardInterrupt:  # a second Ctrl-C
        timeout_s = HURRIED_S
        raise
    finally:  # after an error, too, the parent run must end
        try:
            tracker.finish(end, files, timeout_s)
        except TrackingError as error:
            progress.warn(str(error))
    mlflow = {"tracking_uri": tracker.tracking_uri, "experiment_id": tracker.experiment_id, "run_id": tracker.run_id}
    if config.makes_model and result.best is not None:
        mlflow |= _log_best(planned, stop.is_interrupted, progress)
    return replace(result, mlflow=mlflow, stopped=stopped)


def _log_best(planned: SearchPlan, is_interrupted: bool, progress: Progress) -> dict[str, str]:
    """Return the URI of the best checkpoint as a model, or an empty dict. An interrupted search makes no model."""
    place, name = planned.config.path, planned.config.register_ or ""
    try:
        if not is_interrupted:
            progress.say("making a model of the best checkpoint")
            return {"model": log_best(place, name)}
    except ModelError as error:
        progress.warn(str(error))
        return {}
    except KeyboardInterrupt:  # it ends the model alone: the search has ended, and its result is still reported
        pass
    progress.warn(f"the best checkpoint is no model in MLflow yet: {log_model_command(place, name)}")
    return {}
