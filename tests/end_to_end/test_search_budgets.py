"""A whole search that starts from an earlier one and from points of its user, and ends at its target."""

import optuna
import pytest

from searchlight.search.experiment.warm_start import load
from searchlight.search.study.trial import gpu_seconds_used
from tests.end_to_end.finished_search import FinishedSearch
from tests.end_to_end.test_driver_crash import drive, start

pytestmark = pytest.mark.slow  # a whole search, of what tests without Ray show in parts


@pytest.fixture(scope="module")
def reached(make_cli):
    """A search that is to find a loss, given as a file; it would else go on for minutes."""
    cli = make_cli()
    drive(*start(cli.folder, trials=3), [])  # without Ray
    (cli.folder / "reach.yaml").write_text(
        "task: toy.py:Toy\n"
        "trials: 500\n"
        "concurrency: 1\n"
        "gpu_hours: 100\n"
        "patience: 400\n"
        "stop_when: val/loss<0.02\n"
        "warm_start: one\n"
        "set: {pause_s: 0.05}\n"
        "try:\n- {lr: 0.05, precision: bf16}\n- lr=0.02\n- lr=5e-2,precision=bf16\n"
    )
    return FinishedSearch.run(cli, "reached", "--config", "reach.yaml")


def test_defaults_points_and_the_best_before_are_tried_first(reached):
    assert "3 of 3 trials of one fit" in reached.done.stderr
    earlier = load(reached.folder)
    best = min(earlier, key=lambda trial: min(trial.values.values(), default=9.0))
    expected = [
        {"precision": "fp32", "lr": 0.01},
        {"precision": "bf16", "lr": 0.05},
        {"precision": "fp32", "lr": 0.02},
        best.point,
    ]
    begun = [trial.params for trial in reached.study.trials if trial.state != optuna.trial.TrialState.WAITING]
    assert begun[:4] == expected[: len(begun)]
    assert all(gpu_seconds_used(trial) > 0 for trial in reached.study.trials if trial.intermediate_values)


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
