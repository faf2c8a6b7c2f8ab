import math

import pyarrow.parquet as pq
import pytest
from optuna.samplers import RandomSampler
from rich.console import Console

from search.export import write_parquet
from search.objectives import Objective
from search.results import count_outcomes, find_best
from search.space import resolve
from search.study import create
from search.table import trial_table
from trainables.task import TaskConfig, searchable


class Config(TaskConfig):
    lr: float = searchable(0.5, low=0.0, high=1.0)


SCORE = [Objective("val/score", "max")]


@pytest.fixture
def trials(tmp_path):
    """Five trials, one of each outcome; the best report is the second of the pruned one."""
    study, lock = create(tmp_path, RandomSampler, "val/score", "max")
    space = resolve(Config, {"precision": "fp32"}, {})
    plays = {
        "completed": [0.1, 0.5, 0.4],
        "pruned": [0.2, 0.9, 0.3],
        "diverged": [0.95],
        "failed": [],
        "interrupted": [0.99],
    }
    for outcome, scores in plays.items():
        number, values = study.ask(space)
        study.note_config(number, {"lr": values["lr"], "inner": {"kind": "a"}})
        for epoch, score in enumerate(scores, start=1):
            metrics = {"val/score": score, "train/loss": math.nan if outcome == "diverged" else 1.0, "count": 3}
            study.report(number, epoch, score, {"metrics": metrics, "checkpoint": f"{number}-{epoch}.pt"})
        if outcome != "interrupted":
            study.end(number, outcome, "because", {"kind": "skips", "epoch": 2} if outcome == "diverged" else None)
    yield study.trials()
    lock.close()


def test_outcomes_are_counted_by_name(trials):
    assert count_outcomes(trials) == dict.fromkeys(["completed", "pruned", "diverged", "failed", "interrupted"], 1)


def test_the_best_comes_from_completed_and_pruned_trials_with_the_checkpoint_of_its_report(trials):
    best = find_best(trials, "max")
    assert (best.trial_id, best.value, best.checkpoint) == (1, 0.9, "1-2.pt")
    assert best.config["inner"] == {"kind": "a"}
    assert find_best(trials, "min").value == 0.1
    assert find_best(trials[2:], "max") is None


def test_parquet_has_a_row_per_report_and_one_for_a_trial_without_any(trials, tmp_path):
    write_parquet(trials, tmp_path / "trials.parquet")
    rows = pq.read_table(tmp_path / "trials.parquet").to_pylist()
    assert [(row["trial_id"], row["epoch"]) for row in rows] == [
        (0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (2, 1), (3, None), (4, 1),
    ]  # fmt: skip
    assert [row["outcome"] for row in rows if row["trial_id"] in (2, 3, 4)] == ["diverged", "failed", "interrupted"]
    assert math.isnan(rows[6]["train/loss"])
    assert [row["divergence"] for row in rows if row["divergence"]] == ["skips"]
    assert rows[7]["val/score"] is None
    assert rows[7]["reason"] == "because"
    assert rows[0]["config/inner.kind"] == "a"
    assert isinstance(rows[0]["count"], int)


def test_parquet_has_what_a_trial_took_until_each_report(tmp_path):
    study, lock = create(tmp_path, lambda number: RandomSampler(seed=number), "val/score", "max")
    number, _ = study.ask(resolve(Config, {"precision": "fp32"}, {}))
    study.note_config(number, {})
    for epoch in (1, 2):
        metrics = {"val/score": 0.1, "samples": 7.0}  # a metric of the task's own
        costs = {"samples": 100.0, "gpu_seconds": 0.5}
        study.report(number, epoch, 0.1, {"metrics": metrics, "checkpoint": None, **costs})
    write_parquet(study.trials(), tmp_path / "trials.parquet")
    rows = pq.read_table(tmp_path / "trials.parquet").to_pylist()
    assert [(row["samples"], row["gpu_seconds"], row["reported/samples"]) for row in rows] == [
        (100.0, 0.5, 7.0),
        (200.0, 1.0, 7.0),
    ]
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(trial_table(study.trials(), SCORE))
    header, line = console.export_text().splitlines()
    assert dict(zip(header.split(), line.split(), strict=True))["GPU-s"] == "1"
    lock.close()


def test_the_table_ranks_by_the_best_report_and_puts_the_unranked_last(trials):
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(trial_table(trials, SCORE))
    lines = console.export_text().splitlines()
    assert [int(line.split()[0]) for line in lines[1:]] == [4, 2, 1, 0, 3]
    assert lines[-1].split()[1:4] == ["failed", "0", "-"]


def test_small_values_are_told_apart_in_the_table(tmp_path):
    study, lock = create(tmp_path, RandomSampler, "loss", "min")
    for loss in (3e-7, 2e-6):
        number, _ = study.ask(resolve(Config, {"precision": "fp32"}, {}))
        study.report(number, 1, loss, {"metrics": {"loss": loss}, "checkpoint": None})
        study.end(number, "completed")
    console = Console(width=120)
    with console.capture() as captured:
        console.print(trial_table(study.trials(), [Objective("loss", "min")]))
    assert [line.split()[4] for line in captured.get().splitlines()[1:]] == ["3e-07", "2e-06"]
    lock.close()
