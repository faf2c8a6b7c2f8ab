"""Search over a built-in task under several seeds of the search, and say what each search answers.

Each search is the command that a user calls, with confirming runs. With --local, one process makes the same choices and
trains the same trials, without Ray and MLflow. A search is not repeated if FOLDER has its result. "gain" is what its
answer gains over the defaults by the confirming runs, with their 90 % interval, and "shown" whether the search calls it
shown. The answer and the defaults are then trained again, under seeds that no search used: "again" is the difference of
their last reports, with its standard error. Importances are those of the trials of all searches.

    python benchmarks/models/searches.py FOLDER [--task arc] [--confirm 24] [--seeds 10] [--again 10] [--local]
"""

import copy
import json
import os
import pickle
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.models.local_search import search_locally
from benchmarks.models.task_runs import Report, train_all
from benchmarks.recording import SEARCH, Row, Table, create_parser, print_progress, print_result
from searchlight.search.analysis.importance import find_importances
from searchlight.search.analysis.result import SearchResult
from searchlight.search.folder.locations import parse_storage
from searchlight.search.study.record import SearchRecord, build_record, load_search
from searchlight.trainables.flatten import flatten
from searchlight.trainables.registry import load_class

POLL_S = 0.25  # between two readings of the CPU time
Found = tuple[dict[str, Any], SearchRecord]  # what --json prints, and all trials
FIRST_NEW_SEED = 1000  # the seeds of searches and of their confirming runs are others


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--task", default="arc")
    parser.add_argument("--confirm", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--again", type=int, default=10, help="seeds under which answers are trained again; 0: not")
    parser.add_argument("--metrics", nargs="*", default=[], help="other metrics of the trainings again")
    parser.add_argument("--local", action="store_true", help="search in this process")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run = search_here if arguments.local else search
    both = [run(arguments.task, arguments.confirm, seed, arguments.folder) for seed in range(arguments.seeds)]
    found, records = [result for result, _ in both], [record for _, record in both]
    searched = [*records[0].about["defaults"]]
    rows = [describe(seed, each, searched) for seed, each in enumerate(found)]
    if arguments.again:
        add_trainings(rows, found, records[0], arguments.again, arguments.metrics)
    every = {
        "searches": len(rows),
        "shown": sum(row["shown"] == "yes" for row in rows),
        "shortest": min(row["duration"] for row in rows),
        "cpu": statistics.fmean(row["cpu"] for row in rows),
    }
    figures: dict[str, Table] = {"all": every, "searches": rows, "importances": find_shares(records)}
    about = f"{len(records[0].trials)} trials and {arguments.confirm} confirming runs in each search"
    print_result(figures, {"duration": "s", "cpu": "s", "shortest": "s"}, about)


def search_here(task: str, confirm: int, seed: int, folder: Path, **options: Any) -> Found:
    """Search in this process, or read the result. `duration` and `cpu` are seconds of the trainings and choices."""
    path = folder / f"s{seed}.pickle"
    if path.exists():
        known: Found = pickle.loads(path.read_bytes())
        return known
    folder.mkdir(parents=True, exist_ok=True)
    began, used = time.perf_counter(), time.process_time()
    record = search_locally(task, confirm, seed, **options)
    result = SearchResult.from_record(record).as_json()
    result |= {"duration": time.perf_counter() - began, "cpu": time.process_time() - used}
    print_progress(describe_search(seed, result))
    path.write_bytes(pickle.dumps((result, record)))
    return result, record


def search(task: str, confirm: int, seed: int, folder: Path) -> Found:
    """Run a search as a user does, or read its result. `duration` and `cpu` are seconds of the whole command."""
    path, place = folder / f"s{seed}.json", parse_storage(str(folder)) / f"s{seed}"
    if path.exists():
        return json.loads(path.read_text()), load_search(place)
    folder.mkdir(parents=True, exist_ok=True)
    options = ["--confirm", str(confirm), "--seed", str(seed), "--storage", str(folder), "--name", f"s{seed}"]
    env = os.environ | {"RAY_worker_niceness": "0"}  # by default 15: other programs on a busy machine would stop them
    began = time.perf_counter()
    with (folder / f"s{seed}.out").open("w+") as output:
        command = [sys.executable, str(SEARCH), task, *options, "--quiet", "--json"]
        process = psutil.Popen(command, stdout=output, env=env)
        cpu = measure_cpu(process)
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, process.args)
        output.seek(0)
        result: dict[str, Any] = json.load(output)
    result |= {"duration": time.perf_counter() - began, "cpu": cpu}
    path.write_text(json.dumps(result))
    print_progress(describe_search(seed, result))
    return result, load_search(place)


def describe_search(seed: int, result: Mapping[str, Any]) -> str:
    statement = result["best"]["confirmed"]["statement"]
    return f"search {seed}: {result['duration']:.0f} s, {result['cpu']:.0f} CPU-s, {statement}"


def measure_cpu(process: psutil.Popen) -> float:
    """Wait for a process. Return the CPU seconds that it and its descendants had used when they were last seen."""
    seconds: dict[tuple[int, float], float] = {}
    while process.poll() is None:
        try:
            for each in (process, *process.children(recursive=True)):
                times = each.cpu_times()
                seconds[each.pid, each.create_time()] = times.user + times.system
        except psutil.NoSuchProcess:
            pass  # one ended meanwhile
        time.sleep(POLL_S)
    return sum(seconds.values())


def describe(seed: int, found: Mapping[str, Any], searched: Sequence[str]) -> Row:
    """Return a row with the answer of a search: the confirmed config, or the finalist that came nearest."""
    (confirmation,) = found["confirmations"]
    finalist = next(config for config in confirmation["configs"] if config["trial"] is not None)
    low, high = finalist["difference_interval"]
    statement, config = found["best"]["confirmed"]["statement"], flatten(found["best"]["config"])
    return {
        "seed": seed,
        "answer": "the defaults" if confirmation["chosen"] is None else f"trial {confirmation['chosen']}",
        **{name: config[name] for name in searched},
        "shown": "yes" if "beats the defaults by" in statement else "no",
        "gain": finalist["difference"],
        "gain_low": low,
        "gain_high": high,
        "completed": found["outcomes"].get("completed", 0),
        "duration": found["duration"],
        "cpu": found["cpu"],
    }


def add_trainings(
    rows: Sequence[Row], found: Sequence[Mapping[str, Any]], record: SearchRecord, seeds: int, metrics: Sequence[str]
) -> None:
    """Train the defaults and all answers again, and add to each row what its answer gains."""
    task = load_class(record.about["config"]["task"])
    answers = [each["best"]["config"] for each in found]
    defaults = {**answers[0], **record.about["defaults"]}
    reports = train_all(task, [defaults, *answers], seeds, 2, FIRST_NEW_SEED)
    metric, sign = record.objective.metric, 1.0 if record.objective.mode == "max" else -1.0
    base = get_values(reports[0], metric)
    for row, own in zip(rows, reports[1:], strict=True):
        values = get_values(own, metric)
        error = np.sqrt((values.var(ddof=1) + base.var(ddof=1)) / len(base))
        row["again"] = sign * (values.mean() - base.mean())
        row["again_error"] = error
        row |= {f"{name}_again": get_values(own, name).mean() for name in metrics}


def get_values(reports: Sequence[Report], metric: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([report[metric] for report in reports])


def find_shares(records: Sequence[SearchRecord]) -> list[Row]:
    """Return the importance of each parameter in the trials of all searches."""
    trials = [copy.copy(trial) for record in records for trial in record.trials]
    for number, trial in enumerate(trials):
        trial.number = number
    first = records[0]
    found = find_importances(build_record("all", trials, first.objectives, first.about))
    return [
        {
            "parameter": one.name,
            "share": one.share,
            "low": one.low,
            "high": one.high,
            "chance": found.chance,
            "matters": "yes" if one.matters else "no",
        }
        for one in found.each
    ]


if __name__ == "__main__":
    main()
