import pytest

from benchmarks.search import runs, search_quality
from benchmarks.search.problems.problems import all_problems
from benchmarks.search.runs import POINTS, Key, Row, add_rows, list_keys, load_rows, run_search

KEYS = list_keys(["cliff", "digits"], ["ray", "searchlight"], seeds=2)


def build_row(key, regret=0.5, epoch_s=None, **numbers):
    counts = dict.fromkeys(("trials", "whole", "diverged", "suggestions"), 3)
    amounts = dict.fromkeys(("by_best_report", "at_rest", "spent", "lost", "decisions"), 0.25)
    return Row(*key, [regret] * POINTS, **{**counts, **amounts, **numbers}, revision="abc", epoch_s=epoch_s)


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


def test_report_says_what_ends_lower(capsys):
    rows = [build_row(key, regret=0.1 if key.side == "searchlight" else 0.2) for key in KEYS]
    problems = [problem for problem in all_problems() if problem.name in ("cliff", "digits")]
    search_quality.report(problems, search_quality.group_rows(rows), ["ray", "searchlight"], resamples=10)
    told = capsys.readouterr().out
    assert "8 of revision abc" in told
    assert "cliff (tuned on, checkpoint, 2 seeds)" in told
    assert "searchlight, all: final ratio 0.50 [0.50, 0.50] [0.50, 0.50], wins 1.00" in told
    assert "ends lower on 2 of 2" in told
    assert "searchlight, all, by best: final ratio 1.00" in told
    assert "searchlight, all, at rest: final ratio 1.25" in told


def print_report(regrets, capsys):
    """Return the report on two seeds with these final regrets by side and problem."""
    keys = [Key(problem, side, seed) for side in regrets for problem in regrets[side] for seed in range(2)]
    problems = [problem for problem in all_problems() if problem.name in regrets["ray"]]
    rows = search_quality.group_rows([build_row(key, regret=regrets[key.side][key.problem]) for key in keys])
    search_quality.report(problems, rows, [*regrets], resamples=10)
    return capsys.readouterr().out


def test_report_compares_with_the_best_peer_of_each_problem(capsys):
    told = print_report({"hyperband": {"cliff": 0.1}, "ray": {"cliff": 0.4}, "random": {"cliff": 0.2}}, capsys)
    assert "against the best peer of each problem, of ray, random\n" in told
    assert "hyperband, all, random: final ratio 0.50 " in told
    assert "searches that end lower, equal and higher: 2/0/0" in told
    assert "hyperband, all: final ratio 0.25 " in told
    assert "hyperband, all, best peer: final ratio 0.50 " in told


def test_report_chooses_by_the_problems_that_are_not_left_out(capsys):
    regrets = {
        "hyperband": {"cliff": 0.1, "digits": 0.1, "annealed": 0.1},
        "asha": {"cliff": 0.2, "digits": 0.02, "annealed": 0.1},
        "ray": dict.fromkeys(("cliff", "digits", "annealed"), 0.2),
        "warm-wrong": dict.fromkeys(("cliff", "digits", "annealed"), 0.12),
    }
    told = print_report(regrets, capsys)
    assert "  hyperband (0.50, 0.71) without digits (0.50, 0.10 on them)\n" in told
    assert "  asha (0.50, 0.10) without cliff, annealed (0.50, 0.71 on them)\n" in told
    assert "  hyperband without any single problem but cliff, annealed\n" in told
    assert "  warm-wrong against hyperband, ratio of single searches: 1.20 [1.20, 1.20] [1.20, 1.20], " in told
    assert "lower/equal/higher 0/0/6\n" in told


def test_search_has_a_regret_at_every_moment(monkeypatch):
    monkeypatch.setattr(runs, "TRAININGS", 0.5)
    row = run_search(Key("hartmann3-good", "random", 1))
    assert len(row.regrets) == POINTS
    assert row.key == ("hartmann3-good", "random", 1)
    assert row.trials == row.suggestions > 8
    assert row.regrets[0] >= row.regrets[-1] > 0
