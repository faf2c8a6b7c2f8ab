import math
from dataclasses import replace

from searchlight.search.analysis.result import SearchResult
from searchlight.search.space.objectives import Objective
from searchlight.search.study.record import SearchRecord
from tests.search.objectives import VAL_SCORE


def test_data_frame_has_a_row_per_trial(trials):
    trials[0].user_attrs["stretch/1"] = {"began": 10.0, "ended": 12.5}
    table = SearchResult.from_record(SearchRecord("one", trials, (VAL_SCORE,), {})).trials
    assert [*table] == ["trial_id", "outcome", "reason", "epochs", "seconds", "val/score", "config/lr"]
    assert [*table["outcome"]] == ["completed", "pruned", "diverged", "failed", "interrupted"]
    assert [*table["epochs"]] == [3, 3, 1, 0, 1]
    assert [*table["seconds"]] == [2.5, 0, 0, 0, 0]
    assert [*table["val/score"].dropna()] == [0.5, 0.9, 0.95, 0.99]
    assert math.isnan(table["val/score"][3])
    assert [*table["config/lr"]] == [trial.params["lr"] for trial in trials]
    assert SearchResult.from_record(SearchRecord("none", [], (VAL_SCORE,), {})).trials.empty


def test_data_frame_has_every_objective_of_the_best_report(trials):
    objectives = (VAL_SCORE, Objective("count", "min"))
    table = SearchResult.from_record(SearchRecord("two", trials, objectives, {})).trials
    assert [*table["count"].dropna()] == [3, 3, 3, 3]


def test_notebook_shows_outcomes_best_trial_and_table(trials):
    html = SearchResult.from_record(SearchRecord("a<b", trials, (VAL_SCORE,), {}))._repr_html_()
    assert html.startswith("<p>a&lt;b: 1 completed, 1 pruned, 1 diverged, 1 failed, 1 interrupted in 0 s, ")
    assert "best val/score 0.9 in trial 1</p>" in html
    assert html.count("<tr>") == 5


def test_reasons_to_stop_are_told_apart():
    result = SearchResult.from_record(SearchRecord("one", [], (VAL_SCORE,), {}))
    assert result.reasons == []
    assert replace(result, stopped="val/score>=0.4, interrupted").reasons == ["val/score>=0.4", "interrupted"]
    assert "interrupted" not in replace(result, stopped="all trials failed: it was interrupted early").reasons
