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
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.driver.mlflow_server import MlflowServer
from benchmarks.recording import create_parser, describe_versions, print_progress, print_result

METRICS = 20
SIDES = ("none", "sqlite", "http")
UNITS = {
    **dict.fromkeys(("search", "wait_at_end"), "s"),
    **dict.fromkeys(("calls_per_report", "late", "per_report"), "ms"),
    **dict.fromkeys(("longer", "calls_share", "sender_cpu", "share_of_search"), "%"),
}
NAMES = {"none": "without MLflow", "sqlite": "SQLite, the default", "http": "mlflow server"}


def build_metrics(epoch: int) -> dict[str, float]:
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

        def notify(number: int) -> None:
            nonlocal inside
            if tracker is not None:
                before = time.perf_counter()
                tracker.on_trial_changed(study.get_trial(number))
                inside += time.perf_counter() - before

        def begin() -> int:
            number, values = study.ask(space)
            study.record_config(number, values)
            notify(number)
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
            metrics, now = build_metrics(epoch), time.time()
            study.report(number, epoch, metrics["val/score"], {"metrics": metrics, "checkpoint": None, "time": now})
            notify(number)
            if epoch < reports:
                heapq.heappush(due, (at + 1, number, epoch + 1))
                continue
            study.end(number, "completed")
            notify(number)
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
            check_history(tracker, trials, reports)
        per_report = 1e3 / (trials * reports)
        return {
            "seconds": seconds,
            "waited": seconds - trained,
            "inside": inside,
            "cpu": cpu,
            "late_ms": late * per_report,
            "inside_ms": inside * per_report,
        }


def check_history(tracker: Any, trials: int, reports: int) -> None:
    """Assert that MLflow has every report of the last trial."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracker._runs.tracking_uri)
    (run,) = client.search_runs([tracker.experiment_id], f"tags.trial_id = '{trials - 1}'", max_results=5)
    history = client.get_metric_history(run.info.run_id, "val/score")
    assert len(history) == reports, f"{len(history)} reports of {reports} came to MLflow"


def measure_callback(uri: str, reports: int) -> float:
    """Measure the seconds per report of Ray's MLflowLoggerCallback."""
    from ray.air.integrations.mlflow import MLflowLoggerCallback
    from ray.tune.experiment import Trial

    logger = MLflowLoggerCallback(tracking_uri=uri, experiment_name="callback")
    logger.setup()
    trial = Trial("peer", config={"lr": 0.1, "decay": 0.2}, stub=True)
    logger.log_trial_start(trial)
    start = time.perf_counter()
    for epoch in range(1, reports + 1):
        logger.log_trial_result(epoch, trial, {**build_metrics(epoch), "training_iteration": epoch})
    took = (time.perf_counter() - start) / reports
    logger.log_trial_end(trial)
    return took


def measure_apart(*arguments: object) -> Any:
    """Run this script in another process and return its result."""
    command = [sys.executable, __file__, *map(str, arguments)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=100)
    parser.add_argument("--reports", type=int, default=50)
    parser.add_argument("--peer-reports", type=int, default=20)
    parser.add_argument("--side", choices=(*SIDES, "ray"), help=argparse.SUPPRESS)
    parser.add_argument("--uri", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side == "ray":
        return print(json.dumps(measure_callback(given.uri, given.peer_reports)))
    if given.side:
        return print(json.dumps(drive(given.side, given.uri, given.trials, given.at_once, given.reports)))

    size = ("--trials", given.trials, "--at-once", given.at_once, "--reports", given.reports)
    rows = []
    with tempfile.TemporaryDirectory() as folder, MlflowServer(Path(folder)) as server:
        for side in SIDES:
            found = measure_apart("--side", side, "--uri", server.url if side == "http" else "", *size)
            seconds = found["seconds"]
            base = rows[0]["search"] if rows else seconds
            row = {"store": NAMES[side], "search": seconds, "longer": 100 * (seconds / base - 1)}
            row |= {"wait_at_end": found["waited"], "calls_per_report": found["inside_ms"]}
            row |= {"calls_share": 100 * found["inside"] / seconds, "sender_cpu": 100 * found["cpu"] / seconds}
            rows.append(row | {"late": found["late_ms"]})
            print_progress(f"{NAMES[side]}: {seconds:.1f} s")
        theirs = 1e3 * measure_apart("--side", "ray", "--uri", server.url, "--peer-reports", given.peer_reports)
    callback = {"per_report": theirs, "times_ours": theirs / rows[-1]["calls_per_report"]}
    callback["share_of_search"] = 100 * theirs * given.trials * given.reports / 1e3 / rows[0]["search"]
    about = (
        f"{describe_versions(('mlflow', 'ray'))}, {os.cpu_count()} CPUs: {given.trials} trials, {given.at_once} at a "
        f"time, {given.reports} reports of {METRICS} metrics, one a second each"
    )
    print_result({"stores": rows, "callback": callback}, UNITS, about)


if __name__ == "__main__":
    main()
