"""A search in a bucket, submitted as a job, of which one process after the other is killed."""

import io
from collections import Counter

import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient

from searchlight.search.storage.bucket_journal import read_records
from searchlight.search.study.record import load_search
from searchlight.search.study.trial import get_reports
from searchlight.trainables.filesystem.paths import parse_path

TRIALS, EPOCHS = 4, 15
pytestmark = pytest.mark.slow


class Study:
    """The study of the search in a bucket, of which each look must find all reports of the looks before."""

    def __init__(self, place):
        self.place = place
        self.reports = {}

    def look(self):
        """The loss of each report, by trial and epoch."""
        reports = {
            (trial.number, epoch): report["metrics"]["val/loss"]
            for trial in load_search(self.place).trials
            for epoch, report in get_reports(trial).items()
        }
        assert self.reports.items() <= reports.items(), "no report is lost, and none is made again"
        self.reports = reports
        return reports

    def wait_for(self, count, job):
        """Wait until `job` has made so many further reports."""
        job.wait_until(lambda: any(b"report/" in record for record in read_records(self.place)), "report")
        wanted = len(self.look()) + count
        job.wait_until(lambda: len(self.look()) >= wanted, f"{wanted} reports")


@pytest.fixture
def study(bucket, monkeypatch):
    server, uri = bucket
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    return Study(parse_path(f"{uri}/team/killed"))


def test_killed_jobs_lose_no_report_and_double_none(cluster, submit, mlflow_server, study):
    place = ["--storage", str(study.place.parent)]
    options = ["--trials", str(TRIALS), "--scheduler", "none", "--no-preflight"]
    options += ["--set", f"epochs={EPOCHS}", "pause_s=0.25", "precision=fp32"]
    first = submit("first", "toy.py:Toy", "--name", "killed", *place, *options)
    study.wait_for(6, first)
    kill(cluster.workers[0], "ray::RayTrainWorker")
    study.wait_for(6, first)
    kill(cluster.head, "search/run.py")
    first.wait()
    assert not first.succeeded

    second = submit("second", "--resume", "killed", *place)
    study.wait_for(6, second)
    kill(cluster.head, "gcs_server")
    kill(cluster.head, "raylet/raylet")
    second.wait()
    cluster.head.unplug()

    cluster.replace_head()
    third = submit("third", "--resume", "killed", *place)
    study.wait_for(6, third)
    cluster.ray("job", "stop", "third")
    third.wait()
    study.look()

    last = submit("last", "--resume", "killed", *place)
    assert f"{TRIALS} completed" in last.wait()
    every = Counter((trial, epoch) for trial in range(TRIALS) for epoch in range(1, EPOCHS + 1))
    assert Counter(study.look().keys()) == every
    rows = pq.read_table(io.BytesIO((study.place / "trials.parquet").read_bytes())).to_pylist()
    assert Counter((row["trial_id"], row["epoch"]) for row in rows) == every
    assert Counter(read_mlflow(mlflow_server)) == every


def kill(machine, word):
    found = machine.find_processes(word)
    assert found, f"no process of {word}"
    for process in found:
        process.kill()


def read_mlflow(server):
    """The trial and epoch of each report, from all runs."""
    client = MlflowClient(server.url)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    for run in client.search_runs(experiments, "tags.trial_id LIKE '%'"):
        assert run.info.status == "FINISHED"
        for metric in client.get_metric_history(run.info.run_id, "val/loss"):
            yield int(run.data.tags["trial_id"]), metric.step
