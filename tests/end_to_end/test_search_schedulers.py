"""A whole search with each scheduler, run as a user runs it."""

import pytest
import torch

from search.schedulers.hyperband import HyperBandScheduler
from tests.conftest import ROOT
from tests.end_to_end.finished_search import FinishedSearch

FROM_PYTHON = f"""
import json
import sys

sys.path.append({str(ROOT)!r})
from search.experiment import SearchConfig, run

options = dict(scheduler="hyperband", sampler="random", trials=9, concurrency=2, name="hyperband", confirm=0)
result = run(SearchConfig(task="toy.py:Toy", set={{"epochs": 9, "precision": "fp32"}}, **options))
assert result.best.value > 0 and result.best.config["precision"] == "fp32"
print(json.dumps(result.as_json()))
"""


pytestmark = pytest.mark.slow  # three whole searches, of schedulers whose decisions tests without Ray show


def run_search(make_cli, scheduler, *arguments, concurrency=2):
    options = ["--scheduler", scheduler, "--concurrency", str(concurrency), "--sampler", "random"]
    found = FinishedSearch.run(make_cli(), scheduler, "toy.py:Toy", *options, *arguments, "precision=fp32")
    assert set(found.json["outcomes"]) <= {"completed", "pruned"}, found.json["outcomes"]
    return found


def test_hyperband_from_python_stops_trials_at_their_rungs(make_cli):
    cli = make_cli()
    (cli.folder / "script.py").write_text(FROM_PYTHON)
    found = FinishedSearch(cli, cli.run(script=cli.folder / "script.py"), "hyperband")
    assert set(found.json["outcomes"]) <= {"completed", "pruned"}
    schedule = HyperBandScheduler.from_config(9, 3, 1, "min")
    epochs = found.epochs()
    assert len(epochs) == 9
    for number, own in epochs.items():
        assert own == list(range(1, own[-1] + 1))
        assert own[-1] in schedule.get_bracket(number).rungs
    assert {9} < {own[-1] for own in epochs.values()}


def test_faster_precision_gets_more_epochs_for_its_gpu_seconds(make_cli):
    rungs = (0.3, 0.9, 2.7)
    options = ["--fidelity", "gpu-seconds", "--max-fidelity", "2.7", "--trials", "9", "--concurrency", "2"]
    fixed = ["--search", "precision=fp32,bf16", "--set", "epochs=99", "--sampler", "qmc"]
    found = FinishedSearch.run(make_cli(), "paced", "paced.py:Paced", *options, *fixed)
    assert set(found.json["outcomes"]) == {"completed", "pruned"}
    epochs = {rung: {"fp32": set(), "bf16": set()} for rung in rungs}
    for number in found.epochs():
        *before, last = [row for row in found.rows if row["trial_id"] == number]
        earlier = before[-1]["gpu_seconds"] if before else 0.0
        assert last["samples"] == 64 * last["epoch"]
        assert last["epoch"] < 99
        rung = max(rung for rung in rungs if rung <= last["gpu_seconds"])
        assert earlier < rung, "it ended with the epoch that reached its rung"
        assert (last["outcome"] == "completed") == (rung == 2.7)
        epochs[rung][last["config/precision"]].add(last["epoch"])
    both = [reached for reached in epochs.values() if all(reached.values())]
    assert both
    assert all(max(reached["bf16"]) > max(reached["fp32"]) for reached in both)
    assert any(epochs[2.7].values()), "one ran to its end"
    trial = found.study.trials[0]
    assert trial.user_attrs["report/1"]["gpu_seconds"] > 0.1


def test_population_continues_with_copies_of_its_best(make_cli):
    arguments = ["--trials", "10", "--population", "4", "--exploit-every", "2", "--seed", "1", "--set", "epochs=8"]
    found = run_search(make_cli, "pbt", *arguments, concurrency=1)  # so that each is compared in the same order
    trials = {trial.number: trial for trial in found.study.trials}
    epochs = found.epochs()
    copies = {number: trial.user_attrs["copied_from"] for number, trial in trials.items() if number >= 4}
    assert copies
    assert len(trials) <= 10
    replaced = [trial.user_attrs["reason"] for trial in trials.values() if trial.user_attrs["reason"]]
    assert sorted(replaced) == sorted(f"replaced by a copy of {parent}" for parent in copies.values())
    assert found.json["outcomes"] == {"completed": 4, "pruned": len(copies)}
    for number, parent in copies.items():
        start = trials[number].user_attrs["copy"]["epoch"]
        assert epochs[number][0] == start + 1, "it goes on where the other one stood"
        assert start in epochs[parent]
        assert trials[number].params["lr"] != trials[parent].params["lr"]
        folder = found.folder / "checkpoints" / str(number)
        assert [path.name for path in folder.glob("copied-from-*")] == []
        (kept,) = folder.glob("*.pt")
        state = torch.load(kept, weights_only=True)
        (group,) = state["updaters"]["train"]["optimizers"]["model"]["param_groups"]
        assert group["lr"] == trials[number].params["lr"] == state["config"]["lr"]
        assert state["updaters"]["train"]["steps"] == 4 * state["epoch"], "the counters of the trial that it copied"
    in_parquet = {row["trial_id"]: row["copied_from"] for row in found.rows if row["copied_from"] is not None}
    in_mlflow = {
        int(run.data.tags["trial_id"]): int(run.data.tags["copied_from"])
        for run in found.children()
        if "copied_from" in run.data.tags
    }
    assert in_parquet == in_mlflow == copies
