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

from search.analysis.result import Result
from search.config import SearchConfig, load_config
from search.config.libraries import settle
from search.config.search_config import complete
from search.errors import StoreError, UsageError
from search.execution.cluster.local_machine import joins_cluster
from search.execution.cluster.node_check import Checked, check_nodes, note_of_job
from search.execution.cluster.session_cleanup import remove
from search.experiment.finish import ERROR_NOTE, HURRIED_S, TRACKING_TIMEOUT_S, finish
from search.experiment.plan import Plan, plan
from search.experiment.resume import Held, begin, take_up, writing
from search.experiment.stop import Stop, budget_of, check_often, recall, stopped_by_signals
from search.experiment.task_files import prepared
from search.formatting import go_on
from search.reporting.console.progress import Progress
from search.reporting.console.streams import console_on
from search.reporting.parquet_callback import Exporter
from search.storage.locations import absolute
from search.storage.uploader import Uploader
from search.storage.working_copy import at_hand, working
from search.study.record import Searched
from search.tracking.tracker import Tracker, TrackingError
from search.tracking.uri import take_login
from trainables.filesystem.paths import Place

if TYPE_CHECKING:
    from search.execution.searcher import StudySearcher

__all__ = ["Plan", "Result", "SearchConfig", "load_config", "plan", "resume", "run"]

ROOT = Path(__file__).resolve().parents[2]


def run(config: SearchConfig, console: Console | None = None) -> Result:
    """Run a search to its end.

    Args:
        config: What to search.
        console: Where progress is shown; standard error by default.

    Raises:
        UsageError: The search cannot be run as it was asked for. Nothing is left of it then.
    """
    start = time.monotonic()
    settle()
    take_login(os.environ)
    planned = plan(complete(config))
    with _made(planned.config):
        uploader = Uploader(planned.config.folder, planned.config.place)
        return _run(planned, None, uploader, console or console_on(sys.stderr), start)


def resume(
    name: str, storage: Place = Path("runs"), given: Mapping[str, Any] | None = None, console: Console | None = None
) -> Result:
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
    settle()
    take_login(os.environ)
    place = absolute(storage) / name
    with at_hand(place) as folder:
        uploader = Uploader(folder, place)  # first: taking it up changes files
        planned, held = take_up(place, given or {})
        return _run(planned, held, uploader, console or console_on(sys.stderr), start)


@contextmanager
def _made(config: SearchConfig) -> Iterator[None]:
    """The folder of a new search, which is removed if it never begins: its name then stays free."""
    with working(config.place) as folder:
        try:
            folder.mkdir(parents=True, exist_ok=config.folder != config.place)
        except OSError as error:
            raise UsageError(f"--storage must be a folder that can be written to, but {error}.") from error
        try:
            yield
        finally:
            if not (folder / "search.yaml").exists():
                shutil.rmtree(folder)


def _run(planned: Plan, held: Held | None, uploader: Uploader, console: Console, start: float) -> Result:
    config = planned.config
    earlier = held.study.trials() if held else []
    progress = Progress(
        planned.space,
        planned.objective,
        planned.mode,
        planned.trials,
        planned.expected,
        console,
        earlier,
        config.time_budget,
        config.quiet,
    )
    stop = Stop(progress.warn)
    with progress, stopped_by_signals(stop, config.time_budget), uploader.ending(progress.warn):
        for note in held.notes if held else planned.warm.lines:
            progress.say(note)
        if held and len(earlier) >= planned.trials and all(trial.state.is_finished() for trial in earlier):
            progress.say(f"search {config.name}: all {len(earlier)} trials have ended; --trials can be raised")
            Exporter(held.study, config.folder / "trials.parquet", progress.warn, config.place).end()
            held.store.close()
            searched = Searched(config.name, earlier, planned.objectives, held.about)
            return finish(planned, searched, held.tracker(planned, progress.warn), progress, stop, start)
        if planned.trials < config.trials:
            progress.say(f"the space has {planned.trials} combinations: as many trials, and not {config.trials}")
        progress.say(f"search {config.name}: {'joining' if joins_cluster() else 'starting'} Ray")
        if note := note_of_job():
            progress.warn(note)
        try:
            searched, tracker = _on_ray(planned, held, progress, stop, uploader)
        except BaseException:  # whatever ends it, a second Ctrl-C too: the user is told, and it goes on
            if (config.folder / "search.yaml").exists():
                progress.warn(f"nothing of search {config.name} is lost: {go_on(config.place)} goes on with it")
            raise
        return finish(planned, searched, tracker, progress, stop, start)


def _on_ray(
    planned: Plan, held: Held | None, progress: Progress, stop: Stop, uploader: Uploader
) -> tuple[Searched, Tracker]:
    # These import Ray: a mistake on the command line is told before these seconds are spent.
    from search.execution.cluster.connection import connected
    from search.execution.cluster.resources import count_gangs, largest, nodes, worker_resources

    config = planned.config
    files = prepared(planned)  # ahead of Ray: what a task cannot prepare is told at once
    try:
        with connected(planned.source.modules, ROOT, config.folder):
            present, growing = nodes(), largest()
            checked = check_nodes(config.place, config.gpus_per_worker, growing) if joins_cluster() else Checked()
            for note in checked.notes:
                progress.warn(note)
            worker = worker_resources(config, present, growing)
            gangs = count_gangs(config, worker, present, growing)
            progress.say(f"{gangs} at a time: {config.workers} x {_told(worker)} each")
            held = held or begin(planned, uploader.copy)
            with writing():  # of one that is taken up: its code may be new, and what its task prepares
                uploader.copy()
            uploader.start()
            return _search(planned, held, worker, files, progress, stop, checked.rehearsal)
    finally:
        if held is not None:
            held.store.close()
        remove(config.folder / "ray")


def _search(
    planned: Plan,
    held: Held,
    worker: dict[str, float],
    files: Place,
    progress: Progress,
    stop: Stop,
    rehearsal: bool,
) -> tuple[Searched, Tracker]:
    """Run the trials; what the study and MLflow then know."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from search.execution.cluster.capacity import Capacity
    from search.execution.cluster.resources import largest, nodes
    from search.execution.gang_registry import RegistryActor
    from search.execution.searcher import StudySearcher
    from search.execution.watchdog import Watch

    config, study, tracker = planned.config, held.study, held.tracker(planned, progress.warn, nodes())
    # On the driver's node: that one cannot be lost without the search.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    need = {name: amount * config.workers for name, amount in worker.items()}
    registry = RegistryActor.options(scheduling_strategy=here).remote(need)
    capacity = Capacity(config, worker, registry, progress.say)
    watch = Watch(registry, f"{config.workers} x {_told(worker)}", progress.warn)
    exporter = Exporter(study, config.folder / "trials.parquet", progress.warn, config.place)
    budget = budget_of(planned, worker, stop, progress.warn)
    searcher = StudySearcher(
        study,
        planned.space,
        planned.schedule,
        planned.objective,
        planned.trials,
        config.place,
        attempt=f"{time.time_ns():x}",
        observers=(tracker, progress, watch, exporter),
        stopping=stop.asked,
        max_losses=config.max_failures,
        budget=budget,
        room=lambda: capacity.gangs,
    )
    progress.board.spent = lambda: searcher.spent
    progress.board.live = lambda: study.live
    gang = {
        "workers": config.workers,
        "resources": worker,
        "placement": config.placement,
        "grows": largest() is not None,
        "registry": registry,
        "max_failures": config.max_failures,
        "stall_timeout": config.stall_timeout,
        "worker": {
            "task": planned.source.reference,
            "files": str(files),
            "rehearsal": rehearsal,
            "objective": "" if planned.source.task_class else planned.objective,
            "others": [other.metric for other in planned.objectives[1:]],
            "stall_timeout": config.stall_timeout,
            "recycle_after": 1 if config.cold else config.recycle_after,
            "memory_growth": config.memory_growth,
            "gpus": config.workers * (worker.get("GPU") or 1.0),
        },
    }

    over = threading.Event()

    def spread() -> None:
        """Tell the workers. The signal's handler must not call Ray, which it may have interrupted."""
        stop.asked.wait()
        if not over.is_set():
            registry.stop.remote()
            tracker.hurry()

    spreading = threading.Thread(target=spread, daemon=True, name="stop")
    spreading.start()
    check_often(budget, stop.asked)
    watch.start()
    capacity.start()
    exporter.start()
    closed = False
    try:
        searcher.mend()
        recall(budget, study.trials(), searcher.waits)
        if not stop.asked.is_set():  # as when what was spent before it was taken up is all that it may spend
            _tune(searcher, gang, config.folder)
        if searcher.error is not None:
            raise searcher.error
        closed = True
        # Trials that wait at a rung have lost against the others, unless the user stopped the search in between.
        searcher.close(prune=not stop.interrupted)
    except BaseException as error:  # also a second Ctrl-C: what is known goes to MLflow, and the error goes on
        if not closed:
            with suppress(StoreError):  # told by `error` already
                searcher.close(prune=False)
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
    return Searched(config.name, study.trials(), planned.objectives, study.about), tracker


def _tune(searcher: "StudySearcher", gang: dict[str, Any], folder: Path) -> None:
    import ray
    from ray import tune
    from ray.tune.execution import class_cache

    from search.execution.cluster.resources import GANG_BYTES
    from search.execution.gang import Gang
    from search.execution.tune_scheduler import Losses

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
            max_concurrent_trials=searcher.trials,  # the searcher knows how many there may be just now
            search_alg=searcher,
            scheduler=Losses(searcher.loss_reasons),
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


def _told(resources: dict[str, float]) -> str:
    return " + ".join(f"{amount:g} {name}" for name, amount in resources.items())
