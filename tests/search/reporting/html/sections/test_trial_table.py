from search.reporting.html.sections.trial_table import MOST, build
from tests.search.reporting.html.page_studies import search, trial


def test_trials_are_listed_best_first_and_those_without_a_value_last():
    trials = [
        trial(0, "failed"),
        trial(1, scores=[0.2, 0.3]),
        trial(2, "pruned", [0.4], params={"lr": 0.02, "precision": "fp16"}),
    ]
    assert build(search(trials)).table == [
        ["trial", "outcome", "epochs", "val/score", "lr", "precision"],
        ["2", "pruned", "1", "0.4", "0.02", "fp16"],
        ["1", "completed", "2", "0.3", "0.01", "-"],
        ["0", "failed", "0", "-", "0.01", "-"],
    ]


def test_a_long_table_says_where_the_rest_is():
    told = build(search([trial(number, scores=[0.1]) for number in range(MOST + 20)]))
    assert len(told.table) == MOST + 1
    assert told.notes == "20 trials more in trials.parquet, which has every report."
    assert build(search([])) is None
