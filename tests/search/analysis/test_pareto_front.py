"""The Pareto front, and what a trial with several objectives is worth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import TrialState, create_trial

from searchlight.search.analysis.best_trials import find_pareto_front, select_pareto_trials
from searchlight.search.analysis.ranking import trial_rows
from searchlight.search.space.objectives import Objective
from searchlight.search.study.trial import objective_values

LOSS, SPEED = Objective("loss", "min"), Objective("speed", "max")
BOTH = (LOSS, SPEED)


def trial(number, *reports, outcome="pruned"):
    """A trial that ended after `reports`, (loss, speed) each."""
    attributes = {
        f"report/{epoch}": {"metrics": {"loss": loss, "speed": speed}, "checkpoint": f"{epoch}.pt", "objective": loss}
        for epoch, (loss, speed) in enumerate(reports, start=1)
    }
    attributes |= {"outcome": outcome, "config": {"lr": 0.1}}
    made = create_trial(state=TrialState.PRUNED, user_attrs=attributes)
    made.number = number
    return made


def numbers(trials):
    return [t.number for t in select_pareto_trials(trials, BOTH)]


def test_trial_is_worth_its_best_report_by_the_first_objective():
    measured = trial(0, (0.5, 9.0), (0.2, 5.0), (0.3, 7.0))
    assert objective_values(measured, BOTH) == (0.2, 5.0)
    assert objective_values(trial(0), BOTH) is None
    (found,) = find_pareto_front([measured], BOTH)
    assert (found.values, found.checkpoint) == ({"loss": 0.2, "speed": 5.0}, "2.pt")


@pytest.mark.parametrize("outcome", ["diverged", "failed", "interrupted"])
def test_front_has_good_ends_by_the_first_objective(outcome):
    points = [(0.5, 9.0), (0.2, 5.0), (0.3, 4.0), (0.5, 8.0)]
    trials = [trial(number, point) for number, point in enumerate(points)]
    assert numbers([*trials, trial(4, (0.1, 10.0), outcome=outcome), trial(5)]) == [1, 0]


small = st.integers(0, 4).map(float)
points = st.lists(st.tuples(small, small), min_size=1, max_size=12)


@given(points)
def test_front_has_exactly_the_points_that_none_dominates(points):
    on_front = numbers([trial(number, point) for number, point in enumerate(points)])
    for number, (loss, speed) in enumerate(points):
        beaten = any(o != (loss, speed) and o[0] <= loss and o[1] >= speed for o in points)
        assert (number in on_front) != beaten


def test_table_marks_the_front_and_has_all_objectives():
    head, *rows = trial_rows([trial(0, (0.5, 9.0)), trial(1, (0.6, 8.0)), trial(2, outcome="failed")], BOTH)
    cells = {name: list(column) for name, *column in zip(head, *rows, strict=True)}
    assert cells["trial"] == ["0", "1", "2"]
    assert cells["front"] == ["*", "", ""]
    assert cells["loss"] == ["0.5", "0.6", "-"]
    assert cells["speed"] == ["9", "8", "-"]
