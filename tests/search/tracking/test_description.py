from dataclasses import replace

from searchlight.search.analysis.best_trials import BestTrial, ParetoTrial
from searchlight.search.analysis.result import SearchResult
from searchlight.search.space.objectives import Objective
from searchlight.search.study.record import SearchRecord
from searchlight.search.tracking.description import render_description

SCORE = Objective("val/score", "max")


def result_of(best, searched=(), objectives=(SCORE,), front=None):
    record = SearchRecord("one", [], objectives, {"searched": dict.fromkeys(searched, "")})
    return SearchResult("one", {}, best, [], {}, 0.0, "", front, record)


def test_searched_parameters_come_first_in_the_note(tmp_path):
    config = {"epochs": 9, "inner": {"depth": 2, "width": 64}, "lr": 0.123456789, "momentum": 0.9}
    best = BestTrial(3, 0.5, config, "checkpoint.pt")
    searched = ["lr", "inner.depth", "nesterov"]  # the last does not apply to this trial
    note = render_description(tmp_path / "one", result_of(best, searched)).splitlines()
    assert note[0] == "**Best val/score: 0.5** (trial 3): `lr` 0.1235, `inner.depth` 2"
    assert note[2:9] == [
        "| parameter | value |",
        "| --- | --- |",
        "| lr | 0.123456789 |",
        "| inner.depth | 2 |",
        "| epochs | 9 |",
        "| inner.width | 64 |",
        "| momentum | 0.9 |",
    ]
    assert f" resume one --storage {tmp_path}" in note[-1]


def test_long_front_comes_after_the_commands(tmp_path):
    best = BestTrial(0, 0.5, {"lr": 0.1}, None)
    front = [ParetoTrial(n, {"score": 0.5, "speed": n / 7}, {"lr": n / 700}, None) for n in range(400)]
    objectives = (Objective("score", "max"), Objective("speed", "max"))
    note = render_description(tmp_path / "one", result_of(best, ["lr"], objectives, front))
    assert len(note) > 8000, "what MLflow keeps"
    assert " resume one" in note[:1000]


def test_value_cannot_break_the_table(tmp_path):
    best = BestTrial(0, 0.5, {"text": "a|b\nc"}, None)
    note = render_description(tmp_path / "one", result_of(best))
    assert "| text | a\\|b c |" in note.splitlines()


def test_search_that_has_tried_all_configs_is_offered_no_more_trials(tmp_path):
    result = result_of(BestTrial(0, 0.5, {"lr": 0.1}, None))
    notes = [render_description(tmp_path / "one", replace(result, is_exhausted=over)) for over in (False, True)]
    assert ["`--trials`" in note for note in notes] == [True, False]
    assert all(" resume one" in note for note in notes)
