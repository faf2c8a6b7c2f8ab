"""A search that was run as a user runs it, and everything that it left."""

import json
from pathlib import Path

import optuna
import pyarrow.parquet as pq
from mlflow.tracking import MlflowClient
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend


class FinishedSearch:
    """Read the search `name`, which the command line `cli` ran with --json and `done` is the end of.

    Attributes:
        json: What it printed.
        rows: The rows of its Parquet file.
    """

    def __init__(self, cli, done, name):
        self.cli, self.done, self.folder = cli, done, cli.folder / "runs" / name
        assert done.returncode == 0, done.stderr
        self.json = json.loads(done.stdout)
        self.rows = pq.read_table(self.folder / "trials.parquet").to_pylist()
        self.mlflow = MlflowClient(self.json["mlflow"]["tracking_uri"]) if self.json["mlflow"] else None
        storage = JournalStorage(JournalFileBackend(str(self.folder / "study.journal")))
        self.study = optuna.load_study(study_name=name, storage=storage)

    @classmethod
    def run(cls, cli, name, *arguments, **options):
        cli.has_mlflow = True
        return cls(cli, cli.run(*arguments, "--name", name, "--json", **options), name)

    @property
    def parent(self):
        return self.mlflow.get_run(self.json["mlflow"]["run_id"])

    def children(self):
        runs = self.mlflow.search_runs([self.json["mlflow"]["experiment_id"]], max_results=1000)
        return [run for run in runs if run.data.tags.get("mlflow.parentRunId") == self.json["mlflow"]["run_id"]]

    def epochs(self):
        """The epochs that each trial reported, in order."""
        found = {}
        for row in self.rows:
            if row["epoch"] is not None:
                found.setdefault(row["trial_id"], []).append(row["epoch"])
        return found

    def trials_ended(self):
        """Outcome and reason of each trial."""
        return {trial.number: (trial.user_attrs["outcome"], trial.user_attrs["reason"]) for trial in self.study.trials}


def artifacts_of(run):
    return Path(run.info.artifact_uri.removeprefix("file://"))
