"""Tests that benchmarks run, and that the documents say what they measured."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.bench import Benchmark, wait_for
from benchmarks.bench import run as run_benchmark
from benchmarks.goals import ONE, TWO, TWO_AT_A_TIME, Result, find_turnaround, load, measure_gap, measure_liquid
from benchmarks.page import PARTS, render_page

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
def test_accumulation_errors_equal_the_recorded_ones():
    cells = r"^\| (\S.*?) +\|" + 4 * r" +(\d\S+|no step) \|" + "$"
    recorded = {name: errors for name, *errors in find(cells, measured("bench/accumulation_error"))}
    printed = {name: errors for name, *errors in find(cells, run("accumulation_error.py"))}
    assert printed.keys() == recorded.keys()
    assert len(printed) == 10
    for name in printed:
        for error, before in zip(printed[name], recorded[name], strict=True):
            if error == "no step":
                assert before == error
            elif float(error) < 1e-6:  # rounding, which is not the same everywhere
                assert float(before) < 1e-6
            else:
                assert float(error) == pytest.approx(float(before), rel=0.15), name


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


def test_page_equals_what_its_generator_writes():
    assert render_page(BENCHMARKS) == BENCHMARKS, "run python benchmarks/page.py"


def test_page_has_each_part_once():
    assert sorted(find(r"^<!-- generated: (\S+) -->$", BENCHMARKS)) == sorted(PARTS)


def test_numbers_read_outputs_with_quartiles():
    rows = "  search     200       430.4     1008        13.6 s       39 ms       35 to 44 ms  2.03 GiB"
    gap = measure_gap(ONE, 50)(Result("", "", f"{ONE}\n   trials\n{rows}\n\n{TWO}\n"))
    assert (gap.value, gap.spread, gap.reached) == ("39 ms", "quartiles 35 to 44 ms", True)
    row = "Liquid  1.83  558.5   13.7x (13.0 to 14.1) ncps CfC, backbone 128, 10.2x (9.9 to 10.4) ncps CfC"
    liquid = measure_liquid(("Liquid",), 12)(Result("", "", row))
    assert (liquid.value, liquid.spread, liquid.reached) == ("10.2 to 13.7x", "quartiles 9.9 to 14.1x", False)


def test_benchmark_that_fails_keeps_its_earlier_output(tmp_path, capsys):
    (tmp_path / "absent.txt").write_text("earlier")
    outcome, _ = run_benchmark(Benchmark("absent.py", 1.0), tmp_path, "a machine", "a commit", 60.0)
    assert outcome.startswith("failed: ")
    assert "absent.py" in capsys.readouterr().err
    assert [path.read_text() for path in tmp_path.iterdir()] == ["earlier"]


def test_process_is_ended_at_its_time_limit():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    assert not wait_for(process, 0.1)
    assert process.returncode


def test_readme_states_the_measured_time_between_trials():
    result = load("trial_turnaround")
    for kind in (ONE, TWO, TWO_AT_A_TIME):
        ours, recipe = find_turnaround(result, kind, "search"), find_turnaround(result, kind, "recipe")
        assert kind == TWO_AT_A_TIME or ours["gap"] < 0.1, (
            "README's row `from one trial's end` must say more than 100 ms"
        )
        assert recipe["gap"] > 200 * ours["gap"], "README's row `from one trial's end` must say less than 200 times"
    alone = find_turnaround(result, TWO_AT_A_TIME, "inline")
    ours = find_turnaround(result, TWO_AT_A_TIME, "search")
    assert 10 * alone["rate"] < ours["rate"], "README's row `from one trial's end` must say more than a tenth"


def test_readme_states_which_side_suits_trials_of_seconds():
    means = r"^(Searchlight|Optuna, one process) +\d+ +(\d+) s +[\d.]+ "
    first = dict(load("time_to_target").find_all(means))
    told = "README says that a loop of Optuna suits trials of seconds, since it has no start-up"
    assert int(first["Optuna, one process"]) < int(first["Searchlight"]), told


def test_docs_tell_the_measured_quality_of_searches():
    ratios = dict(find(r"^ +([\w-]+), all: final ratio ([\d.]+) ", measured("search_quality")))
    assert all(ratios[side] in doc("search-quality") for side in ("hyperband", "asha", "random"))


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


def test_ncp_is_compared_with_the_same_computation():
    liquid_speed = pytest.importorskip("benchmarks.models.liquid_speed")
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
    assert float(latency) <= 50


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
