"""Measure a search of 2,000 trials over 256 gangs, of which only the training is simulated.

These parts are real: Tune with its event loop and actor manager, the study, the sampler (TPE over 15 parameters), and
MLflow. Also real are trials.parquet, the report, the registry, and the code of the gangs. simulated_gangs.py replaces
the workers of the gangs.
Time is real, too: a trial trains for a minute, in four epochs with a report each. All trials take the same time, which
is the worst case, since trials that start together end together. With asha, most trials train less.

The driver, Ray, the gangs' code and MLflow's server share this machine. On a cluster the gangs run on other nodes.

    python benchmarks/driver/scale.py [--trials 2000] [--gangs 256] [--scheduler none|asha] [--study postgresql://...]
"""

import argparse
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy
from optuna.trial import FrozenTrial
from ray.cluster_utils import Cluster
from ray.tune.execution.class_cache import _ActorClassCache

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.driver.mlflow_server import MlflowServer
from benchmarks.driver.simulated_gangs import StandIns
from benchmarks.recording import ROOT, Row, Table, create_parser, describe_versions, print_result
from searchlight.search.config import load_config
from searchlight.search.execution.searcher import StudySearcher
from searchlight.search.experiment import run
from searchlight.search.reporting.console.tables import create_console
from searchlight.search.storage.postgres import PostgresBackend
from searchlight.search.study.trial import get_reports, get_segments
from searchlight.search.tracking.tracker import MLflowCallback

MARKS = (100, 500, 1000, 2000)  # numbers of trials at which the time of a suggestion is measured
REGISTRY = "ray::Registry"
THOUSAND, HALF = 1000, 0.5
EVERY = 50  # results between two samples of the registry
AROUND = 100  # trials before a mark that its median is taken over

UNITS = {
    **dict.fromkeys(
        ("trial_duration", "duration", "start_up", "driver_cpu", "mlflow_flush", "trial_for_1000_gangs"), "s"
    ),
    **dict.fromkeys(("busy_of_each_gang", "busy_of_all_gangs", "allowed_by_rounds", "registry_share_of_core"), "%"),
    **dict.fromkeys(("result_median", "result_p95", "result_most", "driver_cpu_per_report"), "ms"),
    **dict.fromkeys(("main_thread_per_report_at_last", "main_thread_per_report_at_first"), "ms"),
    **dict.fromkeys(("main_thread_per_trial", "median", "p95", "most", "cpu"), "ms"),
    **dict.fromkeys(("memory", "memory_at_first", "study_size", "mlflow_size", "trials_parquet_size"), "MiB"),
    "trial_for_1000_gangs": "s",
    "memory_per_trial": "KiB",
    "registry_per_gang": "ms/s",
}


@dataclass
class Meter:
    """Measurements of the driver's main thread, which runs Tune's event loop.

    Attributes:
        asked: For each new trial its number, and the wall and CPU seconds of its suggestion.
        heard: The searcher's seconds for each result.
        stood: At each result, the CPU seconds of the thread without suggestions and of the process, the resident bytes,
            and the number of started trials.
        registry: CPU seconds of the registry's process, each with its time.
    """

    asked: list[tuple[int, float, float]] = field(default_factory=list)
    heard: list[float] = field(default_factory=list)
    stood: list[tuple[float, float, int, int]] = field(default_factory=list)
    suggesting: float = 0.0
    registry: list[tuple[float, float]] = field(default_factory=list)
    begun: int = 0
    backlog: int = 0
    flush_s: float = 0.0
    _found: psutil.Process | None = None

    def watch(self) -> None:
        """Wrap the methods of the searcher and the tracker."""
        suggest, finish, me = StudySearcher.suggest, MLflowCallback.finish, psutil.Process()

        def asked(searcher: Any, trial_id: str) -> Any:
            wall, cpu = time.perf_counter(), time.thread_time()
            answer = suggest(searcher, trial_id)
            wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
            self.suggesting += cpu
            if isinstance(answer, dict) and answer["segment"].trial >= self.begun:
                self.begun = answer["segment"].trial + 1
                self.asked.append((self.begun, wall, cpu))
            return answer

        def around(told: Any) -> Any:
            def heard(searcher: Any, *arguments: Any, **more: Any) -> Any:
                start = time.perf_counter()
                told(searcher, *arguments, **more)
                self.heard.append(time.perf_counter() - start)
                if len(self.heard) % EVERY == 1:
                    self.look_at_registry()
                own = time.thread_time() - self.suggesting
                self.stood.append((own, time.process_time(), me.memory_info().rss, self.begun))

            return heard

        def finished(tracker: Any, *arguments: Any, **more: Any) -> Any:
            self.backlog = len({*tracker._changed, *tracker._pending})
            start = time.perf_counter()
            try:
                return finish(tracker, *arguments, **more)
            finally:
                self.flush_s = time.perf_counter() - start

        StudySearcher.suggest = asked  # type: ignore[method-assign]
        StudySearcher.on_trial_result = around(StudySearcher.on_trial_result)  # type: ignore[method-assign]
        StudySearcher.on_trial_complete = around(StudySearcher.on_trial_complete)  # type: ignore[method-assign]
        MLflowCallback.finish = finished  # type: ignore[method-assign]

    def look_at_registry(self) -> None:
        with suppress(StopIteration, psutil.Error):  # it has not started, or has ended
            ours = psutil.Process().children(recursive=True)  # there may be other searches on this machine
            self._found = self._found or next(one for one in ours if REGISTRY in "".join(one.cmdline()))
            used = self._found.cpu_times()
            self.registry.append((used.user + used.system, time.perf_counter()))

    def per_result(self, since: float, until: float) -> float:
        """Compute the main thread's CPU seconds per result, without suggestions, between two shares of the search."""
        first, last = (round(share * (len(self.stood) - 1)) for share in (since, until))
        return (self.stood[last][0] - self.stood[first][0]) / max(1, last - first)


@contextmanager
def start_ray(gangs: int) -> Iterator[None]:
    """Start a Ray node that announces resources for `gangs` gangs."""
    room = {"num_cpus": gangs, "memory": (gangs + 8) * 2**30, "object_store_memory": 2**28}
    cluster = Cluster(initialize_head=True, head_node_args={**room, "include_dashboard": False})
    os.environ["RAY_ADDRESS"] = cluster.address
    try:
        yield
    finally:
        cluster.shutdown()


def replace_actors(gangs: int) -> None:
    """Replace Tune's actors by simulated gangs."""
    made = StandIns(gangs)
    _ActorClassCache.get = lambda cache, trainable: made  # type: ignore[method-assign]


def find_use(trials: Sequence[FrozenTrial], gangs: int, epoch_s: float) -> tuple[float, float, float]:
    """Return the seconds until all gangs had started, and two shares of the gangs' time that was training.

    The first share is of the time from the first start of a segment to the last end. The second is of the time between
    each gang's own first start and last end. It leaves out the last round, in which not all gangs have a trial.
    """
    segments = [segment for trial in trials for segment in get_segments(trial)]
    reports = [report for trial in trials for report in get_reports(trial).values()]
    began, ended = dict[str, float](), dict[str, float]()
    for segment in segments:
        gang = segment["gang"]
        began[gang] = min(began.get(gang, segment["taken"]), segment["taken"])
        ended[gang] = max(ended.get(gang, 0.0), segment["ended"])
    trained = len(reports) * epoch_s
    of_all = trained / (gangs * (max(ended.values()) - min(began.values())))
    of_each = trained / sum(ended[gang] - began[gang] for gang in began)
    return max(began.values()) - min(segment["began"] for segment in segments), of_all, of_each


def measure(given: argparse.Namespace, folder: Path, uri: str) -> dict[str, Table]:
    """Run the search and return its figures."""
    if uri:
        os.environ["MLFLOW_TRACKING_URI"] = uri
    replace_actors(given.gangs)
    meter = Meter()
    meter.watch()
    config = load_config(
        {
            "task": f"{ROOT / 'benchmarks' / 'driver' / 'scale_task.py'}:Scale",
            "name": f"scale-{time.time_ns():x}",
            "storage": folder,
            "trials": given.trials,
            "concurrency": given.gangs,
            "scheduler": given.scheduler,
            "set": {"precision": "fp32", "epochs": given.epochs},
            "seed": 1,
            "confirm": 0,
            "quiet": not given.verbose,
            **({"study": given.study} if given.study else {}),
        }
    )
    before = psutil.Process().memory_info().rss
    start = time.perf_counter()
    with open(os.devnull, "w") as quiet:
        result = run(config, create_console(sys.stderr if given.verbose else quiet))
    seconds = time.perf_counter() - start
    suggestions = list(describe_suggestions(meter, given.trials))
    search = {
        "trials": given.trials,
        "gangs": given.gangs,
        "trial_duration": given.seconds,
        "outcomes": ", ".join(f"{count} {outcome}" for outcome, count in result.outcomes.items()),
        "duration": seconds,
        **(use := describe_use(result.searched.trials, given)),
        **describe_driver(meter, before, given.gangs, use["reports"]),
        **measure_sizes(given.study, config.local_path, uri),
    }
    # What a trial takes of the main thread: its suggestion and its reports.
    reports = search["reports"] / given.trials
    busy = (suggestions[-1]["cpu"] if suggestions else 0.0) + reports * search["main_thread_per_report_at_last"]
    search |= {"main_thread_per_trial": busy, "trial_for_1000_gangs": THOUSAND * busy / HALF / 1e3}
    return {"search": search, "suggestions": suggestions}


def describe_suggestions(meter: Meter, trials: int) -> Iterator[Row]:
    """Yield the milliseconds of a suggestion at each number of trials."""
    for mark in (mark for mark in MARKS if mark <= trials):
        near = [(wall, cpu) for number, wall, cpu in meter.asked if mark - AROUND < number <= mark]
        cpu = 1e3 * statistics.median(cpu for _, cpu in near)
        yield {"trials": mark, **describe_spread([wall for wall, _ in near]), "cpu": cpu}


def describe_use(trials: Sequence[FrozenTrial], given: argparse.Namespace) -> Row:
    """Return the number of reports, and how long and how much the gangs were busy."""
    started, of_all, of_each = find_use(trials, given.gangs, given.seconds / given.epochs)
    rounds = -(-given.trials // given.gangs)
    use = {
        "reports": sum(len(get_reports(trial)) for trial in trials),
        "start_up": started,
        "busy_of_each_gang": 100 * of_each,
        "busy_of_all_gangs": 100 * of_all,
    }
    allowed = {"allowed_by_rounds": 100 * given.trials / (rounds * given.gangs)}
    return use | (allowed if given.scheduler == "none" else {})


def describe_driver(meter: Meter, memory: int, gangs: int, reports: int) -> Row:
    """Return what the driver and the registry took. `memory` is that of the driver before the search, in bytes."""
    start, end = meter.stood[0], meter.stood[-1]
    cpu = end[1] - start[1]
    first, last = (1e3 * meter.per_result(*part) for part in ((0.0, 0.25), (0.75, 1.0)))
    (registry_before, since), (registry, until) = meter.registry[0], meter.registry[-1]
    share = 100 * (registry - registry_before) / max(1e-9, until - since)
    return {
        **{f"result_{name}": value for name, value in describe_spread(meter.heard).items()},
        "driver_cpu": cpu,
        "driver_cpu_per_report": 1e3 * cpu / reports,
        "main_thread_per_report_at_last": last,
        "main_thread_per_report_at_first": first,
        "memory": end[2] / 2**20,
        "memory_at_first": memory / 2**20,
        "memory_per_trial": (end[2] - start[2]) / max(1, end[3] - start[3]) / 2**10,
        "registry_share_of_core": share,
        "registry_per_gang": 10 * share / gangs,
        "mlflow_backlog": meter.backlog,
        "mlflow_flush": meter.flush_s,
    }


def describe_spread(seconds: list[float]) -> Row:
    """Return the median, the 95th percentile and the maximum, in milliseconds."""
    ordered = sorted(1e3 * each for each in seconds)
    p95 = ordered[int(0.95 * (len(ordered) - 1))]
    return {"median": statistics.median(ordered), "p95": p95, "most": ordered[-1]}


def measure_sizes(study: str, folder: Path, uri: str) -> Row:
    """Return the sizes of the study, of trials.parquet, and of MLflow's database if it is not a server's, in MiB."""
    mlflow = {} if uri else {"mlflow_size": (folder.parent / "mlflow.db").stat().st_size / 2**20}
    parquet = {"trials_parquet_size": (folder / "trials.parquet").stat().st_size / 2**20}
    if not study:
        return {"study_size": (folder / "study.journal").stat().st_size / 2**20, **mlflow, **parquet}
    engine = sqlalchemy.create_engine(PostgresBackend(folder, study).engine_url)
    with engine.connect() as connection:
        size = connection.execute(sqlalchemy.text("SELECT pg_database_size(current_database())")).scalar_one()
    engine.dispose()
    return {"study_size": size / 2**20, **mlflow, **parquet}


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--gangs", type=int, default=256)
    parser.add_argument("--scheduler", default="none", choices=["none", "asha"])
    parser.add_argument("--seconds", type=float, default=60.0, help="that a whole trial trains")
    parser.add_argument("--epochs", type=int, default=4, help="of a whole trial, a report each")
    parser.add_argument("--study", default="", help="a PostgreSQL database instead of a journal")
    parser.add_argument("--http", action="store_true", help="a real mlflow server instead of MLflow's SQLite")
    parser.add_argument("--verbose", action="store_true", help="show what the search says")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scale-")))
        token = folder / "ray-token"
        token.write_text(secrets.token_hex(32))
        os.environ |= {
            "RAY_AUTH_TOKEN_PATH": str(token),  # leave the user's home unchanged
            "RAY_prestart_worker_first_driver": "0",  # else Ray starts a process for each announced CPU
            "RAY_enable_worker_prestart": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "SCALE_EPOCH_S": str(given.seconds / given.epochs),
            "PYTHONPATH": str(ROOT),
        }
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        uri = stack.enter_context(MlflowServer(folder)).url if given.http else ""
        stack.enter_context(start_ray(given.gangs))
        figures = measure(given, folder / "runs", uri)
    stores = f"{'PostgreSQL' if given.study else 'journal'}, MLflow {'server' if given.http else 'SQLite'}"
    about = f"{describe_versions(('ray', 'optuna'))}, {os.cpu_count()} CPUs, {given.epochs} reports a trial, "
    about += f"scheduler {given.scheduler}, {stores}"
    print_result(figures, UNITS, about)


if __name__ == "__main__":
    main()
