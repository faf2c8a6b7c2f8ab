"""A whole search that confirms its best trials, is interrupted while it does, and goes on, as a user runs it."""

import json
import signal

import optuna
import pyarrow.parquet as pq
import pytest
from mlflow.tracking import MlflowClient
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from searchlight.search.study.record import load_search
from searchlight.search.study.trial import get_outcome
from tests.end_to_end.processes import contains, wait_until

OPTIONS = ["--trials", "4", "--name", "sure", "--concurrency", "2", "--confirm", "6", "precision=fp32", "epochs=3"]


@pytest.fixture(scope="module")
def search(make_cli):
    """The command line, what the interrupted driver left, and what the resumed one printed."""
    cli = make_cli()
    cli.has_preflight = cli.has_mlflow = True
    folder = cli.folder / "runs" / "sure"
    driver = cli.start("toy.py:Toy", *OPTIONS, "--set", "pause_s=0.1")

    wait_until(lambda: contains(folder / "study.journal", '"confirms"'), driver)
    driver.send_signal(signal.SIGINT)
    interrupted = cli.finished(driver)
    left = load_search(folder)
    resumed = cli.run("--resume", "sure", "--register", "sure", "--json")
    assert resumed.returncode == 0, resumed.stderr
    return folder, interrupted, left, resumed


@pytest.mark.slow
def test_interrupted_confirmation_goes_on_after_a_resume(search):
    folder, interrupted, left, resumed = search
    assert "resume: " in interrupted.stderr
    assert "interrupted" in {get_outcome(run) for run in left.confirming_runs}
    assert len(left.trials) == 4
    assert "\npreflight: " in interrupted.stderr
    assert "preflight: " not in resumed.stderr, "the same task on the same machine has been audited"
    assert "interrupted" not in {get_outcome(trial) for trial in left.trials}
    record = load_search(folder)
    assert len(record.trials) == 4
    runs = record.confirming_runs
    assert {get_outcome(run) for run in runs} == {"completed"}
    assert 4 <= len(runs) <= 6
    keys = [(run.user_attrs["confirms"]["trial"], run.user_attrs["confirms"]["seed"]) for run in runs]
    assert len(set(keys)) == len(keys), "no run twice"
    assert all(sorted(run.intermediate_values) == [1, 2, 3] for run in runs)
    assert "confirms the defaults with seed" in interrupted.stderr + resumed.stderr


@pytest.mark.slow
def test_confirmed_answer_is_the_same_everywhere(search):
    folder, _, _, resumed = search
    told = json.loads(resumed.stdout)
    confirmed = told["best"]["confirmed"]
    assert {*confirmed} >= {"mean", "interval", "seeds", "probability_best", "probability_beats_defaults"}
    rows = pq.read_table(folder / "trials.parquet").to_pylist()
    purposes = {row["trial_id"]: row["purpose"] for row in rows}
    assert sorted(purposes.values()) == ["confirm"] * (len(purposes) - 4) + ["search"] * 4
    client = MlflowClient(told["mlflow"]["tracking_uri"])
    found = client.search_runs([told["mlflow"]["experiment_id"]], max_results=100)
    children = {int(run.data.tags["trial_id"]): run for run in found if "trial_id" in run.data.tags}
    assert {number: run.data.tags["purpose"] for number, run in children.items()} == purposes
    assert {run.info.status for run in children.values()} == {"FINISHED"}
    parent = client.get_run(told["mlflow"]["run_id"])
    assert parent.data.metrics["confirmed/val/loss"] == pytest.approx(confirmed["mean"])
    assert parent.data.tags["confirmed"] == confirmed["statement"]
    assert "<h2>The confirmation</h2>" in (folder / "report.html").read_text()
    assert confirmed["statement"] in (folder / "report.html").read_text().replace("Trial", "trial").replace("No", "no")
    study = optuna.load_study(
        study_name="sure", storage=JournalStorage(JournalFileBackend(str(folder / "study.journal")))
    )
    assert purposes[study.best_trial.number] == "search"


@pytest.mark.slow
def test_model_is_that_of_the_best_confirming_run(search):
    folder, _, _, resumed = search
    told = json.loads(resumed.stdout)
    run = next(run for run in load_search(folder).confirming_runs if run.number == told["best"]["confirmed"]["run"])
    assert told["best"]["config"] == run.user_attrs["config"]
    assert told["best"]["checkpoint"].startswith(f"{folder}/checkpoints/{run.number}/")
    client, uri = MlflowClient(told["mlflow"]["tracking_uri"]), told["mlflow"]["model"]
    tags = client.get_model_version(*uri.removeprefix("models:/").split("/")).tags
    assert float(tags["value"]) == min(run.intermediate_values.values()), "of its checkpoint, not of the search"
