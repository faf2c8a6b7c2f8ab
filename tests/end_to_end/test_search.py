"""Whole searches, run as a user runs them: Ray, Optuna's journal and MLflow's store are the real ones."""

import json
import math
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import optuna
import pyarrow.parquet as pq
import pytest
import torch
from mlflow.tracking import MlflowClient
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from PIL import Image

from search.tracking.replay import replay

MODES = "precision=fp32,bf16,fp16"


class Search:
    """A search that has run, and everything that it left."""

    def __init__(self, cli, done, name):
        self.cli, self.done, self.folder = cli, done, cli.folder / "runs" / name
        assert done.returncode == 0, done.stderr
        self.json = json.loads(done.stdout)
        self.rows = pq.read_table(self.folder / "trials.parquet").to_pylist()
        self.mlflow = MlflowClient(self.json["mlflow"]["tracking_uri"])
        storage = JournalStorage(JournalFileBackend(str(self.folder / "study.journal")))
        self.study = optuna.load_study(study_name=name, storage=storage)

    def children(self):
        runs = self.mlflow.search_runs([self.json["mlflow"]["experiment_id"]], max_results=1000)
        return [run for run in runs if run.data.tags.get("mlflow.parentRunId") == self.json["mlflow"]["run_id"]]


@pytest.fixture(scope="module")
def search(make_cli):
    """12 trials over three precisions, some of which fail or diverge."""
    cli = make_cli()
    arguments = ["--trials", "12", "--concurrency", "2", "--name", "mixed", "--sampler", "random", "--seed", "3"]
    done = cli.run(
        "toy.py:Toy", *arguments, "--search", MODES, "--search", "how=fine,raise,nan", "--json", "--log-model"
    )
    return Search(cli, done, "mixed")


def test_the_best_checkpoint_is_a_model_on_the_parent_run_which_stays_as_it_ended(search):
    parent = search.mlflow.get_run(search.json["mlflow"]["run_id"])
    (model,) = parent.outputs.model_outputs
    assert search.json["mlflow"]["model"] == f"models:/{model.model_id}"
    assert parent.info.status == "FINISHED"
    assert search.mlflow.get_logged_model(model.model_id).tags["trial_id"] == str(search.json["best"]["trial_id"])


def test_the_data_that_the_task_named_is_with_the_trials_that_reported_and_once_with_the_search(search):
    parent = search.mlflow.get_run(search.json["mlflow"]["run_id"])
    reported = [run for run in search.children() if run.data.tags["outcome"] in ("completed", "pruned")]
    for run in (parent, *reported):
        named = [(each.dataset.name, each.tags[0].value) for each in run.inputs.dataset_inputs]
        assert sorted(named) == [("plane", "evaluation"), ("plane", "training")]


def test_standard_output_is_one_json_object_that_accounts_for_every_trial(search):
    assert set(search.json) == {"name", "outcomes", "best", "divergence", "mlflow", "seconds", "stopped"}
    assert search.json["stopped"] is None
    assert sum(search.json["outcomes"].values()) == 12
    assert set(search.json["outcomes"]) <= {"completed", "pruned", "diverged", "failed"}
    assert {"completed", "pruned", "diverged", "failed"} <= set(search.json["outcomes"])


def test_every_trial_has_one_outcome_and_it_is_the_same_everywhere(search):
    in_parquet = {row["trial_id"]: row["outcome"] for row in search.rows}
    in_mlflow = {int(run.data.tags["trial_id"]): run.data.tags["outcome"] for run in search.children()}
    in_study = {
        t.number: "completed" if t.state == optuna.trial.TrialState.COMPLETE else t.user_attrs["outcome"]
        for t in search.study.trials
    }
    assert in_parquet == in_mlflow == in_study
    assert sorted(in_study) == list(range(12))


def test_a_failed_trial_keeps_its_reason_and_its_traceback_and_the_others_go_on(search):
    failed = [trial for trial in search.study.trials if trial.state == optuna.trial.TrialState.FAIL]
    assert failed
    for trial in failed:
        assert trial.user_attrs["reason"] == "RuntimeError: the loss is broken"
        assert "in loss" in (search.folder / "errors" / f"trial-{trial.number}.txt").read_text()


def test_a_diverged_trial_is_an_answer_to_the_sampler_and_no_failure(search):
    diverged = [trial for trial in search.study.trials if trial.user_attrs.get("outcome") == "diverged"]
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


def test_trials_stop_at_rungs_and_the_best_of_them_run_to_the_end(search):
    epochs = {}
    for row in search.rows:
        if row["outcome"] in ("completed", "pruned"):
            epochs.setdefault(row["trial_id"], []).append(row["epoch"])
    assert {1, 9} <= {max(trial) for trial in epochs.values()} <= {1, 3, 9}
    assert all(trial == list(range(1, len(trial) + 1)) for trial in epochs.values())


def test_the_best_is_the_best_report_of_all_and_its_checkpoint_holds_the_model(search):
    values = {(row["trial_id"], row["epoch"]): row["val/loss"] for row in search.rows if row["outcome"] != "diverged"}
    values = {key: value for key, value in values.items() if value is not None}
    best = search.json["best"]
    assert best["value"] == min(values.values())
    state = torch.load(best["checkpoint"], weights_only=True)
    assert values[best["trial_id"], state["epoch"]] == best["value"]
    assert state["config"] == best["config"]
    assert state["modules"]["model"]["0.weight"].shape == (8, 4)


def test_only_the_best_checkpoint_of_a_trial_is_kept(search):
    kept = {folder.name: len(list(folder.glob("*.pt"))) for folder in (search.folder / "checkpoints").iterdir()}
    assert kept
    assert set(kept.values()) == {1}


def test_a_loss_falls_while_its_trial_trains(search):
    best = [row["val/loss"] for row in search.rows if row["trial_id"] == search.json["best"]["trial_id"]]
    assert best[-1] < 0.7 * best[0]


def test_mlflow_shows_a_parent_and_its_children_with_parameters_and_curves(search):
    parent = search.mlflow.get_run(search.json["mlflow"]["run_id"])
    assert (parent.info.run_name, parent.info.status) == ("mixed", "FINISHED")
    assert parent.data.metrics["best/val/loss"] == search.json["best"]["value"]
    assert "Best val/loss" in parent.data.tags["mlflow.note.content"]
    assert "python search/run.py --resume mixed" in parent.data.tags["mlflow.note.content"]
    assert "python search/run.py --config search.yaml" in parent.data.tags["mlflow.note.content"]
    artifacts = {file.path for file in search.mlflow.list_artifacts(parent.info.run_id)}
    assert artifacts >= {"search.yaml", "trials.parquet", "report.html", "environment.json", "requirements.txt", "code"}
    code = {file.path for file in search.mlflow.list_artifacts(parent.info.run_id, "code")}
    assert code == {f"code/{path.name}" for path in (search.folder / "code").glob("*.py")}
    statuses = {"completed": "FINISHED", "pruned": "KILLED", "diverged": "FAILED", "failed": "FAILED"}
    children = search.children()
    assert len(children) == 12
    for run in children:
        assert run.info.status == statuses[run.data.tags["outcome"]]
        assert run.data.tags["precision"] == run.data.params["precision"]
        assert run.data.tags["code_version"] == parent.data.tags["code_version"]
        groups = {key.partition("/")[0] for key in run.data.metrics}
        assert groups <= {"val", "train", "amp", "time", "sys", "best"}, "no pid, no timers of Tune, no config"
        assert float(run.data.params["lr"]) > 0
        curve = search.mlflow.get_metric_history(run.info.run_id, "val/loss")
        rows = [row for row in search.rows if str(row["trial_id"]) == run.data.tags["trial_id"] and row["epoch"]]
        assert sorted(m.step for m in curve) == [row["epoch"] for row in rows]
        if run.data.tags["outcome"] in ("completed", "pruned"):
            assert run.data.metrics["best/val/loss"] == min(row["val/loss"] for row in rows)
            assert sorted((m.step, m.value) for m in curve) == [(row["epoch"], row["val/loss"]) for row in rows]


def test_every_trial_that_reported_has_the_picture_of_its_best_report_and_replay_sends_it_again(search):
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


def artifacts_of(run):
    return Path(run.info.artifact_uri.removeprefix("file://"))


def pictures_in(runs):
    """The colours of the picture that each run has, by trial."""
    found = {}
    for run in runs:
        for path in artifacts_of(run).glob("pictures/steps.png"):
            picture = np.asarray(Image.open(path))
            found[int(run.data.tags["trial_id"])] = set(map(tuple, picture.reshape(-1, 3).tolist()))
    return found


def test_progress_goes_to_standard_error_as_plain_lines(search):
    assert "trial   0  epoch 1   val/loss" in search.done.stderr
    assert "\x1b" not in search.done.stderr


def test_the_resolved_yaml_lies_beside_the_study_and_nothing_of_ray_is_left(search):
    names = {path.name for path in search.folder.iterdir()}
    study = {"study.journal", "study.journal.lock", "trials.parquet", "report.html"}
    ran_with = {"search.yaml", "code", "environment.json", "requirements.txt"}
    assert names - {"code.diff"} == study | ran_with | {"checkpoints", "errors"}
    assert {file.name for file in (search.folder / "code").iterdir()} >= {"toy.py", "beside.py"}
    assert search.cli.run("--config", str(search.folder / "search.yaml"), "--dry-run").returncode == 0


def test_list_and_report_show_the_search_again(search):
    listed = search.cli.run("--list")
    assert listed.returncode == 0
    assert listed.stdout.startswith("mixed  ")
    page = search.folder / "report.html"
    page.unlink()
    report = search.cli.run("mixed", script="search/report.py")
    assert report.returncode == 0
    assert f"{search.json['best']['value']:.4f}" in report.stdout
    assert f"page: {page}" in report.stdout
    assert "<h1>mixed</h1>" in page.read_text()
    missing = search.cli.run("nothing", script="search/report.py")
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)


def test_the_page_says_what_came_of_the_search(search):
    page = (search.folder / "report.html").read_text()
    counts = [f"{count} {outcome}" for outcome, count in search.json["outcomes"].items()]
    assert f"12 trials: {', '.join(counts[:-1])} and {counts[-1]}" in page
    assert f"Trial {search.json['best']['trial_id']} reached val/loss {search.json['best']['value']:.4g}" in page
    assert "RuntimeError: the loss is broken" in page
    assert "2 gangs trained in" in page
    for title in ("The best trial", "Progress", "Learning curves", "Precision", "Failures", "Where the time went"):
        assert f"<h2>{title}</h2>" in page


def test_files_that_cannot_be_written_are_told_and_the_parent_run_ends_all_the_same(search):
    files = [search.folder / "trials.parquet", search.folder / "report.html"]
    for file in files:
        file.rename(file.with_suffix(".aside"))
        file.mkdir()
    done = search.cli.run("--resume", "mixed", "--json")
    for file in files:
        file.rmdir()
        file.with_suffix(".aside").rename(file)
    told = [line for line in done.stderr.splitlines() if "cannot be written:" in line]
    assert [line.split()[0] for line in told] == [str(file) for file in files]
    assert all(line.endswith("python search/report.py mixed writes it again") for line in told)
    assert (done.returncode, json.loads(done.stdout)["outcomes"]) == (0, search.json["outcomes"])
    assert search.mlflow.get_run(search.json["mlflow"]["run_id"]).info.status == "FINISHED"


def test_the_same_seed_and_one_gang_give_the_same_search_and_a_lost_worker_changes_nothing(make_cli):
    """The second one is started from the YAML that the first one left, and a worker of it dies in the third epoch:
    the trial goes on from its checkpoint to the same result."""
    results = []
    options = ["toy.py:Toy", "--trials", "3", "--concurrency", "1", "--scheduler", "none", "--set", "epochs=4"]
    for how in ("fine", "lost once"):
        cli = make_cli()
        own = ["--name", "same", "--storage", "runs", "--set", f"how={how}", f"marker={cli.folder / 'lost'}", "--json"]
        found = Search(cli, cli.run(*options, *own), "same")
        options = ["--config", str(found.folder / "search.yaml")]
        assert (cli.folder / "lost").exists() == (how == "lost once")
        assert found.json["outcomes"] == {"completed": 3}
        drop = ("config/how", "config/marker", "gpu_seconds", "time/", "sys/")
        results.append([{k: v for k, v in row.items() if not k.startswith(drop)} for row in found.rows])
    assert results[0] == results[1]


def test_of_two_workers_an_error_on_one_ends_its_trial_alone_and_one_that_is_lost_costs_none(make_cli):
    cli = make_cli()
    options = ["--workers", "2", "--trials", "3", "--scheduler", "none", "--name", "two", "--json"]
    fixed = ["--set", "epochs=3", "rank_that_fails=1", f"marker={cli.folder / 'lost'}", "lr=0.01", "precision=fp32"]
    found = Search(cli, cli.run("toy.py:Toy", *options, *fixed, "--search", "how=fine,raise,lost once"), "two")
    assert (cli.folder / "lost").exists()
    assert found.json["outcomes"] == {"completed": 2, "failed": 1}, "each way once"
    epochs = {how: [row["epoch"] for row in found.rows if row["config/how"] == how] for how in ("fine", "lost once")}
    assert epochs == {"fine": [1, 2, 3], "lost once": [1, 2, 3]}
    (failed,) = [row for row in found.rows if row["outcome"] == "failed"]
    assert (failed["config/how"], failed["reason"]) == ("raise", "RuntimeError: the loss is broken")


def test_a_time_budget_ends_a_search_what_waited_is_pruned_and_what_ran_is_interrupted(make_cli):
    cli = make_cli()
    options = ["--trials", "500", "--time-budget", "28s", "--name", "brief", "--json", "--set", "pause_s=0.1"]
    found = Search(cli, cli.run("toy.py:Toy", *options), "brief")
    assert found.json["seconds"] < 58
    ended = {row["trial_id"]: (row["outcome"], row["epoch"]) for row in found.rows}  # the last row of each
    assert 2 < len(ended) < 500
    assert [outcome for outcome, _ in ended.values()].count("interrupted") <= 2, "one per gang"
    assert {outcome for outcome, epoch in ended.values() if epoch not in (1, 3, 9)} <= {"interrupted"}
    assert "pruned" in {outcome for outcome, _ in ended.values()}


def test_ctrl_c_ends_a_search_whose_trials_are_stuck(make_cli):
    cli = make_cli()
    marker = cli.folder / "stuck"
    process = cli.start("toy.py:Toy", "--name", "stuck", "--set", "how=stuck", f"marker={marker}", "--json")
    deadline = time.monotonic() + 60
    while not marker.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - start < 20, err
    assert set(json.loads(out)["outcomes"]) == {"interrupted"}
