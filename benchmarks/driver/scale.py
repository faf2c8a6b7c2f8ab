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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
MARKS = (100, 500, 1000, 2000)  # numbers of trials at which the time of a suggestion is printed
REGISTRY = "ray::Registry"
THOUSAND, HALF = 1000, 0.5
EVERY = 50  # results between two samples of the registry
AROUND = 100  # trials before a mark that its median is taken over


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
        from searchlight.search.execution.searcher import StudySearcher
        from searchlight.search.tracking.tracker import MLflowCallback

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
def ray_for(gangs: int) -> Iterator[None]:
    """Start a Ray node that announces resources for `gangs` gangs."""
    from ray.cluster_utils import Cluster

    room = {"num_cpus": gangs, "memory": (gangs + 8) * 2**30, "object_store_memory": 2**28}
    cluster = Cluster(initialize_head=True, head_node_args={**room, "include_dashboard": False})
    os.environ["RAY_ADDRESS"] = cluster.address
    try:
        yield
    finally:
        cluster.shutdown()


def stand_in(gangs: int) -> None:
    """Replace Tune's actors by simulated gangs."""
    from ray.tune.execution.class_cache import _ActorClassCache

    from benchmarks.driver.simulated_gangs import StandIns

    made = StandIns(gangs)
    _ActorClassCache.get = lambda cache, trainable: made  # type: ignore[method-assign]


def used(trials: Any, gangs: int, epoch_s: float) -> tuple[float, float, float]:
    """Return the seconds until all gangs had started, and two shares of the gangs' time that was training.

    The first share is of the time from the first start of a segment to the last end. The second is of the time between
    each gang's own first start and last end. It leaves out the last round, in which not all gangs have a trial.
    """
    from searchlight.search.study.trial import get_reports, get_segments

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


def measure(given: argparse.Namespace, folder: Path, uri: str) -> None:
    from searchlight.search.config import load_config
    from searchlight.search.experiment import run
    from searchlight.search.reporting.console.tables import create_console

    if uri:
        os.environ["MLFLOW_TRACKING_URI"] = uri
    stand_in(given.gangs)
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
    tell(given, meter, result, config.local_path, seconds, before, uri)


def tell(
    given: argparse.Namespace, meter: Meter, result: Any, folder: Path, seconds: float, before: int, uri: str
) -> None:
    from searchlight.search.study.trial import get_reports

    trials = result.searched.trials
    reports = sum(len(get_reports(trial)) for trial in trials)
    started, of_all, of_each = used(trials, given.gangs, float(os.environ["SCALE_EPOCH_S"]))
    print(f"outcomes          {dict(result.outcomes)}, {reports} reports, {seconds:.0f} s in all")
    print(f"start-up          {started:.1f} s until all gangs had a trial")
    print(f"utilisation       {100 * of_each:.1f} % of a gang's time from its first trial to its last")
    most = given.trials / (-(-given.trials // given.gangs) * given.gangs)
    allowed = f", and {given.trials} trials allow {100 * most:.1f} %" if given.scheduler == "none" else ""
    print(f"                  {100 * of_all:.1f} % of all from the first to the last of the search{allowed}")
    own = 0.0
    for mark in (mark for mark in MARKS if mark <= given.trials):
        near = [(wall, own) for number, wall, own in meter.asked if mark - AROUND < number <= mark]
        own = 1e3 * statistics.median(own for _, own in near)
        print(f"suggestion {mark:>6} {spread([wall for wall, _ in near])}; CPU {own:.0f} ms")
    print(f"result            {spread(meter.heard)} in the searcher")
    start, end = meter.stood[0], meter.stood[-1]
    cpu = end[1] - start[1]
    print(f"driver            {cpu:.0f} s of CPU, {1e3 * cpu / reports:.1f} ms a report, in all of its threads")
    first, last = (1e3 * meter.per_result(*part) for part in ((0.0, 0.25), (0.75, 1.0)))
    print(
        f"  its main thread {last:.1f} ms a report in the last quarter, {first:.1f} in the first, without suggestions"
    )
    growth = (end[2] - start[2]) / max(1, end[3] - start[3])
    memory = f"{end[2] / 2**20:.0f} MiB, {before / 2**20:.0f} at the start"
    print(f"  its memory      {memory}; {growth / 2**10:.0f} KiB a trial")
    (cpu, since), (cpu_now, now) = meter.registry[0], meter.registry[-1]
    share = 100 * (cpu_now - cpu) / max(1e-9, now - since)
    print(f"registry          {share:.0f} % of a core, {10 * share / given.gangs:.2f} ms a second for each gang")
    print(f"study             {store_size(given.study, folder)}")
    late = f"{meter.backlog} trials late at the end, {meter.flush_s:.1f} s until all was sent"
    print(f"MLflow            {late}; {runs_size(uri, folder)}")
    of_trial = own + reports / given.trials * last
    print(
        f"1,000 gangs       trials of {THOUSAND * of_trial / HALF / 1e3:.0f} s keep the driver's main thread half busy "
        f"({of_trial:.0f} ms each)"
    )
    print(f"trials.parquet    {(folder / 'trials.parquet').stat().st_size / 2**20:.1f} MiB", flush=True)


def spread(seconds: list[float]) -> str:
    """Format the median, 95th percentile and maximum, in milliseconds."""
    ordered = sorted(1e3 * each for each in seconds)
    p95 = ordered[int(0.95 * (len(ordered) - 1))]
    return f"median {statistics.median(ordered):.1f} ms, p95 {p95:.0f} ms, most {ordered[-1]:.0f} ms"


def store_size(study: str, folder: Path) -> str:
    if not study:
        return f"a journal of {(folder / 'study.journal').stat().st_size / 2**20:.1f} MiB"
    import sqlalchemy

    from searchlight.search.storage.postgres import PostgresBackend

    engine = sqlalchemy.create_engine(PostgresBackend(folder, study).engine_url)
    with engine.connect() as connection:
        size = connection.execute(sqlalchemy.text("SELECT pg_database_size(current_database())")).scalar_one()
    engine.dispose()
    return f"PostgreSQL, {size / 2**20:.1f} MiB"


def runs_size(uri: str, folder: Path) -> str:
    if uri:
        return "its database is the server's"
    return f"its database has {(folder.parent / 'mlflow.db').stat().st_size / 2**20:.1f} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        import optuna
        import ray

        print(
            f"ray {ray.__version__}, optuna {optuna.__version__}, {os.cpu_count()} CPUs: {given.trials} trials of "
            f"{given.seconds:g} s in {given.epochs} reports over {given.gangs} gangs, scheduler {given.scheduler}, "
            f"{'PostgreSQL' if given.study else 'journal'}, MLflow {'server' if given.http else 'SQLite'}",
            flush=True,
        )
        uri = ""
        if given.http:
            from benchmarks.driver.tracking_cost import server

            uri = stack.enter_context(server(str(folder)))
        stack.enter_context(ray_for(given.gangs))
        measure(given, folder / "runs", uri)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
