"""Two whole searches: one that ends at its target, and one that starts from it and ends on a plateau."""

import json

import optuna
import pyarrow.parquet as pq
import pytest
from mlflow.tracking import MlflowClient
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from search.experiment.warm_start import load
from search.study.trial import get_outcome, gpu_seconds_used


def finished(cli, done, name):
    """The JSON of a search, its trials, its rows, and its runs in MLflow by name."""
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    folder = cli.folder / "runs" / name
    storage = JournalStorage(JournalFileBackend(str(folder / "study.journal")))
    trials = optuna.load_study(study_name=name, storage=storage).trials
    client = MlflowClient(result["mlflow"]["tracking_uri"])
    runs = client.search_runs([result["mlflow"]["experiment_id"]], f"tags.search = '{name}'", max_results=1000)
    return result, trials, pq.read_table(folder / "trials.parquet").to_pylist(), runs


@pytest.fixture(scope="module")
def cli(make_cli):
    return make_cli()


@pytest.fixture(scope="module")
def reached(cli):
    """A search that is to find a loss, given as a file; it would else go on for minutes."""
    (cli.folder / "reach.yaml").write_text(
        "task: toy.py:Toy\n"
        "name: reached\n"
        "trials: 500\n"
        "concurrency: 2\n"
        "stop_when: val/loss<0.02\n"
        "set: {pause_s: 0.05}\n"
        "try:\n- {lr: 0.05, precision: bf16}\n- lr=0.02\n- lr=5e-2,precision=bf16\n"
    )
    return finished(cli, cli.run("--config", "reach.yaml", "--json", timeout=300), "reached")


def test_the_defaults_and_the_points_come_first(reached):
    _, trials, _, _ = reached
    begun = [trial.params for trial in trials if trial.state != optuna.trial.TrialState.WAITING]
    expected = [
        {"precision": "fp32", "lr": 0.01},
        {"precision": "bf16", "lr": 0.05},
        {"precision": "fp32", "lr": 0.02},
    ]
    assert begun[:3] == expected[: len(begun)]


def test_the_first_trial_that_meets_the_target_is_completed_and_is_the_best(reached):
    result, trials, rows, _ = reached
    best = result["best"]
    assert best["value"] < 0.02
    assert get_outcome(trials[best["trial_id"]]) == "completed"
    assert result["stopped"] == f"val/loss<0.02 in trial {best['trial_id']}"
    met = {row["trial_id"] for row in rows if row["val/loss"] is not None and row["val/loss"] < 0.02}
    assert best["trial_id"] in met
    assert len(met) <= 2, "those that trained in that moment"
    assert set(result["outcomes"]) <= {"completed", "pruned", "interrupted"}


def test_mlflow_has_the_reason_on_the_parent(reached):
    result, _, _, runs = reached
    (parent,) = [run for run in runs if run.info.run_id == result["mlflow"]["run_id"]]
    assert parent.data.tags["stopped"] == result["stopped"]


def test_another_search_learns_from_it_and_ends_when_its_best_gets_no_better(cli, reached):
    _, earlier, _, _ = reached
    options = ["--warm-start", "reached", "--patience", "4", "--gpu-hours", "100", "--trials", "500"]
    done = cli.run("toy.py:Toy", *options, "--concurrency", "2", "--name", "next", "--json", timeout=300)
    result, trials, rows, runs = finished(cli, done, "next")
    begun = [trial for trial in earlier if trial.state != optuna.trial.TrialState.WAITING]
    fitting = [trial for trial in begun if trial.intermediate_values]
    assert f"{len(fitting)} of {len(begun)} trials of reached fit" in done.stderr
    assert len(load(cli.folder / "runs" / "next")) == len(fitting)

    best = reached[0]["best"]["config"]
    points = [(0.01, "fp32"), (best["lr"], best["precision"])]
    assert [(trial.params["lr"], trial.params["precision"]) for trial in trials[:2]] == points

    assert result["stopped"] == "no better val/loss in 4 trials"
    assert "stopping: no better val/loss in 4 trials" in done.stderr
    count = sum(result["outcomes"].values())
    assert 5 <= count == len({row["trial_id"] for row in rows}) == len(trials)
    assert {int(run.data.tags["trial_id"]) for run in runs if "trial_id" in run.data.tags} == set(range(count))
    assert all(gpu_seconds_used(trial) > 0 for trial in trials)
