import math

from searchlight.search.reporting.html.sections.pareto_front import build
from searchlight.search.space.objectives import Objective
from tests.search.reporting.html.page_studies import search, trial

TWO = (Objective("val/score", "max"), Objective("size", "min"))


def sized(number, score, size, outcome="completed"):
    return trial(number, outcome, [score], {"lr": 0.01 * (number + 1)}, metrics=lambda epoch: {"size": size})


def test_front_is_drawn_and_listed_by_the_first_objective():
    trials = [sized(0, 0.5, 4.0), sized(1, 0.9, 9.0), sized(2, 0.4, 6.0), sized(3, 0.95, 1.0, "failed")]
    told = build(search(trials, objectives=TWO))
    assert told.says.startswith("2 of 3 trials are on the front: no other trial is at least as good in all objectives ")
    assert "Each counts with its best report by val/score." in told.says
    assert "size is best in trial 0, 4." in told.says
    assert told.table == [["trial", "val/score", "size", "lr"], ["1", "0.9", "9", "0.02"], ["0", "0.5", "4", "0.01"]]
    (figure,) = told.figures
    beaten, front = figure.data
    assert (list(beaten.x), list(front.x), list(front.y)) == ([0.4], [0.5, 0.9], [4.0, 9.0])
    assert "lines" in front.mode


def test_three_objectives_have_two_figures_without_lines():
    three = (*TWO, Objective("time", "min"))
    trials = [trial(n, scores=[0.1 * n], metrics=lambda epoch, n=n: {"size": n, "time": 5.0 - n}) for n in (1, 2)]
    told = build(search(trials, objectives=three))
    assert len(told.figures) == 2
    assert told.figures[1].data[-1].mode == "markers"


def test_equal_trials_of_the_front_are_all_named():
    told = build(search([sized(0, 0.5, 4.0), sized(1, 0.5, 4.0)], objectives=TWO)).says
    assert "val/score is best in trials 0, 1, 0.5. size is best in trials 0, 1, 4." in told


def test_infinite_values_are_not_drawn():
    told = build(search([sized(0, 0.5, 4.0), sized(1, 0.9, math.inf)], objectives=TWO))
    assert math.inf not in [y for trace in told.figures[0].data for y in trace.y]


def test_one_objective_or_no_result_has_no_front():
    assert build(search([trial(0, scores=[0.1])])) is None
    assert build(search([trial(0, "failed")], objectives=TWO)) is None
