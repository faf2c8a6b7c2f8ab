"""One search from its config to its result: checks, Ray, the Tuner over the study, and good order at the end."""

import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import optuna
from optuna.trial import FrozenTrial
from pydantic import BaseModel
from rich.console import Console

from search import functions
from search import study as studies
from search.config import SearchConfig, check_place, complete, dump, load_config
from search.errors import UsageError
from search.janitor import remove
from search.machine import check_cluster, check_machine
from search.progress import Progress
from search.report import Best, count_outcomes, find_best, write_parquet
from search.schedule import Schedule
from search.schedulers import make_schedule
from search.space import Space, resolve
from search.tasks import TaskSource, find_task
from search.tracking import Tracker, TrackingError, store_of

if TYPE_CHECKING:
    from search.searcher import StudySearcher

__all__ = ["Plan", "Result", "SearchConfig", "load_config", "plan", "run"]

ROOT = Path(__file__).resolve().parent.parent
TRACKING_TIMEOUT_S = 60.0
HURRIED_S = 3.0  # after a second Ctrl-C
UNLIMITED = 2**31  # epochs of a trial that only its function ends
SETTINGS = {
    # Nothing phones home unless the user turns it on.
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # The tracker tries again by itself; MLflow's own tries would keep one call going for minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    # The study has what Tune's loggers and snapshots would write; we hear Ctrl-C ourselves.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
    "RAY_AIR_NEW_OUTPUT": "0",  # its banner comes even where Tune is told to be silent
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass(frozen=True)
class Plan:
    """A search that has passed every check that needs no Ray."""

    config: SearchConfig
    source: TaskSource
    space: Space
    schedule: Schedule
    objective: str
    mode: Literal["min", "max"]

    @property
    def epochs(self) -> int | None:
        """How long a trial is; None where it ends when its function returns."""
        return self.space.epochs


@dataclass(frozen=True)
class Result:
    """What came of a search: outcomes by name, the best trial, where MLflow has it, and how long it took."""

    name: str
    outcomes: dict[str, int]
    best: Best | None
    mlflow: dict[str, str]
    seconds: float
    stopped: str

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        best = asdict(self.best) if self.best else None
        return {
            "name": self.name,
            "outcomes": self.outcomes,
            "best": best,
            "mlflow": self.mlflow,
            "seconds": round(self.seconds, 3),
        }


def plan(config: SearchConfig) -> Plan:
    """Check all that can be known before Ray starts.

    Raises:
        UsageError: All that is wrong, a line each.
    """
    check_place(config)
    source = find_task(config.task)
    config_class, objective, mode = _asked_for(config, source)
    fixed = {"seed": config.seed, **(config.set if source.task_class else functions.read(config.set))}
    if "seed" in config.search and "seed" not in config.set:
        del fixed["seed"]
    space = resolve(config_class, fixed, config.search)
    if config.once:
        space = Space(space.config_class, (), space.fixed)
    names = {parameter.name for parameter in space.parameters}
    if "epochs" in names and config.scheduler != "none":
        raise UsageError("--search epochs must come with --scheduler none: it is what the scheduler decides on.")
    if not names and config.trials > 1:
        raise UsageError(f"a parameter must be searched to try {config.trials} trials, but all are fixed. Say --once.")
    schedule = make_schedule(config, space.epochs or UNLIMITED, mode)
    if "RAY_ADDRESS" in os.environ:
        check_cluster(os.environ["RAY_ADDRESS"])
    else:
        check_machine(config, space)
    return Plan(config, source, space, schedule, objective, mode)


def _asked_for(config: SearchConfig, source: TaskSource) -> tuple[type[BaseModel], str, Literal["min", "max"]]:
    """The config class, the objective and its mode: a task class has its own, of a function the user says them."""
    task = source.task_class
    if task is None:
        objective, mode = functions.check(config, source.name)
        return functions.config_class(config.set, config.search), objective, mode
    problems = [
        f"--{name} must be that of {source.name}, {own!r}, but got {given!r}. Leave it out."
        for name, given, own in (("objective", config.objective, task.objective), ("mode", config.mode, task.mode))
        if given and given != own
    ]
    if problems:
        raise UsageError(*problems)
    return task.config_class(), task.objective, task.mode


def run(config: SearchConfig, console: Console | None = None) -> Result:
    """Run a search to its end.

    Args:
        config: What to search.
        console: Where progress is shown; standard error by default.

    Raises:
        UsageError: The search cannot be run as it was asked for. Nothing is left of it then.
    """
    start = time.monotonic()
    planned = plan(complete(config))
    config = planned.config
    _settle()
    from search import cluster  # imports Ray: a mistake on the command line is told before these seconds are spent

    try:
        config.folder.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"--storage must be a folder that can be written to, but {error}.") from error
    expected = planned.schedule.expected_epochs(config.trials) if planned.epochs else None
    console = console or Console(stderr=True)
    progress = Progress(planned.space, planned.objective, planned.mode, config.trials, expected, console)
    stopping = threading.Event()
    with progress, _stopped_by(stopping, config.time_budget, progress) as reasons:
        progress.say(f"search {config.name}: starting Ray")
        try:
            with cluster.connected(planned.source.modules, ROOT, config.folder):
                nodes = cluster.nodes()
                worker = cluster.worker_resources(config, nodes)
                gangs = cluster.count_gangs(config, worker, nodes, cluster.largest())
                progress.say(f"{gangs} at a time: {config.workers} x {_told(worker)} each")
                trials, tracker = _search(planned, worker, gangs, progress, stopping, reasons)
        finally:
            remove(config.folder / "ray")
            if not (config.folder / "study.journal").exists():  # it never began: its name stays free
                shutil.rmtree(config.folder)
        return _finish(planned, trials, tracker, progress, reasons, start)


def _settle() -> None:
    """Keep libraries from phoning home, from talking over the progress, and from doing twice what is done here."""
    os.environ.update({key: value for key, value in SETTINGS.items() if key not in os.environ})
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    # Tune looks for the files of its own loggers, which are off, and logs an error per trial.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)


def _search(
    planned: Plan,
    worker: dict[str, float],
    gangs: int,
    progress: Progress,
    stopping: threading.Event,
    reasons: list[str],
) -> tuple[list[FrozenTrial], Tracker]:
    """Run the trials; what the study and MLflow then know."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from search.registry import RegistryActor
    from search.searcher import StudySearcher
    from search.watch import Watch

    config, objective, mode = planned.config, planned.objective, planned.mode
    resolved = dump(config)
    (config.folder / "search.yaml").write_text(resolved, encoding="utf-8")
    sampler = partial(
        studies.make_sampler,
        config.sampler,
        config.seed,
        conditional=any(parameter.when for parameter in planned.space.parameters),
    )
    study, journal = studies.create(config.folder, sampler, objective, mode)
    study.enqueue(planned.space.defaults())
    store = store_of(config, dict(os.environ))
    tracker = Tracker(config, *store, resolved=resolved, objective=objective, mode=mode)
    # On the driver's node: that one cannot be lost without the search.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    registry = RegistryActor.options(scheduling_strategy=here).remote([worker] * config.workers)
    watch = Watch(registry, f"{config.workers} x {_told(worker)}", progress.say)
    searcher = StudySearcher(
        study,
        planned.space,
        planned.schedule,
        objective,
        config.trials,
        config.folder,
        attempt=f"{time.time_ns():x}",
        observers=(tracker, progress, watch),
        stopping=stopping,
        max_losses=config.max_failures,
    )
    gang = {
        "workers": config.workers,
        "resources": worker,
        "folder": str(config.folder),
        "registry": registry,
        "max_failures": config.max_failures,
        "stall_timeout": config.stall_timeout,
        "worker": {
            "task": planned.source.reference,
            "objective": "" if planned.source.task_class else objective,
            "stall_timeout": config.stall_timeout,
            "recycle_after": 1 if config.cold else config.recycle_after,
            "memory_growth": config.memory_growth,
        },
    }

    over = threading.Event()

    def spread() -> None:
        """Tell the workers. The signal's handler must not call Ray, which it may have interrupted."""
        stopping.wait()
        if not over.is_set():
            registry.stop.remote()
            tracker.hurry()

    threading.Thread(target=spread, daemon=True, name="stop").start()
    watch.start()
    closed = False
    try:
        _tune(searcher, gang, gangs, config.folder)
        if searcher.error is not None:
            raise searcher.error
        closed = True
        # Trials that wait at a rung have lost against the others, unless the user stopped the search in between.
        searcher.close(prune="interrupted" not in reasons)
    except BaseException as error:  # also a second Ctrl-C: what is known goes to MLflow, and the error goes on
        if not closed:
            searcher.close(prune=False)
        hurried = isinstance(error, KeyboardInterrupt)
        with suppress(TrackingError):  # the error that ended the search goes before; what is unsent is kept
            timeout_s = HURRIED_S if hurried else TRACKING_TIMEOUT_S
            tracker.finish("FAILED", "The search ended with an error.", {}, [], timeout_s)
        raise
    finally:
        over.set()
        stopping.set()
        watch.end()
        journal.close()
    return study.trials(), tracker


def _tune(searcher: "StudySearcher", gang: dict[str, Any], gangs: int, folder: Path) -> None:
    from ray import tune

    from search.cluster import GANG_BYTES
    from search.gang import Gang
    from search.losses import Losses

    tune.Tuner(
        # Not CPU: 0, which Tune refuses, and no fraction of a CPU, which a worker would miss.
        tune.with_resources(Gang, {"memory": GANG_BYTES}),
        param_space={"gang": gang},
        tune_config=tune.TuneConfig(
            num_samples=-1,
            reuse_actors=True,
            max_concurrent_trials=gangs,
            search_alg=searcher,
            scheduler=Losses(searcher.loss_reasons),
            trial_name_creator=lambda trial: f"stretch-{trial.trial_id}",
            trial_dirname_creator=lambda trial: f"stretch-{trial.trial_id}",
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder / "ray"),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # the workers write them
        ),
    ).fit()


def _finish(
    planned: Plan,
    trials: Sequence[FrozenTrial],
    tracker: Tracker,
    progress: Progress,
    reasons: list[str],
    start: float,
) -> Result:
    config, mode = planned.config, planned.mode
    best = find_best(trials, mode)
    parquet = config.folder / "trials.parquet"
    status = "KILLED" if "interrupted" in reasons else "FINISHED" if best else "FAILED"
    metrics = {f"best/{planned.objective}": best.value} if best else {}
    try:
        try:
            write_parquet(trials, parquet)
        finally:
            written = [parquet] if parquet.exists() else []
            tracker.finish(status, _note(planned, best), metrics, written, TRACKING_TIMEOUT_S)
    except TrackingError as error:
        progress.say(str(error))
    where = {
        "tracking_uri": tracker.tracking_uri,
        "experiment_id": tracker.experiment_id,
        "run_id": tracker.run_id,
    }
    seconds = time.monotonic() - start
    return Result(config.name, count_outcomes(trials), best, where, seconds, ", ".join(reasons))


def _note(planned: Plan, best: Best | None) -> str:
    """The Markdown on the parent run."""
    if best is None:
        return "No trial was completed."
    values = "\n".join(f"| {name} | {value} |" for name, value in best.config.items())
    return (
        f"**Best {planned.objective}: {best.value:.4f}** (trial {best.trial_id})\n\n"
        f"| parameter | value |\n| --- | --- |\n{values}\n\n"
        "Run it again with `python search/run.py --config search.yaml`; the file is among the artifacts."
    )


def _told(resources: dict[str, float]) -> str:
    return " + ".join(f"{amount:g} {name}" for name, amount in resources.items())


@contextmanager
def _stopped_by(stopping: threading.Event, budget_s: float | None, progress: Progress) -> Iterator[list[str]]:
    """Ctrl-C, SIGTERM and the time budget set `stopping`; yields the reasons. A second Ctrl-C ends at once."""
    reasons: list[str] = []
    signals: list[int] = []

    def stop(reason: str) -> None:
        reasons.append(reason)
        stopping.set()

    def hear(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        if len(signals) > 1:
            raise KeyboardInterrupt
        stop("interrupted")
        progress.say("stopping: trials end at their next window; once more to end at once")

    timer = threading.Timer(budget_s, stop, ["time budget"]) if budget_s else None
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    if timer:
        timer.daemon = True
        timer.start()
    try:
        yield reasons
    finally:
        if timer:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
