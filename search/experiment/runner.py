"""One search from its config to its result: plan it, open its study, run its trials on Ray, finish it."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from searchlight.search.analysis.result import SearchResult
from searchlight.search.analysis.timeline import running_time
from searchlight.search.config import SearchConfig
from searchlight.search.config.loading import resolve_config
from searchlight.search.errors import UsageError
from searchlight.search.execution.checkpoint_manager import CHECKPOINTS, CheckpointManager
from searchlight.search.execution.cluster.local_machine import uses_existing_cluster
from searchlight.search.execution.cluster.node_check import job_stop_warning
from searchlight.search.execution.cluster.session_cleanup import remove
from searchlight.search.experiment.opening import OpenStudy, create_search, open_search, storage_errors
from searchlight.search.experiment.plan import SearchPlan, plan
from searchlight.search.experiment.stop import RESERVE, StopRequest, handle_signals
from searchlight.search.experiment.task_files import AUDIT_FILE, CODE, copy_code, prepare_task_files
from searchlight.search.folder.uploader import Uploader
from searchlight.search.folder.working_copy import downloaded_copy, working_copy
from searchlight.search.formatting import log_model_command, resume_command, resume_hint
from searchlight.search.reporting import best_params
from searchlight.search.reporting.console.listing import describe_confirmation
from searchlight.search.reporting.console.progress import LiveTable, Progress
from searchlight.search.reporting.console.tables import create_console
from searchlight.search.reporting.parquet import FILE, ParquetCallback
from searchlight.search.steering.command import LOG
from searchlight.search.study.record import SearchRecord
from searchlight.search.tracking.base import END_TIMEOUT_S, ERROR_NOTE, HURRIED_S, Tracker
from searchlight.search.tracking.description import render_description
from searchlight.search.tracking.errors import ModelError, TrackingError
from searchlight.search.tracking.events import make_search_end
from searchlight.search.tracking.model.best_model import log_best
from searchlight.search.tracking.tracker import create_tracker
from searchlight.search.tracking.uri import prepare_process
from searchlight.trainables.filesystem.paths import StoragePath, remove_tree

__all__ = ["plan", "resume", "run"]

_RUNS = threading.Lock()  # held while this process runs a search


@contextmanager
def _only_search() -> Iterator[None]:
    """Refuse a second search, which would end the Ray of the first.

    Raises:
        UsageError: This process runs a search already.
    """
    if not _RUNS.acquire(blocking=False):
        raise UsageError("a process must run one search at a time, but runs one already. Wait for its end.")
    try:
        yield
    finally:
        _RUNS.release()


@_only_search()
def run(
    config: SearchConfig, console: Console | None = None, show: Callable[[SearchResult], None] = lambda result: None
) -> SearchResult:
    """Run a new search to its end and return its result.

    Args:
        console: Where progress is shown. Default: standard error.
        show: Is called with the result before signals end the process again.

    Raises:
        UsageError: The search cannot run as configured. None of its files are left.
    """
    start = time.time()
    prepare_process()
    search_plan = plan(resolve_config(config))
    config = search_plan.config
    with working_copy(config.path) as folder:
        with storage_errors():
            folder.mkdir(parents=True, exist_ok=config.local_path != config.path)
        driver = None
        try:
            driver = _Driver(search_plan, None, Uploader(folder, config.path), start, console)
            return driver.run(show)
        finally:
            if driver is None or driver.opened is None:  # the search never began, so its name stays free
                remove_tree(folder)


@_only_search()
def resume(
    name: str,
    storage: StoragePath = Path("runs"),
    given: Mapping[str, Any] | None = None,
    console: Console | None = None,
    show: Callable[[SearchResult], None] = lambda result: None,
) -> SearchResult:
    """Resume a search where its driver left it, however that ended, and return its result.

    Args:
        storage: The folder or bucket that holds the folder of the search.
        given: Options that override those that the search began with, such as `trials`.
        console: Where progress is shown. Default: standard error.
        show: Is called with the result before signals end the process again.

    Raises:
        UsageError: The search cannot be resumed. Its files are unchanged.
    """
    start = time.time()
    prepare_process()
    location = storage.expanduser().absolute() / name
    with downloaded_copy(location) as folder:
        uploader = Uploader(folder, location)  # before the search is opened, which changes files
        return _Driver(*open_search(location, given or {}), uploader, start, console).run(show)


class _Driver:
    """Runs one search since `start`: a resumed one if it is `opened` already, else a new one."""

    def __init__(
        self,
        search_plan: SearchPlan,
        opened: OpenStudy | None,
        uploader: Uploader,
        start: float,
        console: Console | None,
    ) -> None:
        self.search_plan = search_plan
        self.config = config = search_plan.config
        self.opened = opened
        self.uploader = uploader
        self.start = start
        self.earlier = opened.study.get_trials() if opened else []
        runs, expected = search_plan.confirming_runs, search_plan.expected_cost
        expected = expected and expected + (runs or 0) * search_plan.schedule.limit
        board = LiveTable(search_plan.objective, search_plan.trials, expected, config.time_budget, confirming_runs=runs)
        console = console or create_console(sys.stderr)
        self.progress = Progress(board, search_plan.space, console, self.earlier, config.quiet)
        self.stop = StopRequest(self.progress.warn)

    def run(self, show: Callable[[SearchResult], None]) -> SearchResult:
        """Run the search, show its result, and return it. Until then, a signal only ends the trials."""
        reserve = RESERVE if self.search_plan.confirmation else 0.0
        with handle_signals(self.stop, self.config.time_budget, reserve):
            result = self._run_to_end()
            self.stop.has_ended = True
            show(result)
            return result

    def _run_to_end(self) -> SearchResult:
        search_plan, config, progress, stop = self.search_plan, self.config, self.progress, self.stop
        # The study is closed last: another driver must not begin while this one sends to MLflow or to a bucket.
        with closing(self), progress, self.uploader.flush_on_exit(progress.warn):
            for note in search_plan.notes:
                progress.warn(note)
            for note in self.opened.notes if self.opened else search_plan.warm.lines:
                progress.say(note)
            if self.opened and search_plan.is_complete(self.earlier):
                record, tracker = self._close_complete_search(self.opened)
            else:
                if (num := search_plan.trials) < config.trials:
                    progress.say(f"the space has {num} combinations: as many trials, and not {config.trials}")
                if not self.opened and (line := describe_confirmation(search_plan)):
                    progress.say(line)
                progress.say(f"search {config.name}: {'joining' if uses_existing_cluster() else 'starting'} Ray")
                if note := job_stop_warning():
                    progress.warn(note)
                record, tracker = self._run_on_ray()
            return finish(self.search_plan, record, tracker, progress, stop)

    def _close_complete_search(self, opened: OpenStudy) -> tuple[SearchRecord, Tracker]:
        config, warn = self.config, self.progress.warn
        ended = len(opened.study.get_searched_trials())
        more = "the space has no other config" if self.search_plan.is_exhausted(ended) else "--trials can be raised"
        self.progress.say(f"search {config.name}: all {ended} trials have ended; {more}")
        # The driver before this one may have died before it exported the last reports.
        with ParquetCallback(config.local_path, warn, config.path, self.earlier):
            checkpoints = CheckpointManager(
                config.path / CHECKPOINTS, self.search_plan.objectives, config.keep_checkpoints
            )
            checkpoints.delete_for_ended(self.earlier)  # --keep-checkpoints may be another one now
            checkpoints.close()
            if config.makes_model:  # of the code as it is now
                copy_code(self.search_plan.source, config.local_path)
                with storage_errors():
                    self.uploader.copy()
            options, modules = self.search_plan.options, self.search_plan.source.modules
            return opened.study.get_record(), create_tracker(config, options, modules, opened.study, warn)

    def _run_on_ray(self) -> tuple[SearchRecord, Tracker]:
        search_plan, config = self.search_plan, self.config
        folder = config.local_path
        try:
            with ExitStack() as services:
                services.callback(remove, folder / "ray")
                # After an error, what waits to be written tells whether the lease is lost, before the last upload.
                services.push(lambda kind, *_: self.opened.store.commit() if kind and self.opened else None)
                # Before Ray: what a task cannot prepare is reported at once.
                files = prepare_task_files(config, search_plan.source.task_class, search_plan.space)
                # This imports Ray: a mistake on the command line is reported before these seconds are spent.
                from searchlight.search.execution.cluster.connection import ray_session

                copy_code(search_plan.source, folder)
                # Workers import no module of a program, which may have any name.
                services.enter_context(ray_session(None if config.command else folder / CODE))
                # This imports Tune while Ray starts its worker processes.
                from searchlight.search.experiment.ray_run import inspect_cluster, run_on_ray

                resumed = self.opened.study if self.opened else None
                self.search_plan, cluster = inspect_cluster(search_plan, self.progress, resumed)
                study = self._open_study().study  # once the nodes are checked: a search that cannot run leaves no study
                return run_on_ray(services, self.search_plan, cluster, study, files, self.progress, self.stop)
        except (
            BaseException
        ) as error:  # also a second Ctrl-C: whatever ended the search, the user is told how to resume
            if (folder / "search.yaml").exists() and resume_command(config.path) not in str(error):
                self.progress.warn(resume_hint(config.path))
            raise

    def _open_study(self) -> OpenStudy:
        """Open the study of a new search. Bring the files of any search to where the search lies."""
        self.opened = self.opened or create_search(self.search_plan, self.uploader.copy)
        self.opened.study.record_driver_start(self.start)
        with storage_errors():  # a resumed search may have new code, and new files of its task
            self.uploader.copy()
        self.uploader.start()
        return self.opened

    def close(self) -> None:
        """Close the study. Further calls have no effect."""
        if self.opened is not None:
            self.opened.store.close()


def finish(
    search_plan: SearchPlan, record: SearchRecord, tracker: Tracker, progress: Progress, stop: StopRequest
) -> SearchResult:
    """Write the report, end the parent run, and log the best checkpoint as a model if the config asks for that.

    What MLflow or the disk refuses is reported in a line. It does not keep the user from the result.
    """
    config = search_plan.config
    parquet, page = config.local_path / FILE, config.local_path / "report.html"
    written = (parquet, config.local_path / AUDIT_FILE, config.local_path / LOG)
    files = [path for path in written if path.is_file()]  # else its writer said why
    stopped, timeout_s = ", ".join(stop.reasons), END_TIMEOUT_S
    end = make_search_end("FAILED", ERROR_NOTE, stopped=stopped)
    try:
        result = replace(SearchResult.from_record(record), is_exhausted=search_plan.is_exhausted(len(record.trials)))
        status = "KILLED" if stop.is_interrupted else "FINISHED" if result.best else "FAILED"
        note, ended_at = render_description(config.path, result), running_time(record).end
        end = make_search_end(status, note, result.metrics, stopped, ended_at, result.statement)
        from searchlight.search.reporting.html import try_write_report  # importing plotly takes a while

        files += [page] if try_write_report(record, page, progress.warn) else []
        files += [config.local_path / best_params.FILE] if _try_write_best(result, config, progress) else []
    except KeyboardInterrupt:  # a second Ctrl-C
        timeout_s = HURRIED_S
        raise
    finally:  # after an error, too, the parent run must end
        try:
            tracker.finish(end, files, timeout_s)
        except TrackingError as error:
            progress.warn(str(error))
    mlflow = tracker.mlflow
    if config.makes_model and result.best is not None:
        mlflow |= _log_best(search_plan, stop.is_interrupted, progress)
    return replace(result, mlflow=mlflow, stopped=stopped)


def _try_write_best(result: SearchResult, config: SearchConfig, progress: Progress) -> bool:
    """Write best.yaml. Return whether it is there: a disk that cannot be written is reported in a line."""
    try:
        return best_params.write_best_params(result, config.local_path)
    except OSError as error:
        progress.warn(f"{config.path / best_params.FILE} cannot be written: {error}")
        return False


def _log_best(search_plan: SearchPlan, is_interrupted: bool, progress: Progress) -> dict[str, str]:
    """Return the URI of the best checkpoint as a model, or an empty dict. An interrupted search makes no model."""
    location, name = search_plan.config.path, search_plan.config.register_ or ""
    try:
        if not is_interrupted:
            progress.say("making a model of the best checkpoint")
            return {"model": log_best(location, name)}
    except ModelError as error:
        progress.warn(str(error))
        return {}
    except KeyboardInterrupt:  # it ends the model alone: the search has ended, and its result is still reported
        pass
    progress.warn(f"the best checkpoint is no model in MLflow yet: {log_model_command(location, name)}")
    return {}
