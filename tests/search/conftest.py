import math
import shutil

import pytest
from optuna.samplers import RandomSampler

from searchlight.search.experiment import steering
from searchlight.search.experiment.steering import Steering
from searchlight.search.space.objectives import Objective
from searchlight.search.space.search_space import resolve_space
from searchlight.search.study.study import create_study
from searchlight.trainables.task import TaskConfig, searchable
from tests.search.execution.searcher_harness import searcher_over
from tests.search.objectives import VAL_SCORE
from tests.search.steered_driver import Driver


class Config(TaskConfig):
    lr: float = searchable(0.5, low=0.0, high=1.0)


@pytest.fixture
def trials(tmp_path):
    """Five trials, one of each outcome; the best report is the second of the pruned one."""
    study, lock = create_study(tmp_path, RandomSampler, [VAL_SCORE])
    space = resolve_space(Config, {"precision": "fp32"}, {})
    plays = {
        "completed": [0.1, 0.5, 0.4],
        "pruned": [0.2, 0.9, 0.3],
        "diverged": [0.95],
        "failed": [],
        "interrupted": [0.99],
    }
    for outcome, scores in plays.items():
        number, values = study.ask(space)
        study.record_config(number, {"lr": values["lr"], "inner": {"kind": "a"}})
        for epoch, score in enumerate(scores, start=1):
            metrics = {"val/score": score, "train/loss": math.nan if outcome == "diverged" else 1.0, "count": 3}
            study.report(number, epoch, score, {"metrics": metrics, "checkpoint": f"{number}-{epoch}.pt"})
        if outcome != "interrupted":
            details = {"divergence": {"kind": "skips", "epoch": 2}} if outcome == "diverged" else None
            study.end(number, outcome, "because", details)
    yield study.get_trials()
    lock.close()


@pytest.fixture
def make_searcher(tmp_path):
    """Makes a searcher over a new study, or `onto` one that there is."""
    locks = []

    def make(onto=None, mode="min", others=(), **given):
        if onto is None:
            onto, lock = create_study(tmp_path, RandomSampler, [Objective("val/loss", mode), *others])
            locks.append(lock)
        return searcher_over(onto, tmp_path, mode=mode, **given)

    yield make
    for lock in locks:
        lock.close()


@pytest.fixture
def driver(make_searcher, tmp_path, monkeypatch):
    """The driver of a search in `tmp_path` that follows commands."""
    monkeypatch.setattr(steering, "READ_S", 0.05)
    made = Driver(make_searcher(trials=10), tmp_path)
    told = list[object]().append
    with Steering(made.searcher, tmp_path, told, told, told, told):
        made.thread.start()
        yield made
        made.over.set()
        made.thread.join()


@pytest.fixture
def mlflow_db(empty_mlflow_db, tmp_path):
    """The default store of searches in `tmp_path`."""
    return shutil.copy(empty_mlflow_db, tmp_path / "mlflow.db")
