"""Two whole searches: one that ends at its target, and one that starts from it and ends on a plateau."""

import optuna
import pytest

from search.experiment.warm_start import load
from search.study.trial import gpu_seconds_used
from tests.end_to_end.finished_search import FinishedSearch

pytestmark = pytest.mark.slow  # a whole search, of what tests without Ray show in parts


@pytest.fixture(scope="module")
def reached(make_cli):
    """A search that is to find a loss, given as a file; it would else go on for minutes."""
    cli = make_cli()
    (cli.folder / "reach.yaml").write_text(
        "task: toy.py:Toy\n"
        "trials: 500\n"
        "concurrency: 1\n"
        "stop_when: val/loss<0.02\n"
        "set: {pause_s: 0.05}\n"
        "try:\n- {lr: 0.05, precision: bf16}\n- lr=0.02\n- lr=5e-2,precision=bf16\n"
    )
    return FinishedSearch.run(cli, "reached", "--config", "reach.yaml")


def begun(search):
    return [trial for trial in search.study.trials if trial.state != optuna.trial.TrialState.WAITING]


def test_defaults_and_points_are_tried_first(reached):
    expected = [
        {"precision": "fp32", "lr": 0.01},
        {"precision": "bf16", "lr": 0.05},
        {"precision": "fp32", "lr": 0.02},
    ]
    first = [trial.params for trial in begun(reached)][:3]
    assert first == expected[: len(first)]


def test_first_trial_at_the_target_is_completed_and_best(reached):
    best = reached.json["best"]
    assert best["value"] < 0.02
    assert reached.trials_ended()[best["trial_id"]][0] == "completed"
    assert reached.json["stopped"] == f"val/loss<0.02 in trial {best['trial_id']}"
    assert reached.parent.data.tags["stopped"] == reached.json["stopped"]
    met = {row["trial_id"] for row in reached.rows if row["val/loss"] is not None and row["val/loss"] < 0.02}
    assert best["trial_id"] in met
    assert len(met) == 1
    assert set(reached.json["outcomes"]) <= {"completed", "pruned", "interrupted"}


def test_warm_start_begins_at_the_best_and_ends_on_a_plateau(reached):
    options = ["--warm-start", "reached", "--patience", "4", "--gpu-hours", "100", "--trials", "500"]
    found = FinishedSearch.run(reached.cli, "next", "toy.py:Toy", *options, "--concurrency", "1")
    fitting = [trial for trial in begun(reached) if trial.intermediate_values]
    assert f"{len(fitting)} of {len(begun(reached))} trials of reached fit" in found.done.stderr
    assert len(load(found.folder)) == len(fitting)

    best = reached.json["best"]["config"]
    trials = found.study.trials
    points = [(0.01, "fp32"), (best["lr"], best["precision"])]
    assert [(trial.params["lr"], trial.params["precision"]) for trial in trials[:2]] == points

    assert found.json["stopped"] == "no better val/loss in 4 trials"
    assert "stopping: no better val/loss in 4 trials" in found.done.stderr
    count = sum(found.json["outcomes"].values())
    assert 5 <= count == len({row["trial_id"] for row in found.rows}) == len(trials)
    assert {int(run.data.tags["trial_id"]) for run in found.children()} == set(range(count))
    assert all(gpu_seconds_used(trial) > 0 for trial in trials)
