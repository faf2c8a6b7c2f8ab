"""Searches in one process: their trials, confirming runs and answers are those that the project's choices give."""

import subprocess
import sys

import psutil

from benchmarks.models.local_search import search_locally
from benchmarks.models.searches import describe, find_shares, measure_cpu
from searchlight.search.analysis.result import SearchResult

TASK = "benchmarks/driver/tiny_task.py:Tiny"


def test_search_in_one_process_trains_trials_and_confirming_runs():
    record = search_locally(TASK, confirm=6, seed=1)
    assert len(record.trials) == record.about["config"]["trials"]
    assert len(record.confirming_runs) == 6
    assert {trial.params == record.about["defaults"] for trial in record.trials[:1]} == {True}
    assert {run.user_attrs["config"]["seed"] for run in record.confirming_runs}.isdisjoint({0, 1})
    again = search_locally(TASK, confirm=6, seed=1)
    assert [trial.params for trial in again.trials] == [trial.params for trial in record.trials]
    found = SearchResult.from_record(record).as_json() | {"duration": 1.0, "cpu": 1.0}
    row = describe(1, found, [*record.about["defaults"]])
    assert row["gain_low"] <= row["gain"] <= row["gain_high"]
    assert (row["shown"] == "yes") == ("beats the defaults by" in found["best"]["confirmed"]["statement"])
    config = found["best"]["config"]
    nested = found | {"best": found["best"] | {"config": {"part": config}}}
    assert describe(1, nested, ["part.lr"])["part.lr"] == config["lr"]
    assert {share["parameter"] for share in find_shares([record, again])} == {*record.about["defaults"]}


def test_search_in_one_process_goes_on_after_a_trial_that_diverges(tmp_path):
    task = tmp_path / "rising.py"
    task.write_text(
        "from benchmarks.driver.tiny_task import Tiny\n"
        "from searchlight.trainables.precision import Diverged\n"
        "class Rising(Tiny):\n"
        "    def evaluate(self):\n"
        "        if self.config.lr > 0.03:\n"
        "            raise Diverged('loss rose', agreed=True, kind='loss')\n"
        "        return super().evaluate()\n"
    )
    record = search_locally(f"{task}:Rising", confirm=6, seed=1)
    outcomes = {trial.params["lr"] > 0.03: trial.user_attrs["outcome"] for trial in record.trials}
    assert outcomes == {False: "completed", True: "diverged"}
    assert len(record.confirming_runs) == 6


def test_cpu_time_counts_descendants():
    busy = "import time\nwhile time.process_time() < 1: pass"
    outer = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {busy!r}], check=True)"
    process = psutil.Popen([sys.executable, "-c", outer], stdout=subprocess.DEVNULL)
    assert 0.5 < measure_cpu(process) < 3
