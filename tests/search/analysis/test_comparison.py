"""Two searches beside each other."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution, distribution_to_json

from searchlight.search.analysis.comparison import (
    build_comparison_rows,
    build_config_rows,
    compare,
    config_differences,
    search_curve,
    summarize_difference,
)
from searchlight.search.errors import UsageError
from searchlight.search.report import main
from searchlight.search.space.objectives import Objective
from tests.search.objectives import VAL_LOSS
from tests.search.reporting.html.page_studies import search, trial
from tests.search.stored_studies import Search


def quick(name="quick"):
    """0.6 after 20 s, and 0.8 after 40 s."""
    trials = [
        trial(0, scores=[0.5, 0.6], params={"lr": 0.01}),
        trial(1, scores=[0.2, 0.8], params={"lr": 0.02}, began=20),
    ]
    return search(trials, name=name)


def slow(name="slow"):
    """0.7 after 60 s; what diverged and what still runs had more."""
    trials = [
        trial(0, scores=[0.3], params={"lr": 0.01}, began=10, epoch_s=20),
        trial(1, "pruned", [0.6, 0.7], params={"lr": 0.05}, began=20, epoch_s=20),
        trial(2, "diverged", [0.9], params={"lr": 0.1}, began=30),
        trial(3, "interrupted", [0.95], params={"lr": 0.1}, began=70),
    ]
    return search(trials, name=name)


LOSS = (Objective("val/score", "min"),)
NOTHING = search([trial(0, "failed")], name="none")


def sides(*searches):
    return compare([Path("/runs") / each.name for each in searches], searches)


def cells(table, label):
    return next(row[1:] for row in table if row[0] == label)


@pytest.mark.parametrize(
    ("first", "other", "told"),
    [
        (
            slow(),
            quick(),
            "Of the first 2 trials of each, by epoch 2: quick found more, val/score 0.8, where slow found 0.7. "
            "That is 0.1 (14 %) better. "
            "slow had 0.7 after 0:50 and 3 trials. quick had 0.7 after 0:40 and 2 trials.",
        ),
        (
            search([trial(0, scores=[0.5])], objectives=LOSS, name="a"),
            search([trial(0, scores=[0.4])], objectives=LOSS, name="b"),
            "Of the first 1 trial of each, by epoch 1: b found more, val/score 0.4, where a found 0.5.",
        ),
        (quick(), quick("twin"), "found the same val/score, 0.8. quick had 0.8 after 0:40 and 2 trials. twin"),
        (quick(), NOTHING, "none completed no trial, so there is nothing to compare."),
    ],
    ids=["score", "loss", "equal", "no result"],
)
def test_summary_has_the_better_search_and_both_times(first, other, told):
    assert told in summarize_difference(*sides(first, other))
    if first.name == "slow":
        assert summarize_difference(*sides(other, first)) == told


def test_summary_compares_as_many_trials_and_epochs():
    short = search([trial(0, scores=[0.2, 0.5]), trial(1, scores=[0.3], outcome="pruned")], name="short")
    later = [trial(1, scores=[0.4]), trial(2, scores=[0.8])]
    long = search([trial(0, scores=[0.1, 0.45, 0.9]), *later], name="long")
    told = "Of the first 2 trials of each, by epoch 2: short found more, val/score 0.5, where long found 0.45."
    assert told in summarize_difference(*sides(short, long))
    broken = search([trial(0, "failed"), trial(1, "failed"), trial(2, scores=[0.8])], name="broken")
    told = "broken completed no trial of its first 2 trials, so there is nothing to compare."
    assert summarize_difference(*sides(short, broken)) == told


def test_only_comparable_searches_are_compared():
    first, moved = quick(), quick()
    moved.about["config"]["task"] = "/elsewhere/my_task.py:MyTask"  # a task is the same wherever its file lies
    both = compare([Path("/a/quick"), Path("/b/quick")], [first, moved])
    assert [side.name for side in both] == ["a/quick", "b/quick"]
    other = search([trial(0, scores=[0.5])], name="other", objectives=(VAL_LOSS,))
    other.about["config"]["task"] = "arc"
    with pytest.raises(UsageError) as refused:
        compare([Path("/runs/quick"), Path("/runs/other"), Path("/runs/quick")], [first, other, first])
    assert refused.value.problems == (
        "--compare other must be a search of the same task as quick, my_task.py:MyTask, but is of arc.",
        "--compare other must have the same objective as quick, val/score:max, but has val/loss:min.",
        "--compare must name another search than quick, but got quick.",
    )


def test_rows_have_values_times_trials_and_outcomes():
    table = build_comparison_rows(sides(quick(), slow()))
    assert table[0] == ["", "quick", "slow"]
    assert cells(table, "best val/score") == ["0.8", "0.7"]
    assert cells(table, "reached after") == ["0:40", "0:50"]
    assert cells(table, "trials begun by then") == ["2", "3"]
    assert cells(table, "reached quick's best after") == ["0:40", "never"]
    assert cells(table, "reached slow's best after") == ["0:40", "0:50"]
    assert cells(table, "  diverged") == ["0", "1"]
    assert len({len(row) for row in table}) == 1
    assert build_config_rows(sides(quick(), slow())) == [["", "quick", "slow"], ["lr", "0.02", "0.05"]]


def test_differences_name_code_data_ranges_and_constants():
    first, other = quick(), slow()
    assert config_differences(*sides(first, other)) == []
    for made, digest, top, fixed in ((first, "2", 1e-1, (9, 0)), (other, "3", 1e-2, (27, 1))):
        made.about.update(
            files={"task.py": "1", "model.py": digest},
            searched={"lr": distribution_to_json(FloatDistribution(1e-4, top, log=True))},
            fixed=dict(zip(("epochs", "seed"), fixed, strict=True)),
        )
        for each in made.trials:
            each.user_attrs["datasets"] = [{"name": "digits", "digest": digest}]
    assert sorted(config_differences(*sides(first, other))) == [
        "The code of slow differs from quick: model.py.",
        "The data of slow differs from quick: digits.",
        "epochs was 9 in quick, 27 in slow.",
        "lr was searched in 0.0001..0.1:log in quick, searched in 0.0001..0.01:log in slow.",
    ]


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=4), min_size=1, max_size=6))
def test_curve_only_rises_and_ends_at_the_best(scores):
    side = search_curve(search([trial(n, scores=each, began=7 * n) for n, each in enumerate(scores)]))
    values = [step.value for step in side.steps]
    assert values == sorted(set(values))
    assert values[-1] == side.best.value
    assert all(0 <= step.seconds <= side.seconds and 1 <= step.trials <= len(scores) for step in side.steps)
    assert side.find_improvement(side.best.value) == side.steps[-1]


@pytest.fixture
def report(tmp_path, monkeypatch):
    """Calls the command where searches of one trial lie."""
    for name, score in (("one", 0.25), ("two", 0.75), ("three", 0.5)):
        left = Search(tmp_path / "runs", name)
        left.study.save_metadata({"config": left.config.model_dump(mode="json", by_alias=True), "searched": {}})
        left.report(left.begin(), 1, score)
        left.end(0, "completed")
        left.store.close()
    (tmp_path / "runs" / "three").rename(tmp_path / "three")
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, arguments)


def test_command_prints_the_comparison(report, tmp_path):
    done = report("one", "--compare", "two", "--compare", "./three")
    assert done.exit_code == 0, done.output
    assert re.search(r"best val/score +0\.25 +0\.75 +0\.5 *\n", done.stdout)
    assert "two found more, val/score 0.75, where one found 0.25." in done.stdout
    assert "One search each: a small difference may be chance" in done.stdout
    assert not (tmp_path / "runs" / "one" / "report.html").exists()


def test_command_refuses_missing_searches_and_writes_nothing(report, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    refused = report("one", "--compare", "tow", "--compare", "./gone")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.splitlines() == [
        f"--compare name must be a search in {tmp_path}/runs, but there is no {tmp_path}/runs/tow/study.journal. "
        "Did you mean two?",
        f"--compare name must be a search in {tmp_path}, but there is no {tmp_path}/gone/study.journal.",
    ]
    assert sorted(tmp_path.rglob("*")) == before
