"""Runs the trials of a search on Ray, with the services that follow them. Importing this file imports Ray and Tune."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray import tune
from ray.tune.execution import class_cache
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from searchlight.search.errors import StoreError, UsageError
from searchlight.search.execution.cluster import resources
from searchlight.search.execution.cluster.connection import find_lost_process
from searchlight.search.execution.cluster.local_machine import (
    leave_out_fp16,
    leave_out_unsupported,
    uses_existing_cluster,
)
from searchlight.search.execution.cluster.node_check import ClusterCheck, check_nodes
from searchlight.search.execution.gang import Gang
from searchlight.search.execution.gang_registry import RegistryActor
from searchlight.search.execution.report_handler import SearchLimits
from searchlight.search.execution.searcher import StudySearcher
from searchlight.search.execution.stoppers import Stoppers
from searchlight.search.execution.tune_scheduler import GangScheduler, RayLost
from searchlight.search.execution.watchdog import Watchdog
from searchlight.search.experiment.audit_follower import AuditFollower, follow_audit, is_audited
from searchlight.search.experiment.driver_state import describe_driver
from searchlight.search.experiment.plan import SearchPlan
from searchlight.search.experiment.preflight import find_unsupported_modes
from searchlight.search.experiment.steering import Steering
from searchlight.search.experiment.stop import RESERVE, StopRequest
from searchlight.search.folder.locations import process_folder
from searchlight.search.formatting import pluralize, resume_hint
from searchlight.search.reporting.console.progress import Progress
from searchlight.search.reporting.console.tables import SafeStream
from searchlight.search.reporting.live_page import PAGE, LivePage
from searchlight.search.reporting.parquet import ParquetCallback
from searchlight.search.space.search_space import Space
from searchlight.search.space.stop_condition import StopCondition
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.study import SearchStudy
from searchlight.search.tracking.base import Tracker
from searchlight.search.tracking.tracker import create_tracker
from searchlight.trainables.filesystem.paths import StoragePath
from searchlight.trainables.worker.messages import GangSettings, WorkerSettings

LOOK_S = 1.0  # how often Ray is checked while Tune may wait for it
STUCK_S = 5.0  # how long Tune may take to notice that Ray is lost
Resources = dict[str, float]


class Cluster(NamedTuple):
    """What the nodes give to a search: the resources of one worker, and whether its GPUs are only declared."""

    worker: Resources
    is_rehearsal: bool


def inspect_cluster(plan: SearchPlan, progress: Progress, study: SearchStudy | None) -> tuple[SearchPlan, Cluster]:
    """Check the nodes of the running Ray. Return the plan of a search that they can run, and what they give to it.

    The nodes may narrow the search space of a new search. A resumed one keeps its own, with its `study`.

    Raises:
        UsageError: They cannot run the search.
    """
    config = plan.config
    present, growing = resources.get_node_resources(), resources.autoscaler_limits()
    is_joined = uses_existing_cluster()
    checked = check_nodes(config.path, config.gpus_per_worker, growing) if is_joined else ClusterCheck()
    for note in checked.notes:
        progress.warn(note)
    worker = resources.resolve_worker_resources(config, present, growing)
    gangs = resources.num_gangs(config, config.trials, worker, present, growing)
    progress.say(f"{pluralize(gangs, 'trial')} at a time, each with {_format_gang(config.workers, worker)}")
    if study is not None:
        _check_precisions(plan, study, worker)
    elif not worker.get("GPU"):
        before, plan = len(plan.notes), _leave_out_precisions(plan)
        for note in plan.notes[before:]:
            progress.warn(note)
    return plan, Cluster(worker, checked.rehearsal)


def run_on_ray(
    services: ExitStack,
    plan: SearchPlan,
    cluster: Cluster,
    study: SearchStudy,
    files: StoragePath,
    progress: Progress,
    stop: StopRequest,
) -> tuple[SearchRecord, Tracker]:
    """Run the trials on the running Ray. Return the content of the study and of MLflow afterwards.

    Args:
        services: Receives the services that end with the trials, in reverse order: threads that use Ray end before Ray.
        files: The folder that the task's `prepare` filled.
    """
    config, worker, start = plan.config, cluster.worker, services.enter_context
    registry = _start_registry({name: amount * config.workers for name, amount in worker.items()})
    exporter = start(ParquetCallback(config.local_path, progress.warn, config.path, study.get_trials()))
    capacity = start(resources.CapacityMonitor(config, config.trials, worker, registry, progress.say))
    watchdog = start(Watchdog(registry, _format_gang(config.workers, worker), progress.warn))
    nodes = resources.get_node_resources()
    tracker = start(create_tracker(config, plan.options, plan.source.modules, study, progress.warn, nodes))
    start(_forward_stop(stop, registry, tracker))
    stoppers = build_stoppers(plan, worker, stop, progress.warn)
    page = start(LivePage(config.local_path, progress.warn, config.path, study.get_record()))
    progress.say(f"page: {config.path / PAGE}, from the first report on")
    observers = (tracker, progress, watchdog, exporter, page)
    audit = follow_audit(services, plan, study, registry, progress, stop)
    limits = _build_limits(plan, stop, stoppers, capacity, audit)
    attempt = f"{time.time_ns():x}"
    searcher = StudySearcher(
        study,
        plan.space,
        plan.schedule,
        limits,
        config.path,
        attempt,
        observers,
        plan.confirmation,
    )
    progress.follow(searcher)
    finish = partial(stop.end_search, confirms=plan.confirmation is not None)
    free = registry.free_idle_gangs.remote
    halt = registry.halt_trial.remote
    describe = partial(describe_driver, searcher, capacity, watchdog, progress, config.time_budget)
    steering = start(
        Steering(searcher, config.path, halt, finish, progress.say, progress.warn, capacity, free, describe)
    )
    if plan.config.believe:
        steering.believe(plan.config.believe)
    page.commands = steering.log
    stoppers.start_timer(stop.asked)
    settings = _gang_settings(plan, cluster, registry, files, audit.request if audit else None)
    stuck = _end_if_stuck(searcher, (tracker, exporter), progress, config.path)
    _run_trials(searcher, settings, stoppers, stop, config.local_path, stuck)
    if audit is not None:
        audit.record(study)
    return study.get_record(), tracker


def _start_registry(gang_resources: Resources) -> Any:
    """Start the registry of gangs on the driver's node, which cannot be lost without the search."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return RegistryActor.options(scheduling_strategy=here).remote(gang_resources)


def _build_limits(
    plan: SearchPlan,
    stop: StopRequest,
    stoppers: Stoppers,
    capacity: resources.CapacityMonitor,
    audit: AuditFollower | None,
) -> SearchLimits:
    return SearchLimits(
        plan.trials,
        plan.config.keep_checkpoints,
        plan.config.max_failures,
        stop.asked,
        stop.search_over,
        stoppers,
        room=lambda: capacity.gangs,
        passed_audit=lambda: audit is None or audit.passed,
        tries_first=plan.source.task_class is None and not plan.config.no_preflight,
        constraints=plan.constraints,
    )


def _leave_out_precisions(plan: SearchPlan) -> SearchPlan:
    """Return the plan for workers without a GPU, with notes. No first point has a precision that is left out."""
    # As in a plan without GPUs, earlier trials of a warm start may be in fp16.
    if uses_existing_cluster() and not plan.config.warm_start:
        plan = _narrow(plan, *leave_out_fp16(plan.config, plan.space))
    if reasons := find_unsupported_modes(plan):
        plan = _narrow(plan, *leave_out_unsupported(plan.config, plan.space, reasons))
    return plan


def _check_precisions(plan: SearchPlan, study: SearchStudy, worker: Resources) -> None:
    """Raise a UsageError if the workers of a resumed search cannot run the task in a precision of its space."""
    if worker.get("GPU") or plan.source.task_class is None or is_audited(plan, study):
        return
    name = plan.config.name
    for mode, reason in find_unsupported_modes(plan).items():
        raise UsageError(
            f"precision must be one in which the workers can run the task, but {name} searches {mode}: {reason}. "
            f"Resume it on another machine, begin a new search with --warm-start {name}, or add --no-preflight."
        )


def _narrow(plan: SearchPlan, space: Space, notes: tuple[str, ...]) -> SearchPlan:
    allowed = {parameter.name: parameter for parameter in space.parameters}
    first = (
        {name: value for name, value in point.items() if name in allowed and allowed[name].contains(value)}
        for point in plan.first
    )
    constants = space.fixed_values()

    def fits(name: str, value: Any) -> bool:
        return allowed[name].contains(value) if name in allowed else constants[name] == value

    earlier = [trial for trial in plan.warm.trials if all(map(fits, trial.point, trial.point.values()))]
    if lost := len(plan.warm.trials) - len(earlier):
        notes += (f"{pluralize(lost, 'trial')} of earlier searches left out as well",)
    warm = replace(plan.warm, trials=tuple(earlier))
    return replace(plan, space=space, first=tuple(first), warm=warm, notes=plan.notes + notes)


def _gang_settings(
    plan: SearchPlan, cluster: Cluster, registry: Any, files: StoragePath, audit: dict[str, Any] | None
) -> GangSettings:
    config, worker, grows = plan.config, cluster.worker, resources.autoscaler_limits() is not None
    settings = WorkerSettings(
        task=plan.source.reference,
        objective="" if plan.source.task_class else plan.objective.metric,
        others=[*(other.metric for other in plan.objectives[1:]), *(bound.metric for bound in plan.constraints)],
        files=str(files),
        rehearsal=cluster.is_rehearsal,
        stall_timeout=config.stall_timeout,
        recycle_after=config.recycle_after,
        audit=audit,
        command=plan.command and replace(plan.command, nproc=max(1, int(worker.get("GPU") or worker.get("CPU", 1)))),
        gpus=config.workers * (worker.get("GPU") or 1.0),
    )
    return GangSettings(config.workers, worker, config.placement, grows, registry, config.max_failures, settings)


def build_stoppers(
    plan: SearchPlan, worker: Mapping[str, float], stop: StopRequest, say: Callable[[str], None]
) -> Stoppers:
    """Return the stoppers of a search whose workers have resources `worker`. Without GPUs, a worker counts as one."""
    config = plan.config
    target = StopCondition.from_text(config.stop_when) if config.stop_when else None
    gpus = config.workers * (worker.get("GPU", 0) or 1)
    return Stoppers(
        plan.objective,
        plan.trials,
        target,
        config.patience,
        config.gpu_hours,
        gpus=gpus,
        hours="GPU-hours" if worker.get("GPU") else "worker-hours",
        reserve=RESERVE,
        stop=stop,
        end_search=stop.end_search if plan.confirmation else None,
        confirms_target=config.confirm is not None,  # else who names a target wants no more trainings than it takes
        say=say,
    )


@contextmanager
def _forward_stop(stop: StopRequest, registry: Any, tracker: Tracker) -> Iterator[None]:
    """Stop the workers once the search must end. This is a thread, because a signal handler must not call Ray."""
    is_over = threading.Event()

    def forward() -> None:
        stop.asked.wait()
        if not is_over.is_set():
            registry.stop.remote()
            tracker.request_connection()

    thread = threading.Thread(target=forward, daemon=True, name="stop")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        stop.asked.set()
        thread.join()


@contextmanager
def _end_if_stuck(
    searcher: StudySearcher, services: Sequence[AbstractContextManager[Any]], progress: Progress, location: StoragePath
) -> Iterator[None]:
    """End this process if Ray is lost and the block still waits for it: nothing interrupts a call to Ray's head.

    Ray itself would abort the process later, without a line and without an end in MLflow.

    Args:
        services: Those that end with the search and do not need Ray.
        location: Where the search lies.
    """
    over = threading.Event()

    def watch() -> None:
        while not (lost := find_lost_process()):
            if over.wait(LOOK_S):
                return
        if over.wait(STUCK_S):  # Tune has noticed it, too
            return
        try:
            error = StoreError(lost)
            searcher.finish(prune=False, is_lost=True)
            searcher.study.record_driver_end(time.time())
            searcher.study.commit()
            for service in services:
                service.__exit__(StoreError, error, None)
            progress.warn(resume_hint(location))
            progress.__exit__()
            print(f"the search has ended: {lost}.", file=SafeStream(sys.stderr), flush=True)
        finally:
            shutil.rmtree(process_folder(), ignore_errors=True)  # which the end below would leave
            os._exit(1)

    threading.Thread(target=watch, daemon=True, name="lost-ray").start()
    try:
        yield
    finally:
        over.set()


def _run_trials(
    searcher: StudySearcher,
    settings: GangSettings,
    stoppers: Stoppers,
    stop: StopRequest,
    folder: Path,
    stuck: AbstractContextManager[None],
) -> None:
    """Run trials until none is left or the search is to stop. `stuck` ends the process if Ray is lost meanwhile."""
    try:
        searcher.recover()
        stoppers.restore(searcher.study.get_trials(), searcher.is_paused)
        if not stop.asked.is_set():  # an earlier driver may have spent the whole budget
            with _restrict_environment(), stuck:
                _run_tuner(searcher, settings, folder)
        if searcher.error is not None:
            raise searcher.error
    except RayLost as lost:
        searcher.finish(prune=False, is_lost=True)
        raise StoreError(str(lost)) from None
    except BaseException:  # also a second Ctrl-C: MLflow still gets what is known
        with suppress(StoreError):  # which the first error says already
            searcher.finish(prune=False)
            searcher.study.record_driver_end(time.time())
        raise
    # Trials that wait at a rung have lost against the others, unless the search was stopped in between.
    searcher.finish(prune=stop.prunes)
    searcher.study.record_driver_end(time.time())
    searcher.study.commit()


@contextmanager
def _restrict_environment() -> Iterator[None]:
    """Keep Tune from passing the driver's environment variables to the gangs, as long as a search runs.

    Tune would put the driver's keys into the runtime environment of the gangs, which Ray logs. Nodes have their own.
    """
    names, defaults = class_cache.ENV_VARS_TO_PROPAGATE, class_cache.DEFAULT_ENV_VARS
    class_cache.ENV_VARS_TO_PROPAGATE = {name for name in names if not name.startswith("AWS_")}
    if not uses_existing_cluster():  # all processes have the variables of this one, and Ray starts some ahead
        class_cache.ENV_VARS_TO_PROPAGATE, class_cache.DEFAULT_ENV_VARS = set(), {}
    try:
        yield
    finally:  # a later search of this process may run on a cluster
        class_cache.ENV_VARS_TO_PROPAGATE, class_cache.DEFAULT_ENV_VARS = names, defaults


def _run_tuner(searcher: StudySearcher, settings: GangSettings, folder: Path) -> None:
    # Not CPU: 0, which Tune refuses, and no fraction of a CPU, which a worker would miss. On the driver's node as long
    # as that has room: it is the one that no cloud takes away, and the others can be released when they are idle.
    here = ray.get_runtime_context().get_node_id()
    group = tune.PlacementGroupFactory([{"memory": resources.GANG_BYTES}], "STRICT_PACK", _soft_target_node_id=here)
    tune.Tuner(
        tune.with_resources(Gang, group),
        param_space={"gang": settings},
        tune_config=tune.TuneConfig(
            num_samples=-1,
            reuse_actors=True,
            max_concurrent_trials=searcher.limits.trials,  # the searcher knows how many there may be just now
            search_alg=searcher,
            scheduler=GangScheduler(searcher),
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


def _format_gang(workers: int, worker: Resources) -> str:
    amounts = " + ".join(f"{amount:g} {name}" for name, amount in worker.items())
    return f"{pluralize(workers, 'worker')} of {amounts}"
