"""Whole searches that a user starts from Python, with a task of a script or a notebook."""

import subprocess
import sys

import pytest

from search.study.record import load_search
from tests.conftest import ROOT

SCRIPT = """
import torch
from beside import data
from search.experiment import SearchConfig, run
from trainables.task import Task, TaskConfig, searchable


class Config(TaskConfig):
    lr: float = searchable(1e-2, low=1e-4, high=1e-1, log=True)


def make_net():
    return torch.nn.Linear(4, 1)


class Own(Task[Config]):
    objective, mode = "val/loss", "min"

    def build(self):
        self.x, self.y = data()
        self.modules = {"model": make_net()}
        self.optimizers = {"model": torch.optim.SGD(self.modules["model"].parameters(), lr=self.config.lr)}

    def train_batches(self, epoch):
        return self.context.shard((self.x[:64], self.y[:64]), batch_size=16)

    def loss(self, batch):
        x, y = batch
        return torch.nn.functional.mse_loss(self.modules["model"](x), y), len(x)

    def evaluate(self):
        return {"val/loss": torch.nn.functional.mse_loss(self.modules["model"](self.x[64:]), self.y[64:]).item()}


options = {"confirm": 0, "concurrency": 1, "scheduler": "none", "set": {"epochs": 2}, "name": "own"}
if __name__ == "__main__":
    print(*run(SearchConfig(task=Own, trials=2, **options)).trials["outcome"])
"""
NOTEBOOK = """
from search.experiment import resume
result = resume("own", given={"trials": 3})
print(*result.trials["outcome"])
assert result._repr_html_().count("<tr>") == 3
"""


@pytest.mark.slow
def test_class_of_a_script_is_searched_and_resumed_without_it(make_cli):
    cli = make_cli()
    script = cli.folder / "own_search.py"
    script.write_text(SCRIPT)

    def run(*arguments, **options):
        command = [sys.executable, *arguments]
        env = {**cli.env, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=cli.folder, env=env, capture_output=True, text=True, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    assert run(script.name) == "completed completed"
    script.unlink()
    assert run("-", input=NOTEBOOK) == "completed completed completed"
    searched = load_search(cli.folder / "runs" / "own")
    assert searched.about["config"]["task"] == f"{cli.folder}/runs/own/code/task_Own.py:Own"
    assert [len(trial.intermediate_values) for trial in searched.trials] == [2, 2, 2]
