"""Measure the driver's time for MLflow: 500 trials of 50 reports with 20 metrics, at one report per second.

The driver is real except for Ray. Reports arrive when they are due, and go to the study's journal and to the tracker. A
trial starts when the driver has read the last report of the one before. The script compares a search without MLflow,
one with the default store (SQLite in a file), and one over HTTP with a real `mlflow server`. The peer is Ray's
MLflowLoggerCallback over HTTP, which Tune calls on its event loop. It gets fewer reports.

    python benchmarks/driver/tracking_cost.py [--trials 500] [--at-once 100]
"""

import argparse
import heapq
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

METRICS = 20
SIDES = ("none", "sqlite", "http")
NAMES = {"none": "without MLflow", "sqlite": "SQLite, the default", "http": "mlflow server"}


def metrics_of(epoch: int) -> dict[str, float]:
    return {"val/score": 0.01 * epoch, **{f"train/metric_{i}": 0.1 * i + epoch for i in range(METRICS - 1)}}


def drive(side: str, uri: str, trials: int, at_once: int, reports: int) -> dict[str, float]:
    """Run one search and return the measurements of its driver."""
    from optuna.samplers import RandomSampler

    from searchlight.search.config import load_config
    from searchlight.search.libraries import configure_libraries
    from searchlight.search.space.objectives import Objective
    from searchlight.search.space.search_space import resolve_space
    from searchlight.search.study.study import create_study
    from searchlight.search.tracking.events import make_search_end
    from searchlight.search.tracking.runs import Runs
    from searchlight.search.tracking.tracker import MLflowCallback
    from searchlight.search.tracking.uri import resolve_tracking_uri
    from searchlight.trainables.task import TaskConfig, searchable

    class Config(TaskConfig):
        lr: float = searchable(1e-3, low=1e-5, high=1e-1, log=True)
        decay: float = searchable(1e-2, low=1e-4, high=1.0, log=True)

    configure_libraries()
    space = resolve_space(Config, {}, {})
    with tempfile.TemporaryDirectory() as storage:
        config = load_config({"task": "arc", "name": "search", "storage": storage})
        config.local_path.mkdir()
        objectives = [Objective("val/score", "max")]
        study, store = create_study(config.local_path, lambda number: RandomSampler(number), objectives)
        tracker = None
        if side != "none":
            where = resolve_tracking_uri(config, {"MLFLOW_TRACKING_URI": uri})
            about = {"id": uuid.uuid4().hex, "config": config.model_dump(), "searched": {}, "fixed": {}}
            tracker = MLflowCallback(Runs(config, *where, about, [Objective("val/score", "max")]))

        inside = late = 0.0

        def tell(number: int) -> None:
            nonlocal inside
            if tracker is not None:
                before = time.perf_counter()
                tracker.on_trial_changed(study.get_trial(number))
                inside += time.perf_counter() - before

        def begin() -> int:
            number, values = study.ask(space)
            study.record_config(number, values)
            tell(number)
            return number

        start, own, own_thread = time.perf_counter(), time.process_time(), time.thread_time()
        begun, due = 0, list[tuple[float, int, int]]()  # (when, trial, epoch)
        for slot in range(min(at_once, trials)):
            heapq.heappush(due, (start + 1 + slot / at_once, begin(), 1))
            begun += 1
        while due:
            at, number, epoch = heapq.heappop(due)
            time.sleep(max(0.0, at - time.perf_counter()))
            late += time.perf_counter() - at
            metrics, now = metrics_of(epoch), time.time()
            study.report(number, epoch, metrics["val/score"], {"metrics": metrics, "checkpoint": None, "time": now})
            tell(number)
            if epoch < reports:
                heapq.heappush(due, (at + 1, number, epoch + 1))
                continue
            study.end(number, "completed")
            tell(number)
            if begun < trials:
                heapq.heappush(due, (time.perf_counter() + 1, begin(), 1))
                begun += 1
        trained = time.perf_counter() - start
        if tracker is not None:
            tracker.finish(make_search_end("FINISHED", ""), [], 600.0)
        seconds = time.perf_counter() - start
        cpu = time.process_time() - own - (time.thread_time() - own_thread)
        store.close()
        if tracker is not None:
            check(tracker, trials, reports)
        per_report = 1e3 / (trials * reports)
        return {
            "seconds": seconds,
            "waited": seconds - trained,
            "inside": inside,
            "cpu": cpu,
            "late_ms": late * per_report,
            "inside_ms": inside * per_report,
        }


def check(tracker: Any, trials: int, reports: int) -> None:
    """Assert that MLflow has every report of the last trial."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracker._runs.tracking_uri)
    (run,) = client.search_runs([tracker.experiment_id], f"tags.trial_id = '{trials - 1}'", max_results=5)
    history = client.get_metric_history(run.info.run_id, "val/score")
    assert len(history) == reports, f"{len(history)} reports of {reports} came to MLflow"


def callback(uri: str, reports: int) -> float:
    """Measure the seconds per report of Ray's MLflowLoggerCallback."""
    from ray.air.integrations.mlflow import MLflowLoggerCallback
    from ray.tune.experiment import Trial

    logger = MLflowLoggerCallback(tracking_uri=uri, experiment_name="callback")
    logger.setup()
    trial = Trial("peer", config={"lr": 0.1, "decay": 0.2}, stub=True)
    logger.log_trial_start(trial)
    start = time.perf_counter()
    for epoch in range(1, reports + 1):
        logger.log_trial_result(epoch, trial, {**metrics_of(epoch), "training_iteration": epoch})
    took = (time.perf_counter() - start) / reports
    logger.log_trial_end(trial)
    return took


@contextmanager
def server(folder: str) -> Iterator[str]:
    """Start an MLflow server with its default number of workers, and yield its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += [
        "--backend-store-uri",
        f"sqlite:///{folder}/server.db",
        "--artifacts-destination",
        f"{folder}/artifacts",
    ]
    quiet = subprocess.DEVNULL
    # Without the eight processes that evaluate language models.
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True, cwd=folder, env=environment)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 120
    try:
        while True:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=2)
                break
            except (urllib.error.URLError, OSError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.3)
        yield url
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=20)


def apart(*arguments: object) -> Any:
    """Run this script in another process and return its result."""
    command = [sys.executable, __file__, *map(str, arguments)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=100)
    parser.add_argument("--reports", type=int, default=50)
    parser.add_argument("--peer-reports", type=int, default=20)
    parser.add_argument("--side", choices=(*SIDES, "ray"), help=argparse.SUPPRESS)
    parser.add_argument("--uri", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side == "ray":
        return print(json.dumps(callback(given.uri, given.peer_reports)))
    if given.side:
        return print(json.dumps(drive(given.side, given.uri, given.trials, given.at_once, given.reports)))

    from importlib.metadata import version

    size = ("--trials", given.trials, "--at-once", given.at_once, "--reports", given.reports)
    print(
        f"mlflow {version('mlflow')}, ray {version('ray')}, {os.cpu_count()} CPUs: {given.trials} trials, "
        f"{given.at_once} at a time, {given.reports} reports of {METRICS} metrics, one a second each"
    )
    print("                         search   longer   waits at   calls   of wall   CPU of the   driver is late")
    print("                                           the end    a report            threads    with a report")
    with tempfile.TemporaryDirectory() as folder, server(folder) as url:
        base = 0.0
        for side in SIDES:
            found = apart("--side", side, "--uri", url if side == "http" else "", *size)
            seconds = found["seconds"]
            base = base or seconds
            print(
                f"  {NAMES[side]:20} {seconds:8.1f} s  {100 * (seconds / base - 1):+5.1f} %  {found['waited']:6.1f} s "
                f"{found['inside_ms']:8.3f} ms  {100 * found['inside'] / seconds:5.2f} %  "
                f"{100 * found['cpu'] / seconds:6.1f} %    {found['late_ms']:8.1f} ms",
                flush=True,
            )
        ours = found["inside_ms"] / 1e3
        theirs = apart("--side", "ray", "--uri", url, "--peer-reports", given.peer_reports)
    print(f"  MLflowLoggerCallback, mlflow server: {1e3 * theirs:.0f} ms a report on Tune's event loop,")
    share = 100 * theirs * given.trials * given.reports / base
    print(f"    {theirs / ours:.0f}x of what ours takes there; for all of these reports {share:.0f} % of wall")


if __name__ == "__main__":
    main()
