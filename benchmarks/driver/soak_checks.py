"""What must hold at the end of a search that soak.py ran under faults.

Each check returns what it found, or raises AssertionError.
"""

import random
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import torch
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from optuna.trial import FrozenTrial

from benchmarks.driver.soak_task import Soak
from benchmarks.recording import Row
from searchlight.search.study.record import load_search
from searchlight.search.study.trial import get_outcome, get_reports
from searchlight.trainables.filesystem.paths import StoragePath, local_copy
from searchlight.trainables.training.trainer import train

METRIC = "val/loss"
LEFT_S = 60  # for the processes of killed drivers to end


def check(folder: StoragePath, uri: str, trained: int, curves: int, draw: random.Random) -> dict[str, str]:
    """Check the study in `folder`, its Parquet file, the runs in MLflow at `uri`, and `curves` learning curves.

    Args:
        trained: The number of epochs that were evaluated, repeated ones included.
    """
    trials = load_search(folder).trials
    reports = {trial.number: read_curve(trial) for trial in trials}
    counted = sum(map(len, reports.values()))
    with local_copy(folder / "trials.parquet") as file:
        table = pq.read_table(file).to_pylist()
    return {
        "study": check_study(trials),
        "trials.parquet": check_parquet(table, trials, reports),
        "MLflow": check_mlflow(uri, trials, reports),
        "curves": check_curves(trials, reports, draw.sample(range(len(trials)), min(curves, len(trials)))),
        "repeated": f"{trained - counted} of {trained} epochs were trained again ({counted} reports)",
    }


def read_curve(trial: FrozenTrial) -> dict[int, float]:
    return {epoch: report["metrics"][METRIC] for epoch, report in get_reports(trial).items()}


def check_study(trials: Sequence[FrozenTrial]) -> str:
    outcomes = [get_outcome(trial) for trial in trials]
    counts = {outcome: outcomes.count(outcome) for outcome in sorted({*outcomes})}
    numbers = [trial.number for trial in trials]
    require(numbers == list(range(len(trials))), f"numbers of trials: {numbers}")
    lost = [(trial.number, get_outcome(trial), trial.user_attrs.get("reason")) for trial in trials]
    lost = [each for each in lost if each[1] not in ("completed", "pruned")]
    require(not lost, f"trials that a fault ended: {lost}")
    for trial in trials:
        epochs = list(get_reports(trial))
        require(epochs == list(range(1, len(epochs) + 1)), f"epochs of trial {trial.number}: {epochs}")
    return f"{len(trials)} trials, none lost: {counts}; each epoch once"


def check_parquet(table: Sequence[Row], trials: Sequence[FrozenTrial], reports: dict[int, dict[int, float]]) -> str:
    rows = [row for row in table if row["epoch"] is not None]
    found = sorted((row["trial_id"], row["epoch"], row[METRIC], row["outcome"]) for row in rows)
    wanted = sorted(
        (trial.number, epoch, value, get_outcome(trial))
        for trial in trials
        for epoch, value in reports[trial.number].items()
    )
    require(found == wanted, f"{len(found)} rows in trials.parquet, {len(wanted)} reports")
    return f"{len(found)} rows, the reports of the study"


def check_mlflow(uri: str, trials: Sequence[FrozenTrial], reports: dict[int, dict[int, float]]) -> str:
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("Soak")
    assert experiment is not None
    runs: list[Run] = []
    page: str | None = ""
    while page is not None:
        found = client.search_runs([experiment.experiment_id], page_token=page or None)
        runs += found
        page = found.token or None
    children = [run for run in runs if "trial_id" in run.data.tags]
    require(len(runs) == len(children) + 1, f"{len(runs) - len(children)} parent runs")
    outcomes = sorted((int(run.data.tags["trial_id"]), run.data.tags.get("outcome")) for run in children)
    wanted = [(trial.number, get_outcome(trial)) for trial in trials]
    require(outcomes == wanted, f"outcomes in MLflow: {sorted({*outcomes} ^ {*wanted})}, {len(outcomes)} runs")
    states = {run.info.status for run in runs}
    require("RUNNING" not in states, f"states of runs: {states}")
    for run in children:
        number = int(run.data.tags["trial_id"])
        curve = sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, METRIC))
        require(curve == sorted(reports[number].items()), f"reports of trial {number} in MLflow: {curve}")
    return f"{len(children)} runs of trials under one parent, each report once"


def check_curves(trials: Sequence[FrozenTrial], reports: dict[int, dict[int, float]], numbers: Collection[int]) -> str:
    """Train the trials `numbers` again in this process, without faults, and compare every report bit by bit."""
    torch.set_num_threads(1)
    chosen = [trials[number] for number in numbers]
    for trial in chosen:
        config = Soak.config_class().model_validate(trial.user_attrs["config"])
        again = [metrics[METRIC] for metrics in train(Soak(config), len(reports[trial.number]))]
        require(again == list(reports[trial.number].values()), f"the curve of trial {trial.number} differs")
    epochs = sum(len(reports[trial.number]) for trial in chosen)
    return f"{len(chosen)} trials with {epochs} epochs, equal in each bit to a training without faults"


def check_nothing_left(started: Collection[psutil.Process], folders: Sequence[Path]) -> str:
    """Check that no process that was `started` runs, and that the `folders` of Ray are empty."""
    deadline = time.monotonic() + LEFT_S
    while (left := describe_left(started, folders)) and time.monotonic() < deadline:
        time.sleep(0.5)
    require(not left, f"left of Ray: {left}")
    return f"none of {len(started)} processes" + (", no file of Ray" if folders else "")


def describe_left(started: Collection[psutil.Process], folders: Sequence[Path]) -> list[Any]:
    left: list[Any] = [process for process in started if is_alive(process)]
    return left + [file for folder in folders for file in folder.iterdir()]


def is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
