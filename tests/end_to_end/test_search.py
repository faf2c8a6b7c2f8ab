"""Whole searches, run as a user runs them: Ray, Optuna's journal and MLflow's store are the real ones."""

import json
import math
import re
import shutil
import sys

import numpy as np
import optuna
import pytest
import torch
from PIL import Image

from searchlight.search.formatting import format_duration
from searchlight.search.tracking.replay import replay
from tests.conftest import ROOT
from tests.end_to_end.finished_search import FinishedSearch, artifacts_of

BROKEN = r"RuntimeError: the loss is broken, at toy.py, line \d+, in loss"


@pytest.fixture(scope="module")
def search(make_cli):
    """12 trials over three precisions, some of which fail or diverge."""
    options = ["--trials", "12", "--concurrency", "2", "--sampler", "random", "--seed", "3", "--register", "mixed"]
    space = ["--search", "precision=fp32,bf16,fp16", "--search", "how=fine,raise,nan"]
    (cli := make_cli()).has_preflight = True
    found = FinishedSearch.run(cli, "mixed", "toy.py:Toy", *options, *space)
    # A test resumes the search with fewer checkpoints.
    found.kept = {folder.name: len(list(folder.glob("*.pt"))) for folder in (found.folder / "checkpoints").iterdir()}
    return found


def test_output_is_one_json_object_with_every_trial(search):
    assert set(search.json) == {
        "name",
        "schema",
        "outcomes",
        "best",
        "divergence",
        "infeasibility",
        "mlflow",
        "seconds",
        "stopped",
    }
    assert search.json["stopped"] is None
    assert sum(search.json["outcomes"].values()) == 12
    assert {"completed", "pruned", "diverged", "failed"} == set(search.json["outcomes"])
    assert "trial   0  epoch 1   val/loss" in search.done.stderr
    assert "\x1b" not in search.done.stderr


def test_outcome_of_a_trial_is_the_same_everywhere(search):
    in_parquet = {row["trial_id"]: row["outcome"] for row in search.rows}
    in_mlflow = {int(run.data.tags["trial_id"]): run.data.tags["outcome"] for run in search.children()}
    in_study = {number: outcome for number, (outcome, _) in search.trials_ended().items()}
    assert in_parquet == in_mlflow == in_study
    assert sorted(in_study) == list(range(12))


def test_failed_trial_keeps_its_reason_and_traceback(search):
    failed = [trial for trial in search.study.trials if trial.state == optuna.trial.TrialState.FAIL]
    assert failed
    for trial in failed:
        assert re.fullmatch(BROKEN, trial.user_attrs["reason"])
        assert "in loss" in (search.folder / "errors" / f"trial-{trial.number}.txt").read_text()


def test_diverged_trial_is_pruned_and_constrained(search):
    diverged = [trial for trial in search.study.trials if trial.user_attrs["outcome"] == "diverged"]
    assert diverged
    for trial in diverged:
        assert trial.state == optuna.trial.TrialState.PRUNED
        assert trial.constraints == {"diverged": 1.0}
        assert trial.user_attrs["reason"] == "val/loss is nan after epoch 1"
        assert trial.user_attrs["divergence"] == {"kind": "objective", "epoch": 1}
        (row,) = [row for row in search.rows if row["trial_id"] == trial.number]
        assert row["epoch"] == 1
        assert math.isnan(row["val/loss"])
        assert row["train/loss"] > 0, "what the epoch reported is kept"


def test_trials_stop_at_rungs_and_the_best_run_to_the_end(search):
    ended = {row["trial_id"] for row in search.rows if row["outcome"] in ("completed", "pruned")}
    epochs = {number: own for number, own in search.epochs().items() if number in ended}
    assert {1, 9} <= {max(own) for own in epochs.values()} <= {1, 3, 9}
    assert all(own == list(range(1, len(own) + 1)) for own in epochs.values())


def test_best_is_the_best_report_and_its_checkpoint_fits(search):
    values = {
        (row["trial_id"], row["epoch"]): row["val/loss"]
        for row in search.rows
        if row["outcome"] != "diverged" and row["val/loss"] is not None
    }
    best = search.json["best"]
    assert best["value"] == min(values.values())
    assert best["value"] < 0.7 * values[best["trial_id"], 1], "its loss fell"
    state = torch.load(best["checkpoint"], weights_only=True)
    assert values[best["trial_id"], state["epoch"]] == best["value"]
    assert state["config"] == best["config"]
    assert state["modules"]["model"]["0.weight"].shape == (8, 4)
    assert set(search.kept.values()) == {1}


def test_mlflow_has_a_parent_with_result_code_and_model(search):
    parent = search.parent
    assert (parent.info.run_name, parent.info.status) == ("mixed", "FINISHED")
    assert parent.data.metrics["best/val/loss"] == search.json["best"]["value"]
    for text in ("Best val/loss", "search/run.py --resume mixed", "search/run.py --config search.yaml"):
        assert text in parent.data.tags["mlflow.note.content"]
    assert {"space/lr", "trials", "scheduler", "sampler", "seed"} <= parent.data.params.keys()
    artifacts = {file.path for file in search.mlflow.list_artifacts(parent.info.run_id)}
    assert artifacts >= {"search.yaml", "trials.parquet", "report.html", "environment.json", "requirements.txt", "code"}
    code = {file.path for file in search.mlflow.list_artifacts(parent.info.run_id, "code")}
    assert code == {f"code/{path.name}" for path in (search.folder / "code").glob("*.py")}
    (model,) = parent.outputs.model_outputs
    assert search.json["mlflow"]["model"] == "models:/mixed/1"
    assert search.mlflow.get_logged_model(model.model_id).tags["trial_id"] == str(search.json["best"]["trial_id"])


def test_duration_is_the_same_in_json_page_and_mlflow(search):
    seconds, parent = search.json["seconds"], search.parent
    assert parent.data.metrics["time/search_s"] == pytest.approx(seconds, abs=0.001)
    assert parent.info.end_time - parent.info.start_time == pytest.approx(1000 * seconds, abs=2)
    page = (search.folder / "report.html").read_text(encoding="utf-8")
    assert f"<dt>ran for</dt><dd>{format_duration(seconds)}</dd>" in page


def test_mlflow_has_a_child_with_curves_for_each_trial(search):
    statuses = {"completed": "FINISHED", "pruned": "FINISHED", "diverged": "FAILED", "failed": "FAILED"}
    children = search.children()
    assert len(children) == 12
    for run in children:
        tags, metrics = run.data.tags, run.data.metrics
        assert run.info.status == statuses[tags["outcome"]]
        assert tags["precision"] == run.data.params["precision"]
        assert tags["code_version"] == search.parent.data.tags["code_version"]
        groups = {key.partition("/")[0] for key in metrics}
        assert groups <= {"Objective", "val", "train", "amp", "time", "sys", "best"}, (
            "no pid, no timers of Tune, no config"
        )
        assert float(run.data.params["lr"]) > 0
        curve = search.mlflow.get_metric_history(run.info.run_id, "val/loss")
        rows = [row for row in search.rows if str(row["trial_id"]) == tags["trial_id"] and row["epoch"]]
        assert sorted(m.step for m in curve) == [row["epoch"] for row in rows]
        if tags["outcome"] in ("completed", "pruned"):
            assert metrics["best/val/loss"] == min(row["val/loss"] for row in rows)
            assert sorted((m.step, m.value) for m in curve) == [(row["epoch"], row["val/loss"]) for row in rows]
            assert run.info.end_time == max(m.timestamp for m in curve), "it only waited since"
    assert search.parent.info.start_time <= min(run.info.start_time for run in children)
    assert search.parent.info.end_time >= max(run.info.end_time for run in children)


def test_mlflow_has_the_data_of_parent_and_trials(search):
    reported = [run for run in search.children() if run.data.tags["outcome"] in ("completed", "pruned")]
    for run in (search.parent, *reported):
        named = [(each.dataset.name, each.tags[0].value) for each in run.inputs.dataset_inputs]
        assert sorted(named) == [("plane", "evaluation"), ("plane", "training")]


def test_trial_has_the_picture_of_its_best_report(search, monkeypatch):
    """Replay sends it again."""
    # The note of the search is sent again too, and names its commands as this process was started.
    monkeypatch.setattr(sys, "argv", [str(ROOT / "search/run.py")])
    best = {}
    for row in search.rows:
        if row["outcome"] in ("completed", "pruned"):
            best[row["trial_id"]] = min(best.get(row["trial_id"], row), row, key=lambda row: row["val/loss"])
    expected = {number: {(int(row["train/updates"]),) * 3} for number, row in best.items()}
    assert len(expected) > 1
    runs = search.children()
    assert pictures_in(runs) == expected
    for run in runs:
        shutil.rmtree(artifacts_of(run) / "pictures", ignore_errors=True)
    assert pictures_in(runs) == {}
    replay(search.folder)
    assert pictures_in(runs) == expected


def pictures_in(runs):
    """The colors of the picture that each run has, by trial."""
    found = {}
    for run in runs:
        for path in artifacts_of(run).glob("pictures/steps.png"):
            picture = np.asarray(Image.open(path))
            found[int(run.data.tags["trial_id"])] = set(map(tuple, picture.reshape(-1, 3).tolist()))
    return found


def test_folder_has_study_report_and_code_and_no_more(search):
    names = {path.name for path in search.folder.iterdir()}
    study = {"study.journal", "study.journal.lock", "trials.parquet", "report.html", "best.yaml"}
    ran_with = {"search.yaml", "code", "environment.json", "requirements.txt", "driver.json"}
    assert names - {"code.diff"} == study | ran_with | {"checkpoints", "errors", "preflight.json"}
    assert {file.name for file in (search.folder / "code").iterdir()} >= {"toy.py", "beside.py"}
    assert search.cli.invoke("--config", str(search.folder / "search.yaml"), "--dry-run").returncode == 0


def test_list_and_report_show_the_search_again(search):
    assert search.cli.invoke("--list").stdout.startswith("mixed  ")
    page = search.folder / "report.html"
    page.unlink()
    report = search.cli.invoke("mixed", script="search/report.py")
    assert report.returncode == 0
    assert f"{search.json['best']['value']:.4f}" in report.stdout
    assert f"page: {page}" in report.stdout
    text = page.read_text()
    counts = [f"{count} {outcome}" for outcome, count in search.json["outcomes"].items()]
    best = search.json["best"]
    for expected in (
        "<h1>mixed</h1>",
        f"12 trials: {', '.join(counts[:-1])} and {counts[-1]}",
        f"Trial {best['trial_id']} reached val/loss {best['value']:.4g}",
        "RuntimeError: the loss is broken",
        "2 gangs trained in",
    ):
        assert expected in text
    for title in (
        "The best trial",
        "Progress",
        "Learning curves",
        "Precision",
        "Failed and diverged trials",
        "Where the time went",
    ):
        assert f"<h2>{title}</h2>" in text


def test_finished_search_resumes_without_training_or_its_files(search):
    files = [search.folder / "trials.parquet", search.folder / "report.html"]
    for file in files:
        file.rename(file.with_suffix(".aside"))
        file.mkdir()
    done = search.cli.run("--resume", "mixed", "--keep-checkpoints", "2", "--json")
    for file in files:
        file.rmdir()
        file.with_suffix(".aside").rename(file)
    told = [line for line in done.stderr.splitlines() if "cannot be written:" in line]
    assert [line.split()[0] for line in told] == [str(file) for file in files]
    assert all(line.endswith("search/report.py mixed writes it again") for line in told)
    again = json.loads(done.stdout)
    assert (done.returncode, again["outcomes"], again["best"]) == (0, search.json["outcomes"], search.json["best"])
    assert "all 12 trials have ended; --trials can be raised" in done.stderr
    checkpoints = [str(path) for path in search.folder.glob("checkpoints/*/*.pt")]
    assert len(checkpoints) == 2
    assert search.json["best"]["checkpoint"] in checkpoints
    assert search.parent.info.status == "FINISHED"


@pytest.mark.slow
def test_error_on_one_of_two_workers_ends_its_trial_alone(make_cli):
    options = ["--workers", "2", "--trials", "2", "--scheduler", "none", "--search", "how=fine,raise"]
    fixed = ["--set", "epochs=3", "rank_that_fails=1", "lr=0.01", "precision=fp32"]
    found = FinishedSearch.run(make_cli(), "two", "toy.py:Toy", *options, *fixed)
    assert found.json["outcomes"] == {"completed": 1, "failed": 1}, "each way once"
    assert [row["epoch"] for row in found.rows if row["config/how"] == "fine"] == [1, 2, 3]
    (failed,) = [row for row in found.rows if row["outcome"] == "failed"]
    assert failed["config/how"] == "raise"
    assert re.fullmatch(BROKEN, failed["reason"])


def test_time_budget_ends_a_search_whose_trials_are_stuck(make_cli):
    cli = make_cli()
    options = ["--concurrency", "1", "--time-budget", "14s", "--name", "stuck", "--json"]
    done = cli.run("toy.py:Toy", *options, "--set", "how=stuck", f"marker={cli.folder / 'stuck'}")
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    assert result["stopped"] == "time budget"
    assert result["seconds"] >= 14
    assert set(result["outcomes"]) <= {"interrupted"}, "if a trial had begun"
