from search.note import note_of_search
from search.objectives import Objective
from search.results import Best


def test_what_was_searched_comes_first_since_the_ui_folds_a_note_after_a_few_lines(tmp_path):
    config = {"epochs": 9, "inner": {"depth": 2, "width": 64}, "lr": 0.123456789, "momentum": 0.9}
    best = Best(3, 0.5, config, "checkpoint.pt")
    searched = ["lr", "inner.depth", "nesterov"]  # the last does not apply to this trial
    note = note_of_search(tmp_path / "one", searched, [Objective("val/score", "max")], best, None, []).splitlines()
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
    assert f"--resume one --storage {tmp_path}" in note[-1]
