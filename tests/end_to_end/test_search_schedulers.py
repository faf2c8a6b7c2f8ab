"""A whole search with the scheduler that copies trials, run as a user runs it."""

import pytest
import torch

from tests.end_to_end.finished_search import FinishedSearch

pytestmark = pytest.mark.slow  # a whole search, of decisions that tests without Ray show


def test_population_continues_with_copies_of_its_best(make_cli):
    options = ["--scheduler", "pbt", "--trials", "10", "--population", "4", "--exploit-every", "2"]
    alike = ["--sampler", "random", "--seed", "1", "--concurrency", "1"]  # so that each is compared in the same order
    fixed = ["--set", "epochs=8", "precision=fp32"]
    found = FinishedSearch.run(make_cli(), "pbt", "toy.py:Toy", *options, *alike, *fixed)
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
