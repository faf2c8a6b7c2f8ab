import json
import math
import sys

import pytest

from searchlight.search.command.options import CALL_OBJECTIVE
from tests.trainables.command.programs import run_command

CODE = """
import time
import optuna

def objective(trial, seed=0):
    lr, width = trial.suggest_float("lr", 1e-5, 1.0, log=True), trial.suggest_int("width", 1, 8)
    print(trial.number, trial.params, seed)
    return lr * width

def stopping(trial):
    step = 0
    while not trial.should_prune():
        trial.report(1 / (step + 1), step)
        step += 1
        time.sleep(0.01)
    raise optuna.TrialPruned

def failing(trial):
    return 1 / trial.suggest_int("depth", 1, 8)

def pruning(trial):
    raise optuna.TrialPruned

def returning(trial):
    trial.report(0.5, 0)
    return 0.25
"""


@pytest.fixture
def call(tmp_path):
    """Calls an objective as a search does."""
    (tmp_path / "train.py").write_text(CODE)
    variables = {
        "SEARCHLIGHT_PARAMS": json.dumps({"lr": 0.5, "width": 3, "seed": 7}),
        "SEARCHLIGHT_OBJECTIVES": json.dumps(["loss"]),
        "SEARCHLIGHT_TRIAL": "4",
    }

    def call(name, **options):
        command = [sys.executable, "-m", CALL_OBJECTIVE, "train.py", name]
        return run_command(tmp_path, command, **options, **variables)

    return call


def test_objective_gets_the_values_of_the_trial(call):
    outcome = call("objective")
    assert (outcome.code, outcome.output) == (0, "4 {'lr': 0.5, 'width': 3} 7\n")
    assert outcome.heard == [("what objective returned", None, {"loss": 1.5})]


def test_objective_reports_and_is_pruned(call):
    outcome = call("stopping", stop_after=3)
    assert (outcome.code, outcome.output, outcome.could_stop) == (0, "", True)
    assert outcome.heard[:3] == [("searchlight.report", step, {"loss": 1 / (step + 1)}) for step in range(3)]


def test_objective_that_suggests_an_unknown_name_fails(call):
    outcome = call("failing")
    assert outcome.code == 1
    problem = "the search must have the parameter depth, which the objective suggests, but has none."
    assert outcome.output.endswith(f"ValueError: {problem} Begin a new search with --search depth=...\n")


def test_objective_that_prunes_itself_before_its_first_report_has_diverged(call):
    outcome = call("pruning")
    assert outcome.code == 0
    [(_, _, metrics)] = outcome.heard
    assert math.isnan(metrics["loss"])


def test_objective_that_returns_another_value_than_it_has_reported_is_told(call):
    told = "searchlight: returning returned 0.25, but it reported 0.5 at last, which the search judges.\n"
    assert call("returning").output == told
