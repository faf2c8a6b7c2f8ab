"""Whole searches under a real limit of memory, and with a bound of a metric."""

import pytest
from optuna.trial import TrialState

from tests.end_to_end.finished_search import FinishedSearch

pytestmark = pytest.mark.slow
FITTING = 2**8  # width times batch size of a micro-batch
OPTIONS = ["--scheduler", "none", "--concurrency", "1", "--confirm", "0"]
FIXED = ["--set", "epochs=1", "precision=fp32", "lr=0.01"]


def test_lack_of_memory_is_told_with_its_region(make_cli):
    """The sampler is told, the region is printed, and nothing is repeated, also after a resume."""
    cli = make_cli()
    options = [
        "wide.py:Wide",
        *OPTIONS,
        *FIXED,
        "--trials",
        "14",
        "--sampler",
        "random",
        "--search",
        "width=8..256:log",
    ]
    found = FinishedSearch.run(cli, "wide", *options)
    lost = {trial.number for trial in found.study.trials if 4 * trial.params["width"] > FITTING}
    ended = found.trials_ended()
    assert 3 <= len(lost) < 12
    assert {number for number, (outcome, _) in ended.items() if outcome == "infeasible"} == lost
    assert all("can't allocate memory" in ended[number][1] for number in lost)
    assert {t.constraints["memory"] for t in found.study.trials if t.number in lost} == {1.0}
    assert {t.state for t in found.study.trials if t.number in lost} == {TrialState.PRUNED}
    (violated,) = found.json["infeasibility"]
    assert (violated["constraint"], violated["infeasible"], violated["trials"]) == ("memory", len(lost), 14)
    (condition,) = violated["region"]["conditions"]
    assert (condition["parameter"], condition["relation"]) == ("width", ">=")
    printed = cli.invoke("wide", script="search/report.py").stdout
    assert f"infeasible: memory {len(lost)} of 14, where width >= {condition['value']} (" in printed
    assert "Infeasible: memory" in (found.folder / "report.html").read_text()
    resumed = cli.run("--resume", "wide", "--trials", "16", "--json")
    again = FinishedSearch(cli, resumed, "wide")
    assert {number: ended[number] for number in range(14)} == dict(list(again.trials_ended().items())[:14])
    assert len(again.study.trials) == 16


def test_trial_continues_with_micro_batches_that_fit(make_cli):
    options = [
        "wide.py:SplitWide",
        *OPTIONS,
        *FIXED,
        "--trials",
        "3",
        "--set",
        "batch_size=16",
        "--search",
        "width=8,32,512",
    ]
    found = FinishedSearch.run(make_cli(), "split", *options)
    ended = {trial.params["width"]: trial for trial in found.study.trials}
    assert {width: trial.user_attrs["outcome"] for width, trial in ended.items()} == {
        8: "completed",
        32: "completed",
        512: "infeasible",
    }
    assert "micro_batches" not in ended[8].user_attrs
    assert ended[32].user_attrs["micro_batches"] == {"batch_size": 8, "accumulation": 2}
    assert ended[32].user_attrs["config"]["batch_size"] == 16
    assert ended[512].user_attrs["micro_batches"] == {"batch_size": 1, "accumulation": 16}
    assert ended[32].value == pytest.approx(ended[8].value, rel=1e-6), "the width changes the memory alone"
    assert "It continues with batch_size=8, accumulation=2" in found.done.stderr


def test_best_trial_meets_the_constraint(make_cli):
    options = ["wide.py:Wide", *OPTIONS, *FIXED, "--trials", "4", "--search", "width=8,16,32,64"]
    found = FinishedSearch.run(make_cli(), "bound", *options, "--constraint", "val/latency_ms<=20")
    outcomes = {trial.params["width"]: trial.user_attrs["outcome"] for trial in found.study.trials}
    assert outcomes == {8: "completed", 16: "completed", 32: "infeasible", 64: "infeasible"}
    assert found.json["best"]["config"]["width"] in (8, 16)
    assert {t.params["width"]: t.constraints["val/latency_ms<=20"] for t in found.study.trials} == {
        8: -12.0,
        16: -4.0,
        32: 12.0,
        64: 44.0,
    }
    assert found.json["outcomes"] == {"completed": 2, "infeasible": 2}
