"""A whole search over a task that diverges for real, in each precision at a learning rate of its own."""

import json

import optuna
import pyarrow.parquet as pq
import pytest
from mlflow.tracking import MlflowClient
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from trainables.precision import DIVERGENCE_KINDS

TRIALS = 40


@pytest.fixture(scope="module")
def searched(make_cli):
    """The command line, and the object that the search printed."""
    cli = make_cli()
    options = ["--trials", str(TRIALS), "--scheduler", "none", "--sampler", "random", "--seed", "0", "--name", "steep"]
    done = cli.run("steep.py:Steep", *options, "--search", "precision=fp32,fp16", "--json")
    assert done.returncode == 0, done.stderr
    return cli, json.loads(done.stdout)


def bound_of(divergence):
    (condition,) = divergence["region"]["conditions"]
    assert (condition["parameter"], condition["relation"]) == ("lr", ">=")
    return condition["value"]


def test_each_precision_has_its_bound_its_kinds_and_its_first_epoch(searched):
    _, result = searched
    found = {divergence["precision"]: divergence for divergence in result["divergence"]}
    assert set(found) == {"fp16", "fp32"}
    assert 5 < bound_of(found["fp16"]) < 90 < bound_of(found["fp32"]) < 1000
    assert set(found["fp32"]["kinds"]) == {"loss"}
    assert "loss_scale" in found["fp16"]["kinds"]
    for divergence in found.values():
        assert divergence["first_epoch"] == 1
        region = divergence["region"]
        assert region["trials"] - region["diverged"] + region["diverged_elsewhere"] <= 1
        assert region["diverged"] + region["diverged_elsewhere"] == divergence["diverged"]
        assert sum(divergence["kinds"].values()) == divergence["diverged"]
    assert sum(divergence["diverged"] for divergence in found.values()) == result["outcomes"]["diverged"]
    assert sum(divergence["trials"] for divergence in found.values()) == TRIALS


def test_every_diverged_trial_has_a_kind_beside_its_reason_everywhere(searched):
    cli, result = searched
    folder = cli.folder / "runs" / "steep"
    storage = JournalStorage(JournalFileBackend(str(folder / "study.journal")))
    trials = optuna.load_study(study_name="steep", storage=storage).trials
    assert {trial.state for trial in trials} == {TrialState.COMPLETE, TrialState.PRUNED}
    kinds = {}
    for trial in trials:
        if trial.state == TrialState.PRUNED:
            assert trial.user_attrs["outcome"] == "diverged"
            assert trial.constraints == {"diverged": 1.0}
            kinds[trial.number] = trial.user_attrs["divergence"]["kind"]
    assert set(kinds.values()) <= set(DIVERGENCE_KINDS)
    rows = pq.read_table(folder / "trials.parquet").to_pylist()
    assert {row["trial_id"]: row["divergence"] for row in rows if row["outcome"] == "diverged"} == kinds
    reasons = {row["divergence"]: row["reason"] for row in rows if row["outcome"] == "diverged"}
    assert reasons["loss"].startswith("train/loss rose to ")
    assert reasons["loss_scale"].startswith("loss scale 6.10352e-05 cannot be lowered")
    assert len(kinds) == result["outcomes"]["diverged"]


def test_the_report_and_the_parent_run_tell_it_in_the_same_words(searched):
    cli, result = searched
    printed = cli.run("steep", script="search/report.py")
    lines = [line for line in printed.stdout.splitlines() if line.startswith("diverged: ")]
    assert [line.split()[1] for line in lines] == ["fp16", "fp32"]
    assert all(", where lr >= " in line for line in lines)
    run = MlflowClient(result["mlflow"]["tracking_uri"]).get_run(result["mlflow"]["run_id"])
    assert [line for line in run.data.tags["mlflow.note.content"].splitlines() if "diverged" in line] == [
        f"- {line}" for line in lines
    ]
