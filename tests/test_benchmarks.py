"""The benchmarks of the training step run, and what the README says of them is what they print."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
needs_peers = pytest.mark.skipif(
    any(importlib.util.find_spec(peer) is None for peer in ("accelerate", "lightning", "transformers")),
    reason='what it compares with is not installed: pip install ".[bench]"',
)


def run(script: str, *arguments: str) -> str:
    """What a benchmark prints."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "benchmarks" / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_peers
def test_the_table_of_the_readme_is_what_the_benchmark_measures():
    printed = {}
    for line in run("accumulation_error.py").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        printed[cells[0]] = cells[1:]
    table = {
        "Searchlight, fp32": "Searchlight, fp32",
        "Searchlight, fp16": "Searchlight, fp16",
        "Searchlight, bf16": "Searchlight, bf16",
        "Accelerate, `accumulate`": r"Accelerate [\d.]+, `accumulate`",
        "Lightning Trainer": r"Lightning [\d.]+, `accumulate_grad_batches`",
        "HF Trainer": r"HF Trainer [\d.]+",
        "HF Trainer, iterable dataset": r"HF Trainer [\d.]+, iterable dataset",
    }
    for name, written in table.items():
        (row,) = re.findall(rf"^\| {written} \| (.*) \|$", README, flags=re.MULTILINE)
        for said, measured in zip(row.replace("*", "").split(" | "), printed[name], strict=True):
            if measured == "no step":
                assert said == "never applied"
            elif float(measured) < 1e-6:  # rounding, which is not the same everywhere
                assert float(said.removesuffix(" %")) < 1e-4
            else:
                assert float(said.removesuffix(" %")) == pytest.approx(100 * float(measured), rel=0.15), name


@needs_peers
def test_an_update_adds_less_to_a_plain_loop_than_accelerate_does():  # I88
    printed = run("update_overhead.py", "--models", "tiny", "--rows", "plain", "--seconds", "3")
    added = {
        name: float(us) for name, us in re.findall(r"^  (\w+) .* us +([+-][\d.]+) us", printed, flags=re.MULTILINE)
    }
    assert added["Searchlight"] < 0.6 * added["Accelerate"]


def test_the_sides_of_the_reduction_end_at_the_same_weights():
    printed = run("reduction_cost.py", "--models", "tiny")
    assert len(re.findall(r"Searchlight takes [\d.]+x of its least", printed)) == 3


def test_what_the_readme_says_of_trials_is_what_was_measured():
    measured = (ROOT / "benchmarks" / "results" / "trial_turnaround.txt").read_text(encoding="utf-8")
    pattern = r"^ +(?:search|recipe) +\d+ +([\d.]+) +\d+ +([\d.]+) s +(\d+) ms"
    found = {tuple(float(cell) for cell in row) for row in re.findall(pattern, measured, flags=re.MULTILINE)}
    assert len(found) == 6
    rows = re.findall(r"^\| .* \| ([\d.]+) \| ([\d.]+) s \| ([\d.]+) (m?s) \|$", README, flags=re.MULTILINE)
    assert len(rows) == 6
    for rate, first, turnaround, unit in rows:
        said = (float(rate), float(first), float(turnaround) * (1 if unit == "ms" else 1000))
        assert any(said == pytest.approx(row, rel=0.02) for row in found), said


def test_the_comparison_of_searches_tells_of_every_side_and_keeps_every_seed(tmp_path):
    printed = run("search_quality.py", "--quick", "--csv", str(tmp_path / "regrets.csv"))
    rows = re.findall(
        r"^ +(searchlight|hyperband|ray|random|tpe) +[\d.]+ +[\d.]+-[\d.]+ .* ([\d.]+|inf) +[\d.]+ +\d+ +\d+ +\d+%",
        printed,
        flags=re.MULTILINE,
    )
    assert sorted(side for side, _ in rows) == sorted(2 * ["searchlight", "hyperband", "ray", "random", "tpe"])
    assert [time for side, time in rows if side == "ray"] == ["1.00", "1.00"]
    table = (tmp_path / "regrets.csv").read_text(encoding="utf-8").splitlines()
    assert len(table) == 1 + 2 * 5 * 2
    assert all(float(cell) >= 0 for row in table[1:] for cell in row.split(",")[2:])


def test_what_the_notes_say_of_searches_is_what_was_measured():
    measured = (ROOT / "benchmarks" / "results" / "search_quality.txt").read_text(encoding="utf-8")
    notes = (ROOT / "docs" / "search-quality.md").read_text(encoding="utf-8")
    row = re.compile(
        r"^ +(\w+)(?: +[\d.]+ [\d.]+-[\d.]+){3} +([\d.]+) [\d.]+-[\d.]+ +([\d.]+|inf) ", flags=re.MULTILINE
    )
    problems = 0
    for block in re.split(r"\n(?=\S+ \((?:tuned on|held out)\))", measured)[1:]:
        found = {side: (regret, time) for side, regret, time in row.findall(block)}
        (told,) = re.findall(rf"^\| `{re.escape(block.split(' ')[0])}` \| (\d.*) \|$", notes, flags=re.MULTILINE)
        sides = ("searchlight", "hyperband", "ray", "random", "tpe")
        assert told.split(" | ") == [found[s][0] if s == "ray" else f"{found[s][0]} ({found[s][1]})" for s in sides]
        problems += 1
    assert problems == 10


def test_what_the_readme_says_of_searches_is_what_was_measured():
    measured = (ROOT / "benchmarks" / "results" / "search_quality.txt").read_text(encoding="utf-8")
    found = re.findall(
        r"^ +\w+: tuned on ([\d.]+|inf) .*?held out ([\d.]+|inf) .*?all ([\d.]+|inf) ", measured, re.MULTILINE
    )
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("## It finds as much in half the time")[2].partition("\n## ")[0]
    share = r"\**([\d.]+|never)\**"
    rows = re.findall(rf"^\| .* \| {share} \| {share} \| {share} \|$", table, re.MULTILINE)
    assert sorted(tuple(cell.replace("never", "inf") for cell in row) for row in rows) == sorted(found)
    assert len(found) == 5


def test_what_the_docs_say_of_tracking_is_what_was_measured():
    measured = (ROOT / "benchmarks" / "results" / "tracking_cost.txt").read_text(encoding="utf-8")
    row = r"^  (SQLite|mlflow server).*? s +([+-][\d.]+ %) +([\d.]+ s) +([\d.]+ ms) +[\d.]+ % +([\d.]+ %)"
    found = re.findall(row, measured, flags=re.MULTILINE)
    told = (ROOT / "docs" / "mlflow.md").read_text(encoding="utf-8").partition("## What it costs")[2]
    rows = re.findall(
        r"^\| `?(SQLite|mlflow server)`?.*? \| (.*) \| (.*) \| (.*) \| (.*) \|$", told, flags=re.MULTILINE
    )
    assert len(found) == 2
    assert rows == found
    (peer,) = re.findall(r"MLflowLoggerCallback, mlflow server: (\d+) ms", measured)
    assert f"{peer} ms" in told
    for _, longer, *_ in found:
        assert float(longer.removesuffix(" %")) <= 2.0, "what MLflow may take of a search's time"


def test_what_the_docs_say_of_importances_is_what_was_measured():
    measured = (ROOT / "benchmarks" / "results" / "importances.txt").read_text(encoding="utf-8")
    known, nothing = measured.partition("\nnothing matters")[::2]
    row = re.compile(r"^ +(\d+) +(\d+)%(?: +\d+%){5} +(\d+)% ", re.MULTILINE)
    wrong = {trials: share for trials, _, share in row.findall(nothing)}
    found = [(trials, told, share, wrong.get(trials, "-")) for trials, told, share in row.findall(known)]
    docs = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    said = re.findall(r"^\| (\d+) \| (\d+) % \| (\d+) % \| (\d+|-)(?: %)? \|$", docs, re.MULTILINE)
    assert said == found
    assert len(found) >= 3


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("arc", "arc_best"),
        ("arc", "arc_ablation"),
        ("arc", "arc_families"),
        ("arc", "arc_speed"),
        ("liquid", "liquid_best"),
        ("liquid", "continual"),
        ("liquid", "plasticity"),
        ("liquid", "liquid_speed"),
        ("liquid", "liquid_baselines"),
        ("scaling", "scale"),
    ],
)
def test_what_the_docs_say_is_what_was_measured(page, name):
    measured = (ROOT / "benchmarks" / "results" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    printed = [line for line in measured[1:] if line and not line.startswith("$")]
    told = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").splitlines()
    assert printed
    assert [line for line in told if line in printed] == printed


def test_a_search_over_the_arc_task_finds_more_than_its_defaults_by_more_than_seeds_differ():
    measured = (ROOT / "benchmarks" / "results" / "arc_best.txt").read_text(encoding="utf-8")
    defaults, best = re.findall(r"^(?:defaults|best) +val/score ([\d.]+) \+- ([\d.]+)", measured, flags=re.MULTILINE)
    assert float(best[0]) - float(defaults[0]) > max(float(defaults[1]), float(best[1]))


def test_what_the_readme_says_of_liquid_cells_is_what_was_measured():
    measured = (ROOT / "benchmarks" / "results" / "liquid_speed.txt").read_text(encoding="utf-8")
    rows = {"CfC": "CfC", "input-gated liquid cell, a scan": "Liquid", "NCP wiring": "NCP", "LIF": "LIF"}
    for written, name in rows.items():
        (tokens,) = re.findall(rf"^{name} +[\d.]+ +([\d.]+) ", measured, flags=re.MULTILINE)
        (ratios,) = re.findall(rf"^{name} +[\d.]+ +[\d.]+ +(.*)$", measured, flags=re.MULTILINE)
        said, ratio = re.findall(rf"^\| {written} \| (\d+) \| .* \| ([\d.]+x) \|$", README, flags=re.MULTILINE)[0]
        assert float(said) == round(float(tokens))
        assert ratio == re.findall(r"[\d.]+x", ratios)[-1], "the least of its ratios"


def test_a_search_over_gangs_that_stand_in_for_real_ones_runs_to_its_end_and_tells_what_it_took():
    printed = run("scale.py", "--trials", "6", "--gangs", "3", "--seconds", "2")
    assert "{'completed': 6}, 24 reports" in printed
    (share,) = re.findall(r"^utilisation +([\d.]+) %", printed, flags=re.MULTILINE)
    assert 20 < float(share) <= 100


def test_the_driver_keeps_256_gangs_busy():
    measured = (ROOT / "benchmarks" / "results" / "scale.txt").read_text(encoding="utf-8")
    (share,) = re.findall(r"^utilisation +([\d.]+) %", measured, flags=re.MULTILINE)
    (latency,) = re.findall(r"^suggestion +2000 median ([\d.]+) ms", measured, flags=re.MULTILINE)
    assert float(share) >= 95
    assert float(latency) <= 100
