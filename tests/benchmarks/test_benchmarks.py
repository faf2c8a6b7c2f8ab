"""Tests that benchmarks run, and that the documents say what they measured."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.bench import Benchmark, save_outcomes, wait_for
from benchmarks.bench import run as run_benchmark
from benchmarks.goals import ONE, SETTINGS, TWO_AT_A_TIME, measure_gap, measure_liquid
from benchmarks.gpu.bench_gpu import STEPS
from benchmarks.page import PARTS, render_page
from benchmarks.recording import (
    BENCH,
    GPU,
    RESULTS,
    NotMeasuredError,
    Result,
    get_quartiles,
    load_or_measure,
    load_result,
    round_figures,
)
from benchmarks.recording import to_json as result_to_json
from benchmarks.tables import format_column, merge_intervals, render_figures

ROOT = Path(__file__).resolve().parents[2]
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "<!-- generated: " in page.read_text("utf-8")]
needs_peers = pytest.mark.skipif(
    any(importlib.util.find_spec(peer) is None for peer in ("accelerate", "lightning", "transformers")),
    reason='what it compares with is not installed: pip install ".[bench]"',
)


def run(script: str, *arguments: str) -> Result:
    """Return what a benchmark prints. It starts in another folder and without an installation."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "benchmarks" / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env, cwd="/")
    assert done.returncode == 0, done.stderr
    return Result(**json.loads(done.stdout))


def build_result(figures: dict, **fields) -> Result:
    return Result("python benchmarks/x.py", "2026-11-23", "a machine", figures, **fields)


@needs_peers
@pytest.mark.slow
def test_accumulation_errors_equal_the_recorded_ones():
    found, recorded = run("update/accumulation_error.py"), load_result("accumulation_error")
    assert len(found.find_rows("errors")) == 10
    for row, before in zip(found.find_rows("errors"), recorded.find_rows("errors"), strict=True):
        assert row.keys() == before.keys()
        for name, error in row.items():
            if name == "trainer" or error is None:
                assert error == before[name]
            elif error < 1e-6:  # rounding, which is not the same everywhere
                assert before[name] < 1e-6
            else:
                assert error == pytest.approx(before[name], rel=0.15), row["trainer"]


@needs_peers
@pytest.mark.slow
def test_update_adds_less_to_a_plain_loop_than_accelerate():  # I88
    """It is also the step of `make gpu` at its small size: see tests/benchmarks/test_gpu_steps.py."""
    (step,) = [step for step in STEPS if step.name == "update_overhead"]
    found = run(*step.arguments.split(), "--device", "cpu", "--small")
    ours, peer = (found.find_row("updates", loop=loop)["added"] for loop in ("Searchlight", "Accelerate"))
    assert ours < 0.6 * peer


@pytest.mark.slow
def test_sides_of_the_reduction_end_at_the_same_weights():
    rows = run("update/reduction_cost.py", "--models", "tiny").find_rows("windows")
    assert sum("ours_to_least" in row for row in rows) == 3


@pytest.mark.slow
def test_search_over_simulated_gangs_runs_to_its_end():
    search = run("driver/scale.py", "--trials", "3", "--gangs", "3", "--seconds", "1").find_row("search")
    assert (search["outcomes"], search["reports"]) == ("3 completed", 12)
    assert 0 < search["busy_of_each_gang"] <= 100


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_equals_what_its_generator_writes(page):
    text = page.read_text(encoding="utf-8")
    is_measured = page.stem != "gpu" or any(GPU.glob("*.json"))  # on the first machine with a GPU
    assert ("Not measured yet" not in text) == is_measured
    assert render_page(text) == text, "run python benchmarks/page.py"


def test_pages_have_each_part_once():
    marked = [name for page in PAGES for name in re.findall(r"^<!-- generated: (\S+) -->$", page.read_text(), re.M)]
    assert sorted(marked) == sorted(PARTS)


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.json")), ids=lambda path: path.stem)
def test_result_is_as_it_would_be_written(path):
    text = path.read_text(encoding="utf-8")
    if path.stem != "last_run":
        assert result_to_json(Result(**json.loads(text))) == text


def test_result_keeps_its_figures_and_circumstances():
    figures = {"rows": [{"side": "a", "gap": 1.5}, {"side": "b", "gap": None}], "record": {"ratio": "inf"}}
    result = build_result(figures, commit="abc", load=[0.5, 1.0], seconds=17.0, note="other work ran")
    assert Result(**json.loads(result_to_json(result))) == result
    assert result.source == "2026-11-23, a machine; commit abc, load average 0.5 to 1.0, 17 s; other work ran"
    assert result.find_row("rows", side="b")["gap"] is None
    with pytest.raises(NotMeasuredError, match="must have a row with"):
        result.find_rows("rows", side="c")
    with pytest.raises(NotMeasuredError, match=r"absent\.json must be in"):
        load_result("absent")


def test_figures_are_rounded_to_significant_digits():
    given = {"a": [{"x": 12345.678, "n": 12345, "bad": float("nan")}], "b": {"y": float("inf"), "z": 0.00123456}}
    rounded = {"a": [{"x": 12350.0, "n": 12345, "bad": None}], "b": {"y": "inf", "z": 0.001235}}
    assert round_figures(given, 4) == rounded


def test_quartiles_of_one_value_are_that_value():
    assert get_quartiles([0.002], 1e3) == (2.0, 2.0, 2.0)
    assert get_quartiles([1.0, 2.0, 3.0]) == (1.5, 2.0, 2.5)


def test_tables_have_texts_first_and_equal_decimals():
    rows = [{"count": 2000, "cell": "CfC", "ms": 1.5}, {"count": 3, "cell": "LTC", "ms": 0.25, "met": True}]
    lines = render_figures(build_result({"cells": rows, "all": {"of_all": 7}}, units={"ms": "ms"}))
    assert lines[:4] == [
        "| cell | count | ms, ms | met |",
        "| --- | ---: | ---: | ---: |",
        "| CfC | 2,000 | 1.50 |  |",
        "| LTC | 3 | 0.25 | yes |",
    ]
    assert lines[4:] == ["", "| all | value |", "| --- | ---: |", "| of all | 7 |"]
    assert format_column([1e-7, 0.5, None]) == ["1e-07", "0.5", ""]


def test_value_and_its_interval_are_one_cell():
    row = {"order": "policy", "score": 0.1234, "score_low": -0.5, "score_high": 0.75, "highest_low": 2}
    assert merge_intervals(row) == {"order": "policy", "score": "0.123 (-0.500 to 0.750)", "highest_low": 2}
    assert merge_intervals({"met": 3.26, "met_low": -1.0, "met_high": 7.0}) == {"met": "3.3 (-1.0 to 7.0)"}


def test_long_measurement_goes_on_where_it_ended(tmp_path):
    path, measured = tmp_path / "pieces" / "one.json", []

    def measure():
        measured.append(1)
        return {"tests": len(measured)}

    assert load_or_measure(path, measure) == {"tests": 1}
    assert load_or_measure(path, measure) == {"tests": 1}
    assert [*path.parent.iterdir()] == [path]
    with pytest.raises(ZeroDivisionError):
        load_or_measure(tmp_path / "other.json", lambda: {"tests": 1 // 0})
    assert not (tmp_path / "other.json").exists()


def test_goals_read_results_with_quartiles():
    row = {"setting": ONE, "side": "search", "gap": 39, "gap_low": 35, "gap_high": 44}
    gap = measure_gap(ONE, 50)(build_result({"turnaround": [row]}))
    assert (gap.value, gap.spread, gap.reached) == ("39 ms", "quartiles 35 to 44 ms", True)
    ratios = [
        {"cell": "Liquid", "peer": "ncps CfC, backbone 128", "ratio": 13.7, "low": 13.0, "high": 14.1},
        {"cell": "Liquid", "peer": "ncps CfC", "ratio": 10.2, "low": 9.9, "high": 10.4},
    ]
    liquid = measure_liquid(("Liquid",), 12)(build_result({"ratios": ratios}))
    assert (liquid.value, liquid.spread, liquid.reached) == ("10.2 to 13.7x", "quartiles 9.9 to 14.1x", False)


def test_benchmark_that_fails_keeps_its_earlier_result(tmp_path, capsys):
    (tmp_path / "absent.json").write_text("earlier")
    outcome, _ = run_benchmark(Benchmark("absent.py", 1.0), tmp_path, 60.0)
    assert outcome.startswith("failed: ")
    assert "absent.py" in capsys.readouterr().err
    assert [path.read_text() for path in tmp_path.iterdir()] == ["earlier"]


def test_outcomes_of_other_benchmarks_are_kept(tmp_path):
    def save(name, outcome):
        save_outcomes(tmp_path / "last_run.json", {name: {"name": name, "outcome": outcome}})

    save("lm", "done")
    save("scale", "failed: no room")
    save("lm", "skipped")
    rows = json.loads((tmp_path / "last_run.json").read_text())
    assert [(row["name"], row["outcome"]) for row in rows] == [("scale", "failed: no room"), ("lm", "skipped")]


def test_process_is_ended_at_its_time_limit():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    assert not wait_for(process, 0.1)
    assert process.returncode


def test_readme_states_the_measured_time_between_trials():
    result = load_result("trial_turnaround")
    for setting in SETTINGS:
        ours, recipe = (result.find_row("turnaround", setting=setting, side=side) for side in ("search", "recipe"))
        assert setting == TWO_AT_A_TIME or ours["gap"] < 100, (
            "README's row `from one trial's end` must say more than 100 ms"
        )
        assert recipe["gap"] > 200 * ours["gap"], "README's row `from one trial's end` must say less than 200 times"
    alone, ours = (result.find_row("turnaround", setting=TWO_AT_A_TIME, side=side) for side in ("inline", "search"))
    told = "README's row `from one trial's end` must say more than a tenth"
    assert 10 * alone["per_minute"] < ours["per_minute"], told


def test_readme_states_which_side_suits_trials_of_seconds():
    first = {row["side"]: row["first_choice"] for row in load_result("time_to_target").find_rows("means")}
    told = "README says that a loop of Optuna suits trials of seconds, since it has no start-up"
    assert first["Optuna, one process"] < first["Searchlight"], told


def test_docs_tell_the_measured_quality_of_searches():
    page, notes = "docs/development/search-quality.md", "benchmarks/notes/search-comparisons.md"
    published = [("hyperband", "search_quality", page), ("random", "search_quality", page)]
    for side, result, path in (*published, ("asha", "search_quality_former", notes)):
        row = load_result(result).find_row("measures", side=side, problems="all", against="ray")
        assert f"{row['final_ratio']:.2f}" in (ROOT / path).read_text(encoding="utf-8")


def test_docs_tell_the_measured_cost_of_tracking():
    result = load_result("study/tracking_cost")
    peer = result.find_row("callback")["per_report"]
    assert f"{peer} ms" in (ROOT / "docs" / "mlflow.md").read_text(encoding="utf-8")
    for row in result.find_rows("stores"):
        assert row["longer"] <= 2.0, "what MLflow may take of a search's time"


def test_ncp_is_compared_with_the_same_computation():
    liquid_speed = pytest.importorskip("benchmarks.models.liquid_speed")
    sides = liquid_speed.build_contenders(2, 5, 12, torch.device("cpu"))
    x = torch.randn(2, 5, 12)
    (peer,) = sides["NCP"].peers
    torch.testing.assert_close(sides["NCP"].run(x), sides[peer].run(x))


def test_measured_results_reach_their_targets():
    result = load_result("study/scale")
    assert result.find_row("search")["busy_of_each_gang"] >= 95
    assert result.find_row("suggestions", trials=2000)["median"] <= 50


def test_every_benchmark_of_the_last_run_has_a_result():
    rows = json.loads((BENCH / "last_run.json").read_text(encoding="utf-8"))
    assert all((BENCH / f"{row['name']}.json").exists() for row in rows if row["outcome"] == "done")


def test_commands_and_page_of_a_small_search_are_measured():
    result = run("driver/steering.py", "--trials", "5", "--repeats", "1")
    assert [row["commands"] for row in result.find_rows("commands", trials=5)] == [0, 9]
    assert result.find_row("pages", trials=5)["page"] > 0
