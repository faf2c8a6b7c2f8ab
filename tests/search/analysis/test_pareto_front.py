"""The Pareto front, and what a trial with several objectives is worth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import TrialState, create_trial

from search.analysis.best_trials import find_pareto_front, select_pareto_trials
from search.analysis.ranking import trial_rows
from search.config.objectives import Objective
from search.study.trial import objective_values

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


def test_a_trial_is_worth_what_its_best_report_by_the_first_objective_says():
    assert objective_values(trial(0, (0.5, 9.0), (0.2, 5.0), (0.3, 7.0)), BOTH) == (0.2, 5.0)
    assert objective_values(trial(0), BOTH) is None


def test_the_front_has_those_that_no_other_beats_the_best_by_the_first_objective_first():
    trials = [trial(0, (0.5, 9.0)), trial(1, (0.2, 5.0)), trial(2, (0.3, 4.0)), trial(3, (0.5, 8.0))]
    assert [t.number for t in select_pareto_trials(trials, BOTH)] == [1, 0]


def test_equal_ones_are_all_on_the_front():
    assert [t.number for t in select_pareto_trials([trial(0, (0.2, 5.0)), trial(1, (0.2, 5.0))], BOTH)] == [0, 1]


@pytest.mark.parametrize("outcome", ["diverged", "failed", "interrupted"])
def test_what_did_not_come_to_a_good_end_is_not_on_the_front(outcome):
    trials = [trial(0, (0.5, 9.0)), trial(1, (0.1, 10.0), outcome=outcome), trial(2)]
    assert [t.number for t in select_pareto_trials(trials, BOTH)] == [0]


small = st.integers(0, 4).map(float)
points = st.lists(st.tuples(small, small), min_size=1, max_size=12)


@given(points)
def test_a_trial_is_on_the_front_if_and_only_if_none_is_better_in_one_objective_and_no_worse_in_the_other(points):
    trials = [trial(number, point) for number, point in enumerate(points)]
    on_front = {t.number for t in select_pareto_trials(trials, BOTH)}
    for number, (loss, speed) in enumerate(points):
        beaten = any(o != (loss, speed) and o[0] <= loss and o[1] >= speed for o in points)
        assert (number in on_front) != beaten


def test_a_front_names_the_values_and_the_checkpoint_that_has_them():
    (found,) = find_pareto_front([trial(0, (0.5, 9.0), (0.2, 5.0), (0.3, 7.0))], BOTH)
    assert (found.values, found.checkpoint) == ({"loss": 0.2, "speed": 5.0}, "2.pt")


def test_the_table_marks_the_front_and_has_all_objectives():
    head, *rows = trial_rows([trial(0, (0.5, 9.0)), trial(1, (0.6, 8.0)), trial(2, outcome="failed")], BOTH)
    cells = {name: list(column) for name, *column in zip(head, *rows, strict=True)}
    assert cells["trial"] == ["0", "1", "2"]
    assert cells["front"] == ["*", "", ""]
    assert cells["loss"] == ["0.5", "0.6", "-"]
    assert cells["speed"] == ["9", "8", "-"]
