import pytest

from benchmarks.search import search_quality
from benchmarks.search.problems.recorded import list_problems
from benchmarks.search.runs import POINTS, Key, Row, add_rows, list_keys, load_rows, run_search

KEYS = list_keys(["cliff", "digits"], ["ray", "searchlight"], seeds=2)
EASY = {"ray": 0.2, "searchlight": 0.1}


def build_row(key, regret=0.5, epoch_s=None, **numbers):
    counts = dict.fromkeys(("trials", "whole", "diverged", "suggestions"), 3)
    amounts = dict.fromkeys(("by_best_report", "at_rest", "spent", "lost", "decisions"), 0.25)
    numbers = {**key._asdict(), **counts, **amounts, **numbers}
    return Row(**numbers, regrets=[regret] * POINTS, revision="abc", epoch_s=epoch_s)


def test_rows_are_read_as_they_were_written(tmp_path):
    rows = add_rows(tmp_path / "runs.parquet", KEYS, search=build_row)
    assert rows == [build_row(key) for key in KEYS]
    assert load_rows(tmp_path / "runs.parquet") == sorted(rows, key=lambda row: row.key)
    assert load_rows(tmp_path / "none.parquet") == []


def test_interrupted_run_is_continued_with_what_is_missing(tmp_path):
    file, searched = tmp_path / "runs.parquet", []

    def search(key, epoch_s):
        if len(searched) == 3:
            raise KeyboardInterrupt
        searched.append(key)
        return build_row(key)

    with pytest.raises(KeyboardInterrupt):
        add_rows(file, KEYS, search=search)
    assert [row.key for row in load_rows(file)] == sorted(KEYS[:3])
    again = []
    rows = add_rows(file, KEYS, search=lambda key, epoch_s: again.append(key) or build_row(key))
    assert again == KEYS[3:]
    assert [row.key for row in rows] == KEYS
    assert len(load_rows(file)) == len(KEYS)


def test_file_of_other_epochs_is_refused(tmp_path):
    add_rows(tmp_path / "runs.parquet", KEYS[:1], epoch_s=1.0, search=build_row)
    with pytest.raises(ValueError, match=r"with epochs of 60\.0 s, but has some of 1\.0 s"):
        add_rows(tmp_path / "runs.parquet", KEYS, epoch_s=60.0, search=build_row)


def describe(regrets):
    """Return the figures of two seeds with these final regrets by side and problem, and a function to find a row."""
    keys = [Key(problem, side, seed) for side in regrets for problem in regrets[side] for seed in range(2)]
    problems = [problem for problem in list_problems() if problem.name in regrets["ray"]]
    rows = search_quality.group_rows([build_row(key, regret=regrets[key.side][key.problem]) for key in keys])
    figures = search_quality.describe(problems, rows, [*regrets], resamples=10)

    def find(table, **chosen):
        (row,) = (row for row in figures[table] if chosen.items() <= row.items())
        return row

    return figures, find


def test_figures_say_what_ends_lower():
    figures, find = describe({side: dict.fromkeys(("cliff", "digits"), regret) for side, regret in EASY.items()})
    assert figures["revisions"] == [{"revision": "abc", "searches": 8}]
    row = find("problems", problem="cliff", side="searchlight")
    assert (row["kind"], row["delivered"], row["seeds"]) == ("tuned on", "checkpoint", 2)
    row = find("measures", side="searchlight", problems="all", against="ray")
    ratios = [row[f"final_ratio{end}"] for end in ("", "_seeds_low", "_seeds_high", "_both_low", "_both_high")]
    assert ratios == pytest.approx([0.5] * 5)
    assert (row["wins"], row["ends_lower_on"], row["of"]) == (1.0, 2, 2)
    assert find("measures", against="ray, by best")["final_ratio"] == pytest.approx(1.0)
    assert find("measures", against="ray, at rest")["final_ratio"] == pytest.approx(1.25)


def test_measures_compare_with_the_best_peer_of_each_problem():
    _, find = describe({"hyperband": {"cliff": 0.1}, "ray": {"cliff": 0.4}, "random": {"cliff": 0.2}})
    row = find("measures", side="hyperband", problems="all", against="random")
    assert (row["final_ratio"], row["single_ratio"]) == pytest.approx((0.5, 0.5))
    assert (row["lower"], row["equal"], row["higher"]) == (2, 0, 0)
    ratios = {kind: find("measures", side="hyperband", problems="all", against=kind) for kind in ("ray", "best peer")}
    assert [row["final_ratio"] for row in ratios.values()] == pytest.approx([0.25, 0.5])


def test_choice_is_made_by_the_problems_that_are_not_left_out():
    regrets = {
        "hyperband": {"cliff": 0.1, "digits": 0.1, "annealed": 0.1},
        "asha": {"cliff": 0.2, "digits": 0.02, "annealed": 0.1},
        "ray": dict.fromkeys(("cliff", "digits", "annealed"), 0.2),
    }
    figures, find = describe(regrets)
    ratios = [f"{side}_on_{kind}" for kind in ("these", "left_out") for side in ("hyperband", "asha")]
    for left_out, chosen, expected in (
        ("digits", "hyperband", [0.5, 0.5**0.5, 0.5, 0.1]),
        ("cliff, annealed", "asha", [0.5, 0.1, 0.5, 0.5**0.5]),
    ):
        row = find("choices", left_out=left_out)
        assert row["chosen"] == chosen
        assert [row[name] for name in ratios] == pytest.approx(expected)
    assert figures["choice"]["not_chosen_without"] == "cliff, annealed"


def test_search_has_a_regret_at_every_moment():
    key = Key("hartmann3-good", "random", 1, budget=8)
    row = run_search(key)
    assert len(row.regrets) == POINTS
    assert row.key == key
    assert row.trials == row.suggestions > 8
    assert row.regrets[0] >= row.regrets[-1] > 0
