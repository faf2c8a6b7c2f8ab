from search.analysis.best_trials import find_best
from search.analysis.incumbent import comparable_trials, incumbent, incumbent_is_final
from search.config.objectives import Objective
from tests.search.reporting.html.page_studies import many, search, trial


def test_the_leading_trial_is_the_best_one_of_the_search():
    for seed in range(5):
        made = many(30, seed=seed)
        assert incumbent(made).number == find_best(made.trials, "max").trial_id
    equal = [trial(0, scores=[0.5]), trial(1, scores=[0.5]), trial(2, scores=[0.4])]
    assert incumbent(search(equal)).number == 0
    assert incumbent(search(equal, objectives=(Objective("val/score", "min"),))).number == 2
    assert incumbent(search(equal), equal[1:]).number == 1


def test_trials_that_can_go_on_count_as_long_as_there_is_no_result():
    waiting = [trial(0, "interrupted", [0.5]), trial(1, "interrupted"), trial(2, "diverged", [0.9])]
    assert [trial.number for trial in comparable_trials(search(waiting))] == [0]
    assert not incumbent_is_final(search(waiting))
    settled = [*waiting, trial(3, "pruned", [0.1])]
    assert [trial.number for trial in comparable_trials(search(settled))] == [3]
    assert incumbent_is_final(search(settled))
