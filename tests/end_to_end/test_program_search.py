"""Whole searches of small programs of each kind that users bring, none of which knows of Searchlight."""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from searchlight.search.study.record import load_search
from searchlight.search.study.trial import get_outcome

pytestmark = pytest.mark.slow
PROGRAMS = Path(__file__).with_name("programs")
RATES = [0.1, 0.2, 0.3, 0.4]  # the last one is worse than the median at each epoch
OF_RANK_0 = r"score=\[0\].*score ([0-9.]+)"
TRAINER = [
    "--eval_strategy",
    "epoch",
    "--num_train_epochs",
    "4",
    "--report_to",
    "none",
    "--use_cpu",
    "--seed",
    "{seed}",
]
LIGHTNING = [
    "--trainer.max_epochs=4",
    "--trainer.logger=false",
    "--trainer.accelerator=cpu",
    "--seed_everything={seed}",
]


@dataclass
class Case:
    """How a program is searched.

    Attributes:
        name: Of the learning rate.
        metric: That of the program for the value.
    """

    command: list[str]
    options: list[str]
    name: str = "learning_rate"
    metric: str = "score"


CASES = {
    "trainer": Case(["python", "trainer_program.py", *TRAINER], [], metric="eval_score"),
    "lightning": Case(["python", "lightning_program.py", *LIGHTNING], [], "model.learning_rate"),
    "tyro": Case(["python", "tyro_program.py"], ["--every", "10"], "learning-rate", "charts/score"),
    "torchrun": Case(
        ["torchrun", "--standalone", "--nproc_per_node={nproc}", "torchrun_program.py", "4"],
        ["--patch", "torchrun_program.py:LEARNING_RATE=lr", "--cpus-per-worker", "2", "--metric", OF_RANK_0],
        "lr",
    ),
    "accelerate": Case(
        ["accelerate", "launch", "--cpu", "accelerate_program.py"],
        ["--patch", "accelerate_program.py:main.config.lr=lr", "--metric", r"score='score': ([0-9.]+)"],
        "lr",
    ),
    "globals": Case(
        ["python", "globals_program.py", "--out_dir={checkpoint_dir}"],
        ["--flags", "--{name}={value}", "--metric", r"score=step (?P<step>\d+): .*score ([0-9.]+)"],
    ),
    "hydra": Case(["python", "hydra_program.py"], ["--set", "epochs=4"], "optimizer.lr"),
    "keras": Case(
        ["python", "keras_program.py"], ["--patch", "keras_program.py:learning_rate=learning_rate"], metric="val_score"
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", CASES)
def test_program_is_searched_as_it_is(make_cli, kind):
    cli, case = make_cli(kind), CASES[kind]
    shutil.copytree(PROGRAMS, cli.folder, dirs_exist_ok=True)
    cli.env |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "KERAS_BACKEND": "torch"}
    options = ["--name", "one", "--trials", "4", "--concurrency", "1", "--confirm", "0", "--scheduler", "median"]
    options += ["--search", f"{case.name}=0.1..0.5", "--objective", f"{case.metric}:min", "--tracker", "none"]
    options += [word for rate in RATES for word in ("--try", f"{case.name}={rate}")]
    before = sorted(path.name for path in cli.folder.iterdir())
    done = cli.run(*options, *case.options, "--", *case.command)
    assert done.returncode == 0, done.stderr
    folder = cli.folder / "runs" / "one"
    outcomes = [get_outcome(trial) for trial in load_search(folder).trials]
    assert outcomes == ["completed", "completed", "completed", "pruned"], done.stderr
    rows = pq.read_table(folder / "trials.parquet").to_pylist()
    assert [(row["trial_id"], row["epoch"]) for row in rows[:12]] == [(t, e) for t in range(3) for e in range(1, 5)]
    assert {row["trial_id"]: row[f"config/{case.name}"] for row in rows} == dict(enumerate(RATES))
    for row in rows:
        assert row[case.metric] == pytest.approx(row[f"config/{case.name}"] + 1 / row["epoch"])
    for trial in range(3):
        assert (folder / "trials" / str(trial) / "output.txt").read_text().count("after training") == 1
    assert sorted(path.name for path in cli.folder.iterdir() if path.name != "runs") == before
