"""Tests that benchmarks run, and that the documents say what they measured."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
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


def measured(name: str) -> str:
    return (ROOT / "benchmarks" / "results" / f"{name}.txt").read_text(encoding="utf-8")


def doc(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def find(pattern: str, text: str) -> list:
    return re.findall(pattern, text, flags=re.MULTILINE)


@needs_peers
@pytest.mark.slow
def test_docs_tell_the_measured_accumulation_errors():
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
        (row,) = find(rf"^\| {written} \| (.*) \|$", BENCHMARKS)
        for said, found in zip(row.replace("*", "").split(" | "), printed[name], strict=True):
            if found == "no step":
                assert said == "never applied"
            elif float(found) < 1e-6:  # rounding, which is not the same everywhere
                assert float(said.removesuffix(" %")) < 1e-4
            else:
                assert float(said.removesuffix(" %")) == pytest.approx(100 * float(found), rel=0.15), name


@needs_peers
@pytest.mark.slow
def test_update_adds_less_to_a_plain_loop_than_accelerate():  # I88
    printed = run("update_overhead.py", "--models", "tiny", "--rows", "plain", "--seconds", "3")
    added = {name: float(us) for name, us in find(r"^  (\w+) .* us +([+-][\d.]+) us", printed)}
    assert added["Searchlight"] < 0.6 * added["Accelerate"]


@pytest.mark.slow
def test_sides_of_the_reduction_end_at_the_same_weights():
    printed = run("reduction_cost.py", "--models", "tiny")
    assert len(re.findall(r"Searchlight takes [\d.]+x of its least", printed)) == 3


def test_docs_tell_the_measured_turnaround_of_trials():
    pattern = r"^ +(?:search|recipe) +\d+ +([\d.]+) +\d+ +([\d.]+) s +(\d+) ms"
    found = {tuple(float(cell) for cell in row) for row in find(pattern, measured("trial_turnaround"))}
    rows = find(r"^\| .* \| ([\d.]+) \| ([\d.]+) s \| ([\d.]+) (m?s) \|$", BENCHMARKS)
    assert len(found) == len(rows) == 6
    for rate, first, turnaround, unit in rows:
        said = (float(rate), float(first), float(turnaround) * (1 if unit == "ms" else 1000))
        assert any(said == pytest.approx(row, rel=0.02) for row in found), said


def test_docs_tell_the_measured_results_of_whole_searches():
    side = r"(Searchlight|Ray's recipe|Optuna, one process)"
    pattern = rf"^{side} +3 +(\d+) s +([\d.]+) +([\d.]+) +([\d.]+) +(\d+) +(\d+) +(\d+)$"
    found = [
        (name, first, f"{float(loss):.3f}", *more)
        for name, first, loss, *more in find(pattern, measured("time_to_target"))
    ]
    table = BENCHMARKS.partition("## Whole searches in equal time")[2].partition("\n## ")[0]
    row = rf"^\| {side} \| (\d+) s \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \| (\d+) \| (\d+) \| (\d+) \|$"
    assert len(found) == 3
    assert find(row, table) == found


def test_docs_tell_the_measured_quality_of_searches():
    interval = r"\[([\d.]+), ([\d.]+)\]"
    results = find(rf"^ +([\w-]+), all: final ratio ([\d.]+) {interval} {interval}", measured("search_quality"))
    found = {side: (ratio, f"{low} to {high}", f"{a} to {b}") for side, ratio, low, high, a, b in results}
    table = BENCHMARKS.partition("## Final values of searches")[2].partition("\n## ")[0]
    rows = find(r"^\| .* \| ([\d.]+) \| (.*) \| (.*) \|$", table)
    assert rows == [found[side] for side in ("hyperband", "asha", "random")]
    assert all(ratio in doc("search-quality") for ratio, *_ in rows)


def test_docs_tell_the_measured_cost_of_tracking():
    results, told = measured("tracking_cost"), doc("mlflow").partition("## What it costs")[2]
    row = r"^  (SQLite|mlflow server).*? s +([+-][\d.]+ %) +([\d.]+ s) +([\d.]+ ms) +[\d.]+ % +([\d.]+ %)"
    found = find(row, results)
    assert len(found) == 2
    assert find(r"^\| `?(SQLite|mlflow server)`?.*? \| (.*) \| (.*) \| (.*) \| (.*) \|$", told) == found
    (peer,) = re.findall(r"MLflowLoggerCallback, mlflow server: (\d+) ms", results)
    assert f"{peer} ms" in told
    for _, longer, *_ in found:
        assert float(longer.removesuffix(" %")) <= 2.0, "what MLflow may take of a search's time"


def test_docs_tell_the_measured_importances():
    known, nothing = measured("importances").partition("\nnothing matters")[::2]
    row = r"^ +(\d+) +(\d+)%(?: +\d+%){5} +(\d+)% "
    wrong = {trials: share for trials, _, share in find(row, nothing)}
    found = [(trials, told, share, wrong.get(trials, "-")) for trials, told, share in find(row, known)]
    assert find(r"^\| (\d+) \| (\d+) % \| (\d+) % \| (\d+|-)(?: %)? \|$", doc("results")) == found
    assert len(found) >= 3


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("arc", "arc_best"),
        ("arc", "arc_spread"),
        ("arc", "arc_ablation"),
        ("arc", "arc_families"),
        ("arc", "arc_answers"),
        ("arc", "arc_mixed"),
        ("arc", "arc_refinement"),
        ("liquid", "liquid_best"),
        ("liquid", "continual"),
        ("liquid", "plasticity"),
        ("liquid", "liquid_speed"),
        ("lm", "lm"),
        ("preflight", "preflight"),
        ("scaling", "scale"),
        ("reliability", "soak"),
    ],
)
def test_docs_quote_the_measured_results(page, name):
    printed = [line for line in measured(name).splitlines()[1:] if line and not line.startswith("$")]
    assert printed
    assert [line for line in doc(page).splitlines() if line in printed] == printed


def test_docs_tell_the_measured_errors_of_the_liquid_network():
    rows: dict[str, list[str]] = {}
    for name, block in find(r"^([\w-]+): \d+ s of one core\n((?:.+\n)+?)\* below", measured("liquid_baselines")):
        for line in block.splitlines()[2:]:
            domain, *peers, after, end, _ = line.replace("*", "").split()
            rows.setdefault(domain, peers[-2:]).append(after if name.endswith("at-once") else f"{after}, {end}")
    table = [f"| {domain} | {' | '.join(cells)} |" for domain, cells in rows.items()]
    assert len(table) == 10
    assert [line for line in doc("liquid").splitlines() if line in table] == table


def test_docs_tell_the_measured_speed_of_liquid_cells():
    rows = {"CfC": "CfC", "input-gated liquid cell, a scan": "Liquid", "NCP wiring": "NCP", "LIF": "LIF"}
    for written, name in rows.items():
        ((tokens, ratios),) = find(rf"^{name} +[\d.]+ +([\d.]+) +(.*)$", measured("liquid_speed"))
        said, ratio = find(rf"^\| {written} \| (\d+) \| .* \| ([\d.]+x) \|$", BENCHMARKS)[0]
        assert float(said) == round(float(tokens))
        assert ratio == re.findall(r"[\d.]+x", ratios)[-1], "the least of its ratios"


def test_ncp_is_compared_with_the_same_computation():
    liquid_speed = pytest.importorskip("benchmarks.liquid_speed")
    sides = liquid_speed.contenders(2, 5, 12, torch.device("cpu"))
    x = torch.randn(2, 5, 12)
    (peer,) = sides["NCP"].peers
    torch.testing.assert_close(sides["NCP"].run(x), sides[peer].run(x))


@pytest.mark.slow
def test_search_over_simulated_gangs_runs_to_its_end():
    printed = run("scale.py", "--trials", "3", "--gangs", "3", "--seconds", "1")
    assert "{'completed': 3}, 12 reports" in printed
    (share,) = find(r"^utilisation +([\d.]+) %", printed)
    assert 0 < float(share) <= 100


def test_measured_results_reach_their_targets():
    (share,) = find(r"^utilisation +([\d.]+) %", measured("scale"))
    (latency,) = find(r"^suggestion +2000 median ([\d.]+) ms", measured("scale"))
    assert float(share) >= 95
    assert float(latency) <= 100


def test_docs_tell_what_confirming_runs_are_worth():
    pattern = r"^noise ([\d.]+) spreads, (\d+) confirming runs.*\n((?:.+\n)+)"
    mean = r"^mean +([\d.]+)% +([\d.]+)% +(\S+) +(\S+) +([\d.]+)% +([\d.]+)% +(\S+) +(\S+) "
    found = [(noise, runs, *find(mean, block)[0]) for noise, runs, block in find(pattern, measured("confirmation"))]
    assert len(found) == 6
    percents = r" \| ([\d.]+) % \| ([\d.]+) %"
    row = rf"^\| ([\d.]+) \| (\d+){percents} \| (\S+) \| (\S+){percents} \| (\S+) \| (\S+) \|$"
    assert find(row, doc("confirmation")) == found


def test_docs_tell_what_confirming_runs_are_worth_on_a_real_task():
    number = r" +(\S+)"
    found = []
    for runs, block in find(r"^recorded trainings, (\d+) confirming runs.*\n((?:.+\n)+)", measured("confirmation")):
        percents = r" +([\d.]+)% +([\d.]+)%"
        for name, *figures in find(rf"^(\S.*?){percents}{number}{number}{percents}{number}{number} ", block):
            found.append((name.strip(), runs, *figures))
    assert len(found) == 8
    percents = r" \| ([\d.]+) % \| ([\d.]+) %"
    row = rf"^\| (\D.*?|60 .*?) \| (\d+){percents} \| (\S+) \| (\S+){percents} \| (\S+) \| (\S+) \|$"
    assert find(row, doc("confirmation")) == found
