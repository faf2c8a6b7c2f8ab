"""A whole search over a task that diverges for real, in each precision at a learning rate of its own."""

import pytest
from optuna.trial import TrialState

from searchlight.trainables.precision import DIVERGENCE_KINDS
from tests.end_to_end.finished_search import FinishedSearch

TRIALS = 40
pytestmark = pytest.mark.slow  # a whole search, of what tests without Ray show in parts


@pytest.fixture(scope="module")
def search(make_cli):
    options = [
        "--concurrency",
        "1",
        "--trials",
        str(TRIALS),
        "--scheduler",
        "none",
        "--sampler",
        "random",
        "--seed",
        "0",
    ]
    return FinishedSearch.run(make_cli(), "steep", "steep.py:Steep", *options, "--search", "precision=fp32,fp16")


def bound_of(divergence):
    (condition,) = divergence["region"]["conditions"]
    assert (condition["parameter"], condition["relation"]) == ("lr", ">=")
    return condition["value"]


def test_each_precision_has_its_bound_and_its_kinds(search):
    result = search.json
    found = {divergence["precision"]: divergence for divergence in result["divergence"]}
    assert set(found) == {"fp16", "fp32"}
    assert 5 < bound_of(found["fp16"]) < 90 < bound_of(found["fp32"]) < 1000
    assert set(found["fp32"]["kinds"]) == {"loss"}
    assert "loss_scale" in found["fp16"]["kinds"]
    for divergence in found.values():
        assert divergence["first_epoch"] == 1
        region = divergence["region"]
        assert region["trials"] - region["affected"] + region["affected_elsewhere"] <= 1
        assert region["affected"] + region["affected_elsewhere"] == divergence["diverged"]
        assert sum(divergence["kinds"].values()) == divergence["diverged"]
    assert sum(divergence["diverged"] for divergence in found.values()) == result["outcomes"]["diverged"]
    assert sum(divergence["trials"] for divergence in found.values()) == TRIALS


def test_diverged_trial_has_its_kind_everywhere(search):
    trials = search.study.trials
    assert {trial.state for trial in trials} == {TrialState.COMPLETE, TrialState.PRUNED}
    kinds = {}
    for trial in trials:
        if trial.state == TrialState.PRUNED:
            assert trial.user_attrs["outcome"] == "diverged"
            assert trial.constraints == {"diverged": 1.0}
            kinds[trial.number] = trial.user_attrs["divergence"]["kind"]
    assert set(kinds.values()) <= set(DIVERGENCE_KINDS)
    assert {row["trial_id"]: row["divergence"] for row in search.rows if row["outcome"] == "diverged"} == kinds
    reasons = {row["divergence"]: row["reason"] for row in search.rows if row["outcome"] == "diverged"}
    assert reasons["loss"].startswith("train/loss rose to ")
    assert reasons["loss_scale"].startswith("loss scale 6.10352e-05 cannot be lowered")
    assert len(kinds) == search.json["outcomes"]["diverged"]


def test_report_and_parent_run_say_the_same(search):
    printed = search.cli.invoke("steep", script="search/report.py")
    lines = [line for line in printed.stdout.splitlines() if line.startswith("diverged: ")]
    assert [line.split()[1] for line in lines] == ["fp16", "fp32"]
    assert all(", where lr >= " in line for line in lines)
    note = search.parent.data.tags["mlflow.note.content"].splitlines()
    assert [line for line in note if "diverged" in line] == [f"- {line}" for line in lines]
