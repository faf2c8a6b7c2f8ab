import math
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchlight.search.formatting import (
    format_change,
    format_command,
    format_numbers,
    format_percent,
    join_words,
    pluralize,
    report_command,
    resume_command,
)
from searchlight.search.reporting.html.axes import robust_range
from searchlight.search.space.objectives import Objective
from tests.conftest import ROOT


def test_counts_and_lists_read_as_a_person_writes_them():
    assert [pluralize(count, "trial") for count in (1, 0, 3)] == ["1 trial", "0 trials", "3 trials"]
    assert [join_words(list(words)) for words in ("", "a", "ab", "abc")] == ["", "a", "a and b", "a, b and c"]
    assert format_numbers([4, 5, 6], most=2) == "4, 5 and 1 more"


def test_percents_are_neither_rounded_to_none_nor_to_all():
    shares = [0, 0.00001, 0.0004, 0.004, 0.126, 0.996, 1]
    assert list(map(format_percent, shares)) == ["0 %", "under 0.01 %", "0.04 %", "0.4 %", "13 %", "over 99 %", "100 %"]


def test_change_has_percents_of_a_base_of_the_same_sign():
    assert format_change(0.75, 0.5) == "0.25 (50 %)"
    assert format_change(-0.25, 0.5) == "0.75"
    assert format_change(0.5, 0.0) == "0.5"


@given(st.lists(st.floats(-1e6, 1e6), min_size=5), st.sampled_from(["min", "max"]))
def test_axis_shows_the_best_value_and_most_others(values, mode):
    shown = robust_range(values, Objective("x", mode))
    if shown is not None:
        assert shown[0] <= (min if mode == "min" else max)(values) <= shown[1]
        assert sum(shown[0] <= value <= shown[1] for value in values) >= 0.8 * len(values)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_outlier_does_not_flatten_the_axis(mode):
    sign = 1 if mode == "min" else -1
    values = [sign * value for value in [0.2, 0.3, 0.4, 0.5, 0.35, 0.25, 0.3, 0.45, 0.5, 0.4, 1e9, math.inf]]
    low, high = robust_range(values, Objective("x", mode))
    assert high - low < 1
    assert robust_range([0.1, 0.2, 0.3, 0.4, 0.5], Objective("x", mode)) is None


@pytest.mark.parametrize("place", ["the project", "elsewhere"])
def test_command_of_a_script_works_where_one_stands(place, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", [f"{ROOT}/search/report.py"])
    monkeypatch.chdir(ROOT if place == "the project" else tmp_path)
    command = format_command("report")
    assert command.endswith(" search/report.py" if place == "the project" else f" {ROOT}/search/report.py")
    assert subprocess.run([*shlex.split(command), "--help"], capture_output=True).returncode == 0


@pytest.mark.parametrize("on_path", [True, False])
def test_commands_name_the_installed_program_if_it_was_started(on_path, tmp_path, monkeypatch):
    program = tmp_path / "searchlight"
    program.touch(mode=0o755)
    monkeypatch.setattr("sys.argv", [str(program), "run", "arc"])
    monkeypatch.setenv("PATH", str(tmp_path if on_path else tmp_path / "other"))
    shown = "searchlight" if on_path else str(program)
    assert resume_command(tmp_path / "one") == f"{shown} resume one --storage {tmp_path}"
    assert report_command(tmp_path / "one") == f"{shown} report one --storage {tmp_path}"
    assert format_command("run") == f"{shown} run"
