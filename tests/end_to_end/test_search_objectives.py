"""A whole search with several objectives over a space that is smaller than its budget."""

import pytest
from rich.console import Console

from search.analysis.ranking import trial_rows
from search.config.objectives import Objective
from search.reporting.console.tables import build_table
from search.study.record import load_search
from tests.end_to_end.finished_search import FinishedSearch

pytestmark = pytest.mark.slow  # a whole search, of what tests without Ray show in parts

WEIGHED = ["time/samples_per_s", "sys/memory_gib"]


@pytest.fixture(scope="module")
def search(make_cli):
    """Three precisions and two windows, of which nine trials are asked."""
    objectives = ["--objective", "val/loss", "--objective", f"{WEIGHED[0]}:max", "--objective", f"{WEIGHED[1]}:min"]
    space = ["--search", "precision=fp32,bf16,fp16", "--search", "accumulation=1,2", "--set", "lr=1e-2", "epochs=3"]
    options = ["--trials", "9", "--concurrency", "1", "--seed", "1"]
    return FinishedSearch.run(make_cli(), "weighed", "toy.py:Toy", *options, *objectives, *space)


def test_each_combination_is_tried_once(search):
    assert sum(search.json["outcomes"].values()) == 6
    assert "the space has 6 combinations: as many trials, and not 9" in search.done.stderr
    tried = {(row["config/precision"], row["config/accumulation"]) for row in search.rows}
    assert len(tried) == 6


def test_front_has_the_trials_that_no_other_dominates(search):
    """Worked out anew from the rows of the Parquet file."""
    best = {}
    for row in search.rows:
        if row["trial_id"] not in best or row["val/loss"] < best[row["trial_id"]]["val/loss"]:
            best[row["trial_id"]] = row
    points = {n: (row["val/loss"], -row[WEIGHED[0]], row[WEIGHED[1]]) for n, row in best.items()}
    beaten = {
        n
        for n, point in points.items()
        if any(o != point and all(a <= b for a, b in zip(o, point, strict=True)) for o in points.values())
    }
    front = search.json["front"]
    assert {trial["trial_id"] for trial in front} == set(points) - beaten
    for trial in front:
        row = best[trial["trial_id"]]
        assert trial["values"] == {name: row[name] for name in ("val/loss", *WEIGHED)}
        assert trial["config"]["precision"] == row["config/precision"]
        assert f"epoch-{row['epoch']}-" in trial["checkpoint"]
    assert search.json["best"]["trial_id"] == front[0]["trial_id"], "the best by the first objective is on it"
    assert search.json["best"]["value"] == front[0]["values"]["val/loss"]


def test_study_has_all_directions_and_values(search):
    assert [direction.name for direction in search.study.directions] == ["MINIMIZE", "MAXIMIZE", "MINIMIZE"]
    completed = [trial for trial in search.study.trials if trial.state.name == "COMPLETE"]
    assert len(completed) == search.json["outcomes"]["completed"]
    assert all(len(trial.values) == 3 for trial in completed)


def test_mlflow_has_the_front_and_each_objective(search):
    note = search.parent.data.tags["mlflow.note.content"]
    assert "**Pareto front**" in note
    assert "| trial | val/loss:min | time/samples_per_s:max | sys/memory_gib:min |" in note
    for run in search.children():
        assert {f"best/{name}" for name in ("val/loss", *WEIGHED)} <= run.data.metrics.keys()


def test_the_table_of_the_search_marks_the_front(search):
    searched = load_search(search.folder)
    trials, objectives = searched.trials, searched.objectives
    assert objectives[1:] == (Objective(WEIGHED[0], "max"), Objective(WEIGHED[1], "min"))
    console = Console(width=200, record=True, quiet=False)
    console.print(build_table(trial_rows(trials, objectives)))
    assert console.export_text().count("*") == len(search.json["front"])
    listed = search.cli.run("weighed", script="search/report.py")
    assert listed.stdout.count("*") == len(search.json["front"])
