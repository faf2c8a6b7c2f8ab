"""Two searches beside each other."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution, distribution_to_json
from optuna.samplers import RandomSampler

from search.analysis.comparison import (
    build_comparison_rows,
    build_config_rows,
    compare,
    config_differences,
    search_curve,
    summarize_difference,
)
from search.config.objectives import Objective
from search.config.search_space import resolve_space
from search.errors import UsageError
from search.reporting.html.comparison import write_comparison
from search.study.study import create_study
from tests.conftest import ROOT
from tests.search.objectives import VAL_LOSS, VAL_SCORE
from tests.search.reporting.html.page_studies import search, trial
from trainables.task import TaskConfig, searchable


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


def sides(*searches):
    return compare([Path("/runs") / each.name for each in searches], searches)


def cells(table, label):
    return next(row[1:] for row in table if row[0] == label)


def test_the_one_that_found_more_is_told_with_how_much_and_when_each_had_as_much():
    told = summarize_difference(*sides(slow(), quick()))
    assert told == (
        "quick found more: val/score 0.8, where slow found 0.7. That is 0.1 (14 %) better. "
        "slow had 0.7 after 0:50 and 3 trials. quick had 0.7 after 0:40 and 2 trials."
    )
    assert summarize_difference(*sides(quick(), slow())) == told


def test_of_a_loss_less_is_more():
    loss = (Objective("val/score", "min"),)
    first, other = (
        search([trial(0, scores=[0.5])], objectives=loss, name="a"),
        search([trial(0, scores=[0.4])], objectives=loss, name="b"),
    )
    assert summarize_difference(*sides(first, other)).startswith("b found more: val/score 0.4, where a found 0.5.")


def test_equal_ones_are_told_by_their_time_and_those_without_a_result_as_such():
    assert "found the same val/score, 0.8. quick had 0.8 after 0:40 and 2 trials. twin" in summarize_difference(
        *sides(quick(), quick("twin"))
    )
    nothing = search([trial(0, "failed")], name="none")
    assert summarize_difference(*sides(quick(), nothing)) == "none completed no trial, so there is nothing to compare."


def test_the_table_has_values_times_trials_and_outcomes():
    table = build_comparison_rows(sides(quick(), slow()))
    assert table[0] == ["", "quick", "slow"]
    assert cells(table, "best val/score") == ["0.8", "0.7"]
    assert cells(table, "reached after") == ["0:40", "0:50"]
    assert cells(table, "trials begun by then") == ["2", "3"]
    assert cells(table, "reached quick's best after") == ["0:40", "never"]
    assert cells(table, "reached slow's best after") == ["0:40", "0:50"]
    assert cells(table, "  diverged") == ["0", "1"]
    assert len({len(row) for row in table}) == 1


def test_the_best_configs_are_told_by_what_differs():
    assert build_config_rows(sides(quick(), slow())) == [["", "quick", "slow"], ["lr", "0.02", "0.05"]]


def test_other_code_other_ranges_and_other_constants_are_told():
    first, other = quick(), slow()
    first.about.update(
        files={"task.py": "1", "model.py": "2"},
        searched={"lr": distribution_to_json(FloatDistribution(1e-4, 1e-1, log=True))},
        fixed={"epochs": 9, "seed": 0},
    )
    other.about.update(
        files={"task.py": "1", "model.py": "3"},
        searched={"lr": distribution_to_json(FloatDistribution(1e-4, 1e-2, log=True))},
        fixed={"epochs": 27, "seed": 1},
    )
    assert config_differences(*sides(first, other)) == [
        "The code of slow is other than that of quick: model.py.",
        "epochs was 9 in quick, 27 in slow.",
        "lr was searched in 0.0001..0.1:log in quick, searched in 0.0001..0.01:log in slow.",
    ]
    assert config_differences(*sides(quick(), slow())) == []


def test_other_data_is_told():
    first, other = quick(), slow()
    for made, digest in ((first, "a"), (other, "b")):
        for each in made.trials:
            each.user_attrs["datasets"] = [{"name": "digits", "digest": digest}]
    assert config_differences(*sides(first, other)) == ["The data of slow is other than that of quick: digits."]


def test_searches_that_are_not_after_the_same_are_refused_with_all_that_is_wrong():
    other = search([trial(0, scores=[0.5])], name="other", objectives=(VAL_LOSS,))
    other.about["config"]["task"] = "arc"
    with pytest.raises(UsageError) as refused:
        compare([Path("/runs/quick"), Path("/runs/other"), Path("/runs/quick")], [quick(), other, quick()])
    assert refused.value.problems == (
        "--compare other must be a search of the same task as quick, my_task.py:MyTask, but is of arc.",
        "--compare other must be after the same objective as quick, val/score:max, but is after val/loss:min.",
        "--compare must name another search than quick, but got quick.",
    )


def test_a_task_is_the_same_wherever_its_file_lies_and_equal_names_are_told_apart_by_their_folders():
    first, other = quick(), quick()
    other.about["config"]["task"] = "/elsewhere/my_task.py:MyTask"
    both = compare([Path("/a/quick"), Path("/b/quick")], [first, other])
    assert [side.name for side in both] == ["a/quick", "b/quick"]


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=4), min_size=1, max_size=6))
def test_steps_only_rise_and_end_at_the_best(scores):
    side = search_curve(search([trial(n, scores=each, began=7 * n) for n, each in enumerate(scores)]))
    values = [step.value for step in side.steps]
    assert values == sorted(set(values))
    assert values[-1] == side.best.value
    assert all(0 <= step.seconds <= side.seconds and 1 <= step.trials <= len(scores) for step in side.steps)
    assert side.find_improvement(side.best.value) == side.steps[-1]


def test_the_page_has_what_was_told_and_is_whole(tmp_path):
    path = tmp_path / "compare-a-b.html"
    write_comparison(sides(quick("a<b>"), slow("b")), path)
    page = path.read_text(encoding="utf-8")
    assert page.endswith("</html>\n")
    assert "a&lt;b&gt; found more: val/score 0.8" in page
    assert page.count('class="figure half"') == 2
    assert list(tmp_path.iterdir()) == [path]
    write_comparison(sides(quick(), search([trial(0, "failed")], name="none")), path)
    write_comparison(sides(search([], name="a"), search([], name="b")), path)


# The command line


class Config(TaskConfig):
    lr: float = searchable(0.5, low=0.0, high=1.0)


def left(folder, name, score):
    """A search with one trial, as its study has it."""
    study, store = create_study(folder / name, lambda _: RandomSampler(seed=0), [VAL_SCORE])
    number, values = study.ask(resolve_space(Config, {"precision": "fp32"}, {}))
    study.record_config(number, values)
    study.report(number, 1, score, {"metrics": {"val/score": score}, "checkpoint": None, "time": 1.0e9})
    study.end(number, "completed")
    store.close()


def report(folder, arguments):
    command = [sys.executable, str(ROOT / "search" / "report.py"), *shlex.split(arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_the_command_prints_the_searches_beside_each_other_and_writes_their_page(tmp_path):
    for name, score in (("one", 0.25), ("two", 0.75), ("three", 0.5)):
        (tmp_path / "runs" / name).mkdir(parents=True)
        left(tmp_path / "runs", name, score)
    (tmp_path / "runs" / "three").rename(tmp_path / "three")
    done = report(tmp_path, "one --compare two --compare ./three")
    assert done.returncode == 0, done.stderr
    assert re.search(r"best val/score +0\.25 +0\.75 +0\.5\n", done.stdout)
    assert "two found more: val/score 0.75, where one found 0.25." in done.stdout
    assert (tmp_path / "runs" / "one" / "compare-one-two-three.html").is_file()
    assert not (tmp_path / "runs" / "one" / "report.html").exists()


def test_mistakes_are_told_in_a_line_each_before_anything_is_written(tmp_path):
    (tmp_path / "runs" / "one").mkdir(parents=True)
    left(tmp_path / "runs", "one", 0.25)
    before = sorted(tmp_path.rglob("*"))
    refused = report(tmp_path, "one --compare tow --compare ./gone")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.splitlines() == [
        f"--compare name must be a search in {tmp_path}/runs, but there is no {tmp_path}/runs/tow/study.journal.",
        f"--compare name must be a search in {tmp_path}, but there is no {tmp_path}/gone/study.journal.",
    ]
    refused = report(tmp_path, "one --compare one --replay --register m")
    assert refused.stderr == (
        "--compare must come without --replay and --register. Give them in a call of their own.\n"
    )
    assert sorted(tmp_path.rglob("*")) == before
