"""One search from its config to its result: checks, Ray, the Tuner over the study, and good order at the end."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from search.analysis.result import SearchResult
from search.config import SearchConfig, load_config
from search.config.libraries import configure_libraries
from search.config.loading import resolve_config
from search.errors import StoreError, UsageError
from search.execution.cluster.local_machine import uses_existing_cluster
from search.execution.cluster.node_check import ClusterCheck, check_nodes, job_stop_warning
from search.execution.cluster.session_cleanup import remove
from search.experiment.finish import ERROR_NOTE, HURRIED_S, TRACKING_TIMEOUT_S, finish
from search.experiment.plan import SearchPlan, plan
from search.experiment.resume import OpenStudy, create_search, open_search, storage_errors
from search.experiment.stop import StopRequest, build_stoppers, handle_signals, restore_stoppers, start_budget_timer
from search.experiment.task_files import prepare_task_files
from search.formatting import resume_command
from search.reporting.console.progress import Progress
from search.reporting.console.streams import create_console
from search.reporting.parquet_callback import ParquetCallback
from search.storage.locations import make_absolute
from search.storage.uploader import Uploader
from search.storage.working_copy import downloaded_copy, working_copy
from search.study.record import SearchRecord
from search.tracking.tracker import MLflowCallback, TrackingError
from search.tracking.uri import move_credentials_to_environment
from trainables.filesystem.paths import StoragePath
from trainables.worker.messages import GangSettings, WorkerSettings

if TYPE_CHECKING:
    from search.execution.searcher import StudySearcher

__all__ = ["SearchPlan", "SearchResult", "SearchConfig", "load_config", "plan", "resume", "run"]

ROOT = Path(__file__).resolve().parents[2]


def run(config: SearchConfig, console: Console | None = None) -> SearchResult:
    """Run a search to its end.

    Args:
        config: What to search.
        console: Where progress is shown; standard error by default.

    Raises:
        UsageError: The search cannot be run as it was asked for. Nothing is left of it then.
    """
    start = time.monotonic()
    configure_libraries()
    move_credentials_to_environment(os.environ)
    planned = plan(resolve_config(config))
    with _search_folder(planned.config):
        uploader = Uploader(planned.config.local_path, planned.config.path)
        return _run_search(planned, None, uploader, console or create_console(sys.stderr), start)


def resume(
    name: str,
    storage: StoragePath = Path("runs"),
    given: Mapping[str, Any] | None = None,
    console: Console | None = None,
) -> SearchResult:
    """Take up a search where its driver left it, however that ended, and run it to its end.

    Args:
        name: Of the search.
        storage: The folder that its folder is in, or the bucket.
        given: Options that it goes on with instead of those that it began with, such as `trials`.
        console: Where progress is shown; standard error by default.

    Raises:
        UsageError: It cannot be taken up. It is left as it was.
    """
    start = time.monotonic()
    configure_libraries()
    move_credentials_to_environment(os.environ)
    place = make_absolute(storage) / name
    with downloaded_copy(place) as folder:
        uploader = Uploader(folder, place)  # first: taking it up changes files
        planned, held = open_search(place, given or {})
        return _run_search(planned, held, uploader, console or create_console(sys.stderr), start)


@contextmanager
def _search_folder(config: SearchConfig) -> Iterator[None]:
    """The folder of a new search, which is removed if it never begins: its name then stays free."""
    with working_copy(config.path) as folder:
        try:
            folder.mkdir(parents=True, exist_ok=config.local_path != config.path)
        except OSError as error:
            raise UsageError(f"--storage must be a folder that can be written to, but {error}.") from error
        try:
            yield
        finally:
            if not (folder / "search.yaml").exists():
                shutil.rmtree(folder)


def _run_search(
    planned: SearchPlan, held: OpenStudy | None, uploader: Uploader, console: Console, start: float
) -> SearchResult:
    config = planned.config
    earlier = held.study.get_trials() if held else []
    progress = Progress(
        planned.space,
        planned.objective,
        planned.trials,
        planned.expected_cost,
        console,
        earlier,
        config.time_budget,
        config.quiet,
    )
    stop = StopRequest(progress.warn)
    with progress, handle_signals(stop, config.time_budget), uploader.flush_on_exit(progress.warn):
        for note in held.notes if held else planned.warm.lines:
            progress.say(note)
        if held and len(earlier) >= planned.trials and all(trial.state.is_finished() for trial in earlier):
            progress.say(f"search {config.name}: all {len(earlier)} trials have ended; --trials can be raised")
            ParquetCallback(held.study, config.local_path / "trials.parquet", progress.warn, config.path).end()
            held.store.close()
            searched = SearchRecord(config.name, earlier, planned.objectives, held.about)
            return finish(planned, searched, held.create_tracker(planned, progress.warn), progress, stop, start)
        if planned.trials < config.trials:
            progress.say(f"the space has {planned.trials} combinations: as many trials, and not {config.trials}")
        progress.say(f"search {config.name}: {'joining' if uses_existing_cluster() else 'starting'} Ray")
        if note := job_stop_warning():
            progress.warn(note)
        try:
            searched, tracker = _run_on_ray(planned, held, progress, stop, uploader)
        except BaseException:  # whatever ends it, a second Ctrl-C too: the user is told, and it goes on
            if (config.local_path / "search.yaml").exists():
                progress.warn(f"nothing of search {config.name} is lost: {resume_command(config.path)} goes on with it")
            raise
        return finish(planned, searched, tracker, progress, stop, start)


def _run_on_ray(
    planned: SearchPlan, held: OpenStudy | None, progress: Progress, stop: StopRequest, uploader: Uploader
) -> tuple[SearchRecord, MLflowCallback]:
    # These import Ray: a mistake on the command line is told before these seconds are spent.
    from search.execution.cluster.connection import ray_session
    from search.execution.cluster.resources import (
        autoscaler_limits,
        get_node_resources,
        num_gangs,
        resolve_worker_resources,
    )

    config = planned.config
    files = prepare_task_files(planned)  # ahead of Ray: what a task cannot prepare is told at once
    try:
        with ray_session(planned.source.modules, ROOT, config.local_path):
            present, growing = get_node_resources(), autoscaler_limits()
            checked = (
                check_nodes(config.path, config.gpus_per_worker, growing) if uses_existing_cluster() else ClusterCheck()
            )
            for note in checked.notes:
                progress.warn(note)
            worker = resolve_worker_resources(config, present, growing)
            gangs = num_gangs(config, worker, present, growing)
            progress.say(f"{gangs} at a time: {config.workers} x {_format_resources(worker)} each")
            held = held or create_search(planned, uploader.copy)
            with storage_errors():  # of one that is taken up: its code may be new, and what its task prepares
                uploader.copy()
            uploader.start()
            return _run_trials(planned, held, worker, files, progress, stop, checked.rehearsal)
    finally:
        if held is not None:
            held.store.close()
        remove(config.local_path / "ray")


def _run_trials(
    planned: SearchPlan,
    held: OpenStudy,
    worker: dict[str, float],
    files: StoragePath,
    progress: Progress,
    stop: StopRequest,
    rehearsal: bool,
) -> tuple[SearchRecord, MLflowCallback]:
    """Run the trials; what the study and MLflow then know."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from search.execution.cluster.resources import CapacityMonitor, autoscaler_limits, get_node_resources
    from search.execution.gang_registry import RegistryActor
    from search.execution.report_handler import SearchLimits
    from search.execution.searcher import StudySearcher
    from search.execution.watchdog import Watchdog

    config, study, tracker = (
        planned.config,
        held.study,
        held.create_tracker(planned, progress.warn, get_node_resources()),
    )
    # On the driver's node: that one cannot be lost without the search.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    need = {name: amount * config.workers for name, amount in worker.items()}
    registry = RegistryActor.options(scheduling_strategy=here).remote(need)
    capacity = CapacityMonitor(config, worker, registry, progress.say)
    watch = Watchdog(registry, f"{config.workers} x {_format_resources(worker)}", progress.warn)
    exporter = ParquetCallback(study, config.local_path / "trials.parquet", progress.warn, config.path)
    budget = build_stoppers(planned, worker, stop, progress.warn)
    limits = SearchLimits(planned.trials, config.max_failures, stop.asked, budget, room=lambda: capacity.gangs)
    attempt, callbacks = f"{time.time_ns():x}", (tracker, progress, watch, exporter)
    searcher = StudySearcher(study, planned.space, planned.schedule, limits, config.path, attempt, callbacks)
    progress.board.spent = lambda: searcher.reports.spent
    progress.board.live = lambda: study.live
    settings = WorkerSettings(
        task=planned.source.reference,
        objective="" if planned.source.task_class else planned.objective.metric,
        others=[other.metric for other in planned.objectives[1:]],
        files=str(files),
        rehearsal=rehearsal,
        stall_timeout=config.stall_timeout,
        recycle_after=config.recycle_after,
        gpus=config.workers * (worker.get("GPU") or 1.0),
    )
    grows = autoscaler_limits() is not None
    gang = GangSettings(config.workers, worker, config.placement, grows, registry, config.max_failures, settings)

    over = threading.Event()

    def forward_stop() -> None:
        """Tell the workers. The signal's handler must not call Ray, which it may have interrupted."""
        stop.asked.wait()
        if not over.is_set():
            registry.stop.remote()
            tracker.request_connection()

    spreading = threading.Thread(target=forward_stop, daemon=True, name="stop")
    spreading.start()
    start_budget_timer(budget, stop.asked)
    watch.start()
    capacity.start()
    exporter.start()
    closed = False
    try:
        searcher.recover()
        restore_stoppers(budget, study.get_trials(), searcher.is_paused)
        if not stop.asked.is_set():  # as when what was spent before it was taken up is all that it may spend
            _run_tuner(searcher, gang, config.local_path)
        if searcher.error is not None:
            raise searcher.error
        closed = True
        # Trials that wait at a rung have lost against the others, unless the user stopped the search in between.
        searcher.finish(prune=not stop.is_interrupted)
    except BaseException as error:  # also a second Ctrl-C: what is known goes to MLflow, and the error goes on
        if not closed:
            with suppress(StoreError):  # told by `error` already
                searcher.finish(prune=False)
        hurried = isinstance(error, KeyboardInterrupt)
        with suppress(TrackingError):  # the error that ended the search goes before; what is unsent is kept
            timeout_s = HURRIED_S if hurried else TRACKING_TIMEOUT_S
            tracker.finish("FAILED", ERROR_NOTE, {}, [], timeout_s)
        raise
    finally:
        over.set()
        stop.asked.set()
        spreading.join()
        watch.end()
        capacity.end()
        exporter.end()
    return SearchRecord(config.name, study.get_trials(), planned.objectives, study.metadata), tracker


def _run_tuner(searcher: "StudySearcher", gang: GangSettings, folder: Path) -> None:
    import ray
    from ray import tune
    from ray.tune.execution import class_cache

    from search.execution.cluster.resources import GANG_BYTES
    from search.execution.gang import Gang
    from search.execution.tune_scheduler import GangFailureRecorder

    # Tune would put the driver's keys into the runtime environment of the gangs, which Ray logs. Nodes have their own.
    kept = {name for name in class_cache.ENV_VARS_TO_PROPAGATE if not name.startswith("AWS_")}
    class_cache.ENV_VARS_TO_PROPAGATE = kept
    # Not CPU: 0, which Tune refuses, and no fraction of a CPU, which a worker would miss. On the driver's node as long
    # as that has room: it is the one that no cloud takes away, and the others can be released when they are idle.
    here = ray.get_runtime_context().get_node_id()
    place = tune.PlacementGroupFactory([{"memory": GANG_BYTES}], "STRICT_PACK", _soft_target_node_id=here)
    tune.Tuner(
        tune.with_resources(Gang, place),
        param_space={"gang": gang},
        tune_config=tune.TuneConfig(
            num_samples=-1,
            reuse_actors=True,
            max_concurrent_trials=searcher.limits.trials,  # the searcher knows how many there may be just now
            search_alg=searcher,
            scheduler=GangFailureRecorder(searcher.loss_reasons),
            trial_name_creator=lambda trial: f"stretch-{trial.trial_id}",
            trial_dirname_creator=lambda trial: f"stretch-{trial.trial_id}",
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder / "ray" / searcher.attempt),  # a driver that was killed may still have workers
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # the workers write them
        ),
    ).fit()


def _format_resources(resources: dict[str, float]) -> str:
    return " + ".join(f"{amount:g} {name}" for name, amount in resources.items())
