"""Trials in order, although most were stopped early."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchlight.search.analysis.ranking import rank_trials, trial_rows
from searchlight.search.space.objectives import Objective
from tests.search.objectives import VAL_SCORE
from tests.search.reporting.html.page_studies import search, trial


def order(made):
    places = rank_trials(made)
    return sorted(places, key=places.__getitem__)


def test_trials_are_ranked_by_epochs_and_then_by_their_best():
    made = search(
        [
            trial(0, "pruned", [0.9]),
            trial(1, "completed", [0.1, 0.2, 0.1]),
            trial(2, "pruned", [0.1, 0.5]),
            trial(3, "completed", [0.1, 0.3, 0.0]),
            trial(4, "diverged", [0.1, 0.99]),
            trial(5, "pruned", [0.1, 0.6]),
        ]
    )
    assert rank_trials(made) == pytest.approx({3: 0, 1: 0.2, 5: 0.4, 2: 0.6, 0: 0.8, 4: 1})


def test_lower_loss_ranks_first_and_equal_trials_together():
    trials = [trial(number, scores=[loss]) for number, loss in enumerate([0.1, 0.3, 0.2])]
    assert order(search(trials, objectives=(Objective("val/loss", "min"),))) == [0, 2, 1]
    trials = [trial(0, scores=[0.5]), trial(1, "diverged"), trial(2, scores=[0.5]), trial(3, "diverged", [0.9])]
    assert rank_trials(search(trials)) == pytest.approx({0: 1 / 6, 2: 1 / 6, 1: 5 / 6, 3: 5 / 6})


def test_unfinished_copied_and_empty_trials_have_no_rank():
    trials = [trial(n, outcome, [0.9]) for n, outcome in enumerate(["completed", "failed", "interrupted", "completed"])]
    trials[3].user_attrs["copied_from"] = 0
    assert rank_trials(search([*trials, trial(4, "pruned")])) == {0: 0}
    assert rank_trials(search([])) == {}


def test_rungs_in_seconds_rank_by_seconds():
    """Trial 0 was quick and reported three times by the first rung, trial 1 once, and was better."""
    made = search([trial(0, "pruned", [0.1, 0.2, 0.3]), trial(1, "pruned", [0.4]), trial(2, "pruned", [0.1] * 4)])
    for each, seconds in zip(made.trials, (4.0, 12.0, 10.0), strict=True):
        for key, report in each.user_attrs.items():
            if key.startswith("report/"):
                report["gpu_seconds"] = seconds
    options = {"fidelity": "gpu-seconds", "max_fidelity": 90, "scheduler": "asha", "reduction_factor": 3}
    made.about["config"].update(options)
    assert order(made) == [2, 1, 0]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(-50, 50)), min_size=1, max_size=20))
def test_ranks_lie_around_the_middle_on_any_scale(rows):
    def made(scale):
        return search([trial(n, "pruned", [scale(score)] * epochs) for n, (epochs, score) in enumerate(rows)])

    places = rank_trials(made(float))
    assert all(0 <= place <= 1 for place in places.values())
    assert len(rows) == 1 or sum(places.values()) / len(rows) == pytest.approx(0.5)
    assert places == rank_trials(made(lambda score: float(score) ** 3 + score))


def test_rows_list_the_best_trial_first():
    trials = [
        trial(0, "failed"),
        trial(1, scores=[0.2, 0.3]),
        trial(2, "pruned", [0.4], params={"lr": 0.02, "precision": "fp16"}),
    ]
    assert trial_rows(trials, [VAL_SCORE]) == [
        ["trial", "outcome", "epochs", "val/score", "lr", "precision"],
        ["2", "pruned", "1", "0.4", "0.02", "fp16"],
        ["1", "completed", "2", "0.3", "0.01", "-"],
        ["0", "failed", "0", "-", "0.01", "-"],
    ]


def test_rows_have_seconds_of_gpus_or_workers_and_small_values():
    measured = trial(0, scores=[3e-7, 3e-7])
    for epoch in (1, 2):
        measured.user_attrs[f"report/{epoch}"]["gpu_seconds"] = 0.5
    head, *rows = trial_rows([measured, trial(1, scores=[2e-6])], [Objective("val/score", "min")])
    assert [(row[head.index("val/score")], row[head.index("worker-s")]) for row in rows] == [
        ("3e-07", "1"),
        ("2e-06", "-"),
    ]
    measured.user_attrs["report/1"]["repeated_s"] = 4.0
    assert trial_rows([measured], [VAL_SCORE])[1][3] == "5", "an epoch that was trained again"
    measured.user_attrs["report/2"]["metrics"]["sys/gpu_memory_gib"] = 1.5
    head, *_ = trial_rows([measured], [Objective("val/score", "min")])
    assert "GPU-s" in head
    assert "worker-s" not in head
