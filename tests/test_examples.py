"""The examples run, and what they train gets better."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainables.training.trainer import train

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
TASKS = {
    "classifier.py:Classifier": {"lr": 0.01},
    "actor_critic.py:ActorCritic": {"actor_lr": 0.003, "critic_lr": 0.003},
    "diffusion.py:Diffusion": {},
}
FUNCTIONS = {
    "ray_function": {"lr": 0.01, "optimizer": "adam", "epochs": 8},
    "lightning_module": {"lr": 0.01, "epochs": 8},
}
# Without workers, Ray Train calls a function in the process that calls `fit`.
RUN = """
import json, sys, ray, ray.train, ray.train.torch
ray.init(address="local", num_cpus=1, include_dashboard=False)
found, report = {}, ray.train.report
for name, config in json.loads(sys.argv[1]).items():
    module = __import__(name)
    trainer = ray.train.torch.TorchTrainer(
        module.train_fn, train_loop_config=config, scaling_config=ray.train.ScalingConfig(num_workers=0)
    )
    found[name] = trainer.fit().metrics
print(json.dumps(found))
"""


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.stem)
def test_example_has_fewer_than_100_lines_and_says_how_it_is_run(file):
    text = file.read_text()
    assert len(text.splitlines()) < 100
    assert f"python search/run.py examples/{file.name}:" in text.split('"""')[1]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_task_of_an_example_gets_better(task, precision, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    module, _, name = task.partition(".py:")
    cls = getattr(importlib.import_module(module), name)
    config = cls.config_class()(precision=precision, epochs=6, **TASKS[task])
    first, *_, last = (report[cls.objective] for report in train(cls(config)))
    assert (last - first if cls.mode == "max" else first - last) > 0.1


@pytest.mark.slow
def test_functions_of_examples_report_what_they_learn():
    env = os.environ | {"PYTHONPATH": str(EXAMPLES)}
    done = subprocess.run([sys.executable, "-c", RUN, json.dumps(FUNCTIONS)], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ray_function"]["loss"] < 0.5
    assert found["lightning_module"]["val_loss"] < 0.5
