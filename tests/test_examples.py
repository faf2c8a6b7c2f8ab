"""The examples run, and what they train gets better."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from searchlight.search.study.record import load_search
from searchlight.trainables.training.trainer import train

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
import json, sys, ray, ray.train, ray.train.torch, torch
ray.init(address="local", num_cpus=1, include_dashboard=False)
found, report = {}, ray.train.report
for name, config in json.loads(sys.argv[1]).items():
    module = __import__(name)
    torch.manual_seed(0)  # the weights at the start
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
    assert re.search(rf"searchlight run (.*python )?examples/{file.name}[: ]", text.split('"""')[1], re.DOTALL)


def test_script_prints_what_its_command_listens_to_and_gets_better():
    command = (EXAMPLES / "script.py").read_text().split('"""')[1]
    (pattern,) = re.findall(r"--metric 'error=(.*?)'", command)
    done = subprocess.run([sys.executable, EXAMPLES / "script.py", "--lr=0.1"], capture_output=True, text=True)
    errors = [float(error) for error in re.findall(pattern, done.stdout)]
    assert len(errors) == 9
    assert errors[-1] < 0.1 < errors[0]


def read_code_cells():
    """Return the code of each cell of the notebook. The notebook is stored without outputs."""
    notebook = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert notebook["cells"][0]["cell_type"] == "markdown"  # it says what the notebook shows
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    return ["".join(cell["source"]) for cell in cells]


def test_notebook_has_short_cells_without_outputs():
    cells = read_code_cells()
    assert sum(len(cell.splitlines()) for cell in cells) < 100
    for cell in cells:
        compile(cell, "notebook.ipynb", "exec")


@pytest.mark.slow
def test_search_of_the_notebook_resumes_without_it(make_cli):
    cli = make_cli("notebook")
    env = {**cli.env, "PYTHONPATH": str(EXAMPLES.parent)}

    def run(cells):
        """Like a notebook, a program from standard input has no file that a worker could import."""
        command = [sys.executable, "-"]
        done = subprocess.run(command, input=cells, cwd=cli.folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1].split()

    check = 'print(losses[-1] < losses[0], len(table), "Confirmed: " in result._repr_html_(), result.name)'
    *found, name = run("\n".join([*read_code_cells(), check]))
    assert found == ["True", "6", "True"]
    again = f"from searchlight import resume; result = resume({name!r}, given={{'trials': 7, 'confirm': 0}})"
    assert run(f"{again}; print(len(result.trials), bool(result.best))") == ["7", "True"]
    (task,) = (cli.folder / "runs" / name / "code").glob("task_Sine.py")
    assert load_search(cli.folder / "runs" / name).about["config"]["task"] == f"{task}:Sine"


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


@pytest.mark.slow
def test_agent_keeps_the_edit_that_confirming_runs_show_to_help(make_cli):
    cli = make_cli("agent")
    env = {**cli.env, "PYTHONPATH": str(EXAMPLES.parent)}
    command = [sys.executable, str(EXAMPLES / "agent" / "research.py")]
    done = subprocess.run(command, cwd=cli.folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    log = json.loads(done.stdout.splitlines()[-1])
    assert [hypothesis["kept"] for hypothesis in log] == [False, True]
    assert load_search(cli.folder / "runs" / "edit2").about["config"]["warm_start"]
