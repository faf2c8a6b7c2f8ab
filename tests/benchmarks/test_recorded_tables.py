"""Tables of recorded trainings of others as problems, and the defaults that each side tries first."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.search.problems.problems import Problem
from benchmarks.search.problems.recorded import list_problems
from benchmarks.search.problems.tables import RecordedTable, build_from_table, find_source, is_held_out
from benchmarks.search.recorded_noise import RecordedNoise
from benchmarks.search.recorded_tables import group_tables, list_comparisons
from benchmarks.search.runs import ALL_SIDES
from benchmarks.search.simulator import simulate
from benchmarks.search.warm_starts import search_with_warm_start

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "search" / "recorded_tables.py"
CONFIGS = np.array([[1e-3, 8, 0], [1e-1, 8, 1], [1e-1, 64, 0]])


def write_table(folder, name="lcbench_2", curves=None, **changed):
    """Write a table of three configs, two seeds and four steps, whose second config diverges at the last step."""
    if curves is None:
        curves = np.linspace(1.0, 0.4, 4) + np.array([0.0, 0.2, 0.4])[:, None, None] + np.array([0.0, 0.02])[:, None]
        curves[1, :, 3] = np.nan
    data = {"names": ["lr", "batch", "optimizer"], "kinds": ["float", "int", "choice"], "log": [True, True, False]}
    data |= {"low": [1e-4, 8.0, 0.0], "high": [1.0, 128.0, 1.0], "choices": json.dumps([None, None, ["sgd", "adam"]])}
    data |= {"configs": CONFIGS, "curves": np.float32(curves), "steps": np.arange(1, 5), "mode": "min"}
    data |= {
        "ended": [[0, 0], [1, 1], [0, 4]],
        "cost": np.array([1.0, 1.0, 3.0]),
        "default": CONFIGS[2],
        "default_index": 2,
    }
    file = folder / f"{name}.npz"
    np.savez(file, **{"meta": json.dumps({"validation_target": 0.65}), **data, **changed})
    return file


def test_config_replays_a_run_of_the_nearest_recorded_one(tmp_path):
    problem = build_from_table(write_table(tmp_path))
    assert problem.space.get_defaults() == {"lr": 0.1, "batch": 64, "optimizer": "sgd"}
    near = {"lr": 2e-3, "batch": 9, "optimizer": "sgd"}
    curves = [problem.curve(near, np.random.default_rng(seed)) for seed in range(20)]
    assert {round(curve.values[0], 3) for curve in curves} == {1.0, 1.02}
    assert {round(curve.final, 3) for curve in curves} == {0.41}  # the mean over seeds
    assert problem.best == pytest.approx(0.41)
    diverged = problem.curve({**near, "lr": 0.1, "optimizer": "adam"}, np.random.default_rng(0))
    assert diverged.diverges
    assert diverged.final == math.inf
    slow = [problem.curve({"lr": 0.1, "batch": 64, "optimizer": "sgd"}, np.random.default_rng(s)) for s in range(20)]
    assert {round(curve.values[0], 3) for curve in slow} == {1.4}  # the other run broke off
    assert slow[0].seconds == pytest.approx(3 * curves[0].seconds)


def test_score_is_minimized(tmp_path):
    problem = build_from_table(write_table(tmp_path, mode="max"))
    curve = problem.curve({"lr": 1e-3, "batch": 8, "optimizer": "sgd"}, np.random.default_rng(0))
    assert curve.values[0] == pytest.approx(-1.0, abs=0.03)


def test_run_that_stopped_at_its_target_is_better_the_sooner_it_did(tmp_path):
    times = np.array([[0.5, 0.5], [0.75, 0.75], [np.nan, np.nan]])
    curves = np.broadcast_to(
        np.array([[0.9, 0.6, 0.6, 0.6], [0.8, 0.7, 0.6, 0.6], [0.9, 0.8, 0.75, 0.7]])[:, None], (3, 2, 4)
    )
    file = write_table(tmp_path, "algoperf_x", curves, ended=[[2, 2], [2, 2], [0, 0]], time_to_target=times)
    problem = build_from_table(file)
    finals = [
        problem.curve(dict(zip(("lr", "batch"), config, strict=False)) | {"optimizer": "sgd"}, np.random.default_rng(0))
        for config in ((1e-3, 8), (1e-1, 64))
    ]
    assert finals[0].final == 0.5
    assert finals[0].values[0] > 1 >= problem.best
    assert finals[1].final > 1
    assert problem.delivered == "config"


def test_run_that_stopped_at_its_target_is_judged_alike_wherever_it_is_delivered(tmp_path):
    """At the step where a run has stopped, others of its config may not have: their mean is no time to the target."""
    curves = np.broadcast_to(np.array([0.9, 0.6, 0.6, 0.6]), (3, 2, 4))
    times = np.array([[0.5, 1.0], [0.75, 0.75], [1.0, 1.0]])
    problem = build_from_table(write_table(tmp_path, "algoperf_x", curves, ended=[[2, 2]] * 3, time_to_target=times))
    config = {"lr": 1e-3, "batch": 8, "optimizer": "sgd"}
    curve = next(c for seed in range(20) if (c := problem.curve(config, np.random.default_rng(seed))).values[1] == 0.5)
    assert [problem.regret(curve, epoch) for epoch in (2, 3, 4)] == [0.75 - problem.best] * 3


def test_table_without_curves_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must have curves, but has 1 step"):
        build_from_table(write_table(tmp_path, curves=np.ones((3, 2, 1))))


def test_families_are_left_out_in_whole_and_half_of_lcbench():
    assert [is_held_out(name) for name in ("taskset_a", "lcbench_12", "lcbench_13", "deepobs_a")] == [0, 0, 1, 1]


def test_families_left_out_in_whole_are_a_group_without_lcbench(tmp_path):
    names = ("taskset_a", "lcbench_3", "deepobs_a", "hporl_b")
    problems = [build_from_table(write_table(tmp_path, name)) for name in names]
    groups = {group: [problem.name for problem in those] for group, those in group_tables(problems).items()}
    assert [*groups] == ["taskset", "lcbench", "deepobs", "hporl", "families left out", "all"]
    assert groups["families left out"] == ["deepobs_a", "hporl_b"]
    assert groups["all"] == [*names]
    assert "families left out" not in group_tables(problems[:2])
    assert "families left out" not in group_tables(problems[2:]), "these are all"


def get_final(problem: Problem) -> float:
    assert problem.defaults is not None
    return problem.curve(problem.defaults, np.random.default_rng(0)).final


def test_wrong_defaults_are_worse_than_good_ones():
    cliff = next(problem for problem in list_problems() if problem.name == "cliff")
    assert cliff.give_defaults("none", 0).defaults is None
    assert cliff.give_defaults("documented", 0).defaults == cliff.space.get_defaults()
    for seed in range(3):
        assert get_final(cliff.give_defaults("good", seed)) < get_final(cliff.give_defaults("wrong", seed))
    assert cliff.give_defaults("wrong", 0).defaults != cliff.give_defaults("wrong", 1).defaults


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.5])
def test_point_lies_so_far_from_the_optimum(shift):
    cliff = next(problem for problem in list_problems() if problem.name == "cliff")
    point, optimum = cliff.find_point(shift, 1), cliff.optimum
    assert abs(math.log10(point["lr"] / optimum["lr"])) == pytest.approx(5 * shift, abs=1e-9)
    assert abs(point["curriculum"] - optimum["curriculum"]) == pytest.approx(shift, abs=1e-9)
    assert (point["precision"] == optimum["precision"]) == (shift < 0.5)
    ends = [cliff.curve(values, np.random.default_rng(0)).final - cliff.best for values in (point, optimum)]
    assert ends[1] < 0.01
    assert (ends[0] > 0.02) == (shift > 0)


@pytest.mark.parametrize(("side", "lasts"), [("believe-optimum", True), ("believe-wrong", False)])
def test_belief_lasts_unless_results_contradict_it(side, lasts):
    crossing = next(problem for problem in list_problems() if problem.name == "crossing")
    believing = ALL_SIDES[side](crossing, 0)
    simulate(believing, crossing, 8, 4 * crossing.seconds, 0)
    assert ("lr" in believing._study.beliefs) == lasts


@pytest.mark.parametrize("side", ["hyperband", "ray", "random", "optuna-hyperband"])
def test_side_tries_its_defaults_first(side):
    problem = next(problem for problem in list_problems() if problem.name == "cliff").give_defaults("wrong", 3)
    assert problem.defaults.items() <= ALL_SIDES[side](problem, 0).suggest().values.items()


def test_warm_start_comes_from_a_table_of_the_same_family_and_side_of_the_split():
    names = ["lcbench_2", "lcbench_3", "lcbench_4", "taskset_a"]
    assert [find_source(name, names) for name in names] == ["lcbench_4", None, "lcbench_2", None]


@pytest.mark.parametrize(("sign", "final"), [(1, 0.41), (-1, 0.8)])
def test_warm_start_tries_what_its_source_shows_as_best(tmp_path, sign, final):
    source = build_from_table(write_table(tmp_path, "taskset_b"))
    problem = replace(build_from_table(write_table(tmp_path, "taskset_a")), source=source)
    first = search_with_warm_start(problem, 0, sign).suggest()
    assert problem.curve(first.values, np.random.default_rng(0)).final == pytest.approx(final)


def run_script(*arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, env=environment)


def test_folder_without_tables_is_told(tmp_path):
    ran = run_script("--problems-from", tmp_path, "--runs", tmp_path / "runs.parquet")
    assert ran.returncode == 1
    assert f"but {tmp_path} has none of them" in ran.stderr
    ran = run_script("--problems", "clif", "--runs", tmp_path / "runs.parquet")
    assert "but this project has none of them" in ran.stderr


def test_peers_are_not_compared_with_each_other():
    sides = ["hyperband", "hyperband-even", "believe-near", "ray", "random"]
    assert [*list_comparisons(sides, ["hyperband-even", "ray", "random", "best peer"])] == [
        ("hyperband", "hyperband-even"),
        ("believe-near", "hyperband-even"),
        *((side, peer) for peer in ("ray", "random") for side in ("hyperband", "hyperband-even", "believe-near")),
        ("hyperband", "best peer"),
        ("hyperband-even", "best peer"),
    ]


@pytest.mark.slow
def test_script_compares_single_searches(tmp_path):
    write_table(tmp_path, "taskset_a")
    write_table(tmp_path, "lcbench_2")
    given = ["--problems-from", tmp_path, "--runs", tmp_path / "runs.parquet", "--seeds", "2", "--budgets", "8"]
    ran = run_script(*given, "--sides", "random,random@none")
    assert ran.returncode == 0, ran.stderr
    rows = json.loads(ran.stdout)["figures"]["measures"]
    assert [(row["side"], row["against"], row["tables"]) for row in rows] == [
        ("random", "random@none", "lcbench"),
        ("random", "random@none", "taskset"),
        ("random", "random@none", "all"),
    ]
    assert all(row["lower"] + row["equal"] + row["higher"] == 2 * row["of"] for row in rows)


def test_recorded_noise_has_the_means_and_spreads_of_the_runs(tmp_path):
    ends = np.array([[1.0, 3.0, 2.0], [5.0, 5.5, 6.0], [np.nan, 0.0, 0.0]])
    curves = np.broadcast_to(ends[..., None], (3, 3, 4))
    file = write_table(tmp_path, "nanogpt_x", curves, ended=[[0, 0, 0], [0, 0, 0], [1, 0, 0]], default_index=1)
    recorded, draw = RecordedNoise(RecordedTable(file), 3), np.random.default_rng(0)
    trials = recorded.search(draw, 20)
    assert recorded.configs == 2, "a config that diverges is left out"
    assert trials.true.tolist() == [-5.5, -2.0], "the defaults first, and larger is better"
    runs = [recorded.run(draw, trials, 1, 0.0) for _ in range(2000)]
    assert np.mean(runs) == pytest.approx(-2.0, abs=0.1)
    assert np.std(runs) == pytest.approx(1.0, rel=0.1)
    assert len(set(runs)) == 2000, "no run is equal to another because few were recorded"
