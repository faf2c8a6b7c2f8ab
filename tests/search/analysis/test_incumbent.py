from search.analysis.best_trials import find_best
from search.analysis.incumbent import is_settled, judged, leading
from search.config.objectives import Objective
from tests.search.reporting.html.page_studies import many, search, trial


def test_the_leading_trial_is_the_best_one_of_the_search():
    for seed in range(5):
        made = many(30, seed=seed)
        assert leading(made).number == find_best(made.trials, "max").trial_id
    equal = [trial(0, scores=[0.5]), trial(1, scores=[0.5]), trial(2, scores=[0.4])]
    assert leading(search(equal)).number == 0
    assert leading(search(equal, objectives=(Objective("val/score", "min"),))).number == 2
    assert leading(search(equal), equal[1:]).number == 1


def test_trials_that_can_go_on_count_as_long_as_there_is_no_result():
    waiting = [trial(0, "interrupted", [0.5]), trial(1, "interrupted"), trial(2, "diverged", [0.9])]
    assert [trial.number for trial in judged(search(waiting))] == [0]
    assert not is_settled(search(waiting))
    settled = [*waiting, trial(3, "pruned", [0.1])]
    assert [trial.number for trial in judged(search(settled))] == [3]
    assert is_settled(search(settled))
