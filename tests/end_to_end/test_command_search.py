"""Whole searches of scripts that know nothing of Searchlight, or call only its report, run as a user runs them."""

import json
import random
import signal
import sys

import pyarrow.parquet as pq
import pytest
from mlflow.tracking import MlflowClient

from searchlight.search.study.record import load_search
from searchlight.search.study.trial import get_reports
from tests.end_to_end.processes import contains, is_running, wait_until

pytestmark = pytest.mark.slow
PLAIN = """
import argparse, random
parser = argparse.ArgumentParser()
parser.add_argument("--learning-rate", type=float, required=True)
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--seed", type=int, default=0)
given = parser.parse_args()
noise = random.Random(given.seed)
for epoch in range(1, given.epochs + 1):
    print(f"epoch {epoch}: loss {abs(given.learning_rate - 0.1) + 1 / epoch + noise.random() / 100:.5f}")
"""
# Saves each epoch, and continues after the last one that it has saved.
RESUMING = """
import sys, time
from pathlib import Path
import searchlight
last = Path(sys.argv[1], "last")
begin = int(last.read_text()) if "--resume" in sys.argv else 0
print("begins after", begin, flush=True)
for epoch in range(begin + 1, 5):
    last.write_text(str(epoch))
    searchlight.report(step=epoch, loss=searchlight.params()["lr"] + 1 / epoch)
    time.sleep(0.2)
"""
# Trial 1 reports again only once the driver has ended trial 0, whose gang is then idle.
IN_PAIRS = """
import time
from pathlib import Path
import searchlight
runs = Path(JOURNAL).parent
def wait_for(text, file):
    while not (file.exists() and text in file.read_text()):
        time.sleep(0.05)
print("begins", flush=True)
is_first = searchlight.params()["lr"] == 0.1
for epoch in range(1, 5):
    searchlight.report(step=epoch, loss=1 / epoch)
    if epoch == 1:
        wait_for("begins", runs / "trials/1/output.txt") if is_first else wait_for('"completed"', Path(JOURNAL))
"""

FUNCTION = """
import random
import searchlight

def evaluate(lr, width=4, seed=0):
    noise = random.Random(seed)
    for epoch in range(1, 4):
        loss = abs(lr - 0.1) + 1 / (width * epoch) + noise.random() / 100
        searchlight.report(step=epoch, loss=loss)
    return loss
"""

OBJECTIVE = """
import optuna

def objective(trial, seed=0):
    lr = trial.suggest_float("lr", 0.01, 1, log=True)
    width = trial.suggest_int("width", 2, 8)
    for epoch in range(3):
        loss = abs(lr - 0.1) + 1 / (width * (epoch + 1))
        trial.report(loss, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss

if __name__ == "__main__":
    study = optuna.create_study()
    study.optimize(objective, n_trials=4)
"""


@pytest.fixture
def cli(make_cli):
    cli = make_cli()
    cli.has_preflight = True  # the first trial begins alone
    return cli


def search(cli, name, *options):
    return ["--name", name, "--objective", "loss:min", *options]


def test_script_is_searched_stopped_early_and_confirmed(cli):
    names = ("search.py", "models.py", "yaml.py")  # which no worker may import
    launched = "import os; print('launched by', {*os.environ} & {'RANK', 'MASTER_ADDR', 'GLOO_SOCKET_IFNAME'})"
    (cli.folder / "train.py").write_text(f"if False:\n    import search, models, yaml\n{PLAIN}\n{launched}")
    for name in names:
        (cli.folder / name).write_text("raise SystemExit('imported')")
    broken = cli.folder / "broken"  # neither the driver nor a worker of a program imports torch
    (broken / "torch").mkdir(parents=True)
    (broken / "torch" / "__init__.py").write_text("raise SystemExit('torch imported')")
    cli.env["PYTHONPATH"] = str(broken)
    options = ["--search", "learning-rate=1e-3..1:log", "--set", "epochs=4", "--trials", "5", "--confirm", "4"]
    reads = ["--metric", r"loss=epoch (?P<step>\d+): loss (\S+)", "--scheduler", "asha-stop", "--seed-flag", "seed"]
    cli.has_mlflow = True
    options += ["--gpus-per-worker", "0"]
    done = cli.run(*search(cli, "plain", *options, *reads), "--json", "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert sum(result["outcomes"].values()) == 5
    assert result["outcomes"]["completed"] >= 1
    folder = cli.folder / "runs" / "plain"
    assert {path.name for path in (folder / "code").iterdir()} == {"train.py", *names}
    record = load_search(folder)
    seeds = {trial.user_attrs["config"]["seed"] for trial in record.confirming_runs}
    assert len(record.confirming_runs) == 4
    assert len(seeds) >= 2
    rows = pq.read_table(folder / "trials.parquet").to_pylist()
    assert {row["epoch"] for row in rows} <= {1, 2, 3, 4}
    output = (folder / "trials" / "0" / "output.txt").read_text()
    assert output.startswith("epoch 1: loss ")
    assert "launched by set()" in output
    assert not (folder / "trials" / "0" / "train.py").is_symlink()
    client = MlflowClient(result["mlflow"]["tracking_uri"])
    parent = client.get_run(result["mlflow"]["run_id"])
    assert parent.data.tags["command"] == f"{sys.executable} train.py"
    children = client.search_runs([result["mlflow"]["experiment_id"]], "tags.trial_id = '0'")
    assert "learning-rate" in children[0].data.params


def test_function_of_the_parameters_is_searched_and_confirmed(cli):
    (cli.folder / "train.py").write_text(FUNCTION)
    options = ["--search", "lr=0.01..1:log", "--search", "width=2..8", "--trials", "4", "--confirm", "4"]
    done = cli.run("train.py:evaluate", *search(cli, "called", *options, "--scheduler", "median"))
    assert done.returncode == 0, done.stderr
    assert " train.py:evaluate --once --objective loss:min " in done.stdout.rpartition("train: ")[2]
    record = load_search(cli.folder / "runs" / "called")
    assert len(record.confirming_runs) == 4
    for trial in (runs := [*record.trials, *record.confirming_runs]):
        config, reports = trial.user_attrs["config"], get_reports(trial)
        noise = random.Random(config["seed"])
        expected = [
            abs(config["lr"] - 0.1) + 1 / (config.get("width", 4) * epoch) + noise.random() / 100 for epoch in (1, 2, 3)
        ]
        assert [report["metrics"]["loss"] for report in reports.values()] == pytest.approx(expected[: len(reports)])
    assert len({trial.user_attrs["config"]["seed"] for trial in runs}) == 3


def test_objective_of_optuna_is_searched_over_what_it_suggests(cli):
    (cli.folder / "train.py").write_text(OBJECTIVE)
    options = ["--set", "width=4", "--trials", "4", "--confirm", "0", "--scheduler", "median"]
    done = cli.run("train.py:objective", *search(cli, "optuna", *options))
    assert done.returncode == 0, done.stderr
    trials = load_search(cli.folder / "runs" / "optuna").trials
    assert len({trial.params["lr"] for trial in trials}) == 4
    for trial in trials:
        assert trial.params.keys() == {"lr"}
        expected = [abs(trial.params["lr"] - 0.1) + 1 / (4 * epoch) for epoch in (1, 2, 3)]
        reports = [report["metrics"]["loss"] for report in get_reports(trial).values()]
        assert reports == pytest.approx(expected[: len(reports)])
    assert max(len(get_reports(trial)) for trial in trials) == 3


def test_script_continues_from_its_checkpoint_after_the_driver_was_killed(cli):
    (cli.folder / "train.py").write_text(RESUMING)
    options = ["--search", "lr=0.1..1", "--set", "epochs=4", "--trials", "2", "--scheduler", "asha", "--confirm", "0"]
    words = ["--resume-with", "--resume", "--concurrency", "1"]
    command = ["--", sys.executable, "train.py", "{checkpoint_dir}"]
    process = cli.start(*search(cli, "mortal", *options, *words), *command)
    folder = cli.folder / "runs" / "mortal"
    wait_until(lambda: contains(folder / "study.journal", "report/2"), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = cli.run("--resume", "mortal", "--json")
    assert done.returncode == 0, done.stderr
    assert sum(json.loads(done.stdout)["outcomes"].values()) == 2
    reports = [row for row in pq.read_table(folder / "trials.parquet").to_pylist() if row["epoch"] is not None]
    assert len({(row["trial_id"], row["epoch"]) for row in reports}) == len(reports), "each report once"
    for row in reports:
        assert row["loss"] == pytest.approx(row["config/lr"] + 1 / row["epoch"])
    output = "".join(file.read_text() for file in folder.glob("trials/*/output.txt"))
    assert "searchlight: the program continues" in output
    assert any(f"begins after {epoch}" in output for epoch in (1, 2, 3, 4))


def test_program_goes_on_beside_a_gang_that_is_idle(cli):
    journal = cli.folder / "runs" / "pair" / "study.journal"
    (cli.folder / "train.py").write_text(IN_PAIRS.replace("JOURNAL", repr(str(journal))))
    options = ["--search", "lr=0.1..1", "--set", "epochs=4", "--trials", "2", "--try", "lr=0.1", "--try", "lr=1"]
    schedule = ["--scheduler", "median", "--grace-period", "1", "--concurrency", "2", "--cpus-per-worker", "1"]
    done = cli.run(*search(cli, "pair", *options, *schedule), "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    outputs = [(journal.parent / "trials" / str(trial) / "output.txt").read_text() for trial in (0, 1)]
    assert [output.count("begins") for output in outputs] == [1, 1], "no program starts again"
    assert [len(get_reports(trial)) for trial in load_search(journal.parent).trials] == [4, 4]


def test_script_that_never_reports_ends_the_search_after_one_trial(cli):
    (cli.folder / "silent.py").write_text("print('accuracy: 0.5')\n")
    options = ["--search", "lr=0.1..1", "--trials", "5", "--metric", r"acc=accuracy: (\S+)", "--flags", "none"]
    schedule = ["--scheduler", "median", "--confirm", "0", "--concurrency", "1"]
    done = cli.run(*search(cli, "silent", *options, *schedule), "--", sys.executable, "silent.py")
    assert done.returncode == 2, done.stderr
    assert "the program ended without loss: it gave acc (1 times, output)" in done.stderr
    assert "trial 1" not in done.stderr
    assert "accuracy: 0.5" in (cli.folder / "runs" / "silent" / "errors" / "trial-0.txt").read_text()


def test_programs_end_with_a_stopped_search(cli):
    code = "import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(600)\n"
    (cli.folder / "endless.py").write_text(code)
    options = ["--search", "lr=0.1..1", "--flags", "none", "--scheduler", "median", "--confirm", "0", "--trials", "1"]
    process = cli.start(*search(cli, "endless", *options), "--", sys.executable, "endless.py")
    output = cli.folder / "runs" / "endless" / "trials" / "0" / "output.txt"
    wait_until(lambda: output.exists() and "pid" in output.read_text(), process)
    process.send_signal(signal.SIGINT)
    done = cli.finished(process)
    assert "resume: " in done.stderr
    assert not is_running(int(output.read_text().split()[1]))
