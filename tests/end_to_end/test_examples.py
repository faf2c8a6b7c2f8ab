"""The examples run, what they train gets better, and none of them mixes the CPU with a GPU."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from searchlight.search.study.record import load_search
from searchlight.search.study.trial import get_outcome, get_reports

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TASKS = {
    "classifier.py:Classifier": {"lr": 0.01},
    "actor_critic.py:ActorCritic": {"actor_lr": 0.003, "critic_lr": 0.003},
    "diffusion.py:Diffusion": {},
    "sharded.py:Sharded": {"lr": 0.003},
    "two_objectives.py:Digits": {},
}
NEEDS = {"actor_critic": "gymnasium", "lora": "peft"}
# `searchlight check` looks into tasks and functions. NCCL, with which torchrun_script.py begins, is not simulated.
CHECKED = {
    **{task: [] for task in TASKS},
    "huggingface.py:train_fn": ["lr=0.01", "warmup_steps=0", "epochs=1"],
    "lightning_module.py:train_fn": ["lr=0.01", "epochs=1"],
    "ray_function.py:train_fn": ["lr=0.01", "optimizer=adam", "epochs=1"],
}
TRAIN = """
import importlib, json, sys
from searchlight.trainables.training.trainer import train
module, name, values = sys.argv[1:]
cls, gains = getattr(importlib.import_module(module), name), {}
for precision in ("fp32", "bf16"):
    example = cls(cls.config_class()(precision=precision, epochs=3, **json.loads(values)))
    first, *_, last = (report[cls.objective] for report in train(example))
    gains[precision] = last - first if cls.mode == "max" else first - last
    example.context.close()  # a sharded one has made a process group
print(json.dumps(gains))
"""
RUN_ON_SIMULATED_GPU = """
import runpy, sys
from searchlight.trainables.preflight.shadow_device.shadow import shadow_cuda
sys.argv = sys.argv[1:]
with shadow_cuda():
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def read_command(file):
    """Return the words of the first command of an example, without `searchlight run` and how long it searches."""
    text = re.sub(r"\\\n\s*", " ", ast.get_docstring(ast.parse(file.read_text())))
    (command, *_) = re.findall(r"^ *searchlight run (.*)$", text, flags=re.MULTILINE)
    return shlex.split(re.sub(r"--trials \d+|--set epochs=\d+", "", command), comments=True)


def need(name):
    """Skip a test of an example whose package is not installed."""
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.stem)
def test_example_has_fewer_than_100_lines_and_says_how_it_is_run(file):
    text = file.read_text()
    assert len(text.splitlines()) < 100
    assert any(word.startswith(f"examples/{file.name}") for word in read_command(file))


def test_index_names_each_example():
    index = (EXAMPLES / "README.md").read_text()
    names = {path.name for path in EXAMPLES.iterdir()} - {"README.md", "__pycache__"}
    assert {name for name in names if f"({name}" not in index} == set()


def test_script_prints_what_its_command_listens_to_and_gets_better():
    (pattern,) = [word.removeprefix("error=") for word in read_command(EXAMPLES / "script.py") if "=test error" in word]
    done = subprocess.run([sys.executable, EXAMPLES / "script.py", "--lr=0.1"], capture_output=True, text=True)
    errors = [float(error) for error in re.findall(pattern, done.stdout)]
    assert len(errors) == 9
    assert errors[-1] < 0.1 < errors[0]


def read_code_cells():
    """Return the cells of the notebook that have code. It is stored as it was run, from its first to its last cell."""
    notebook = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert notebook["cells"][0]["cell_type"] == "markdown"  # it says what the notebook shows
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    return cells


def test_notebook_has_short_cells_and_shows_what_they_print():
    definition, *others = cells = read_code_cells()
    assert definition["outputs"] == []
    for cell in others:
        kinds = {output["output_type"] for output in cell["outputs"]}
        assert kinds
        assert kinds <= {"stream", "execute_result"}
    assert "beats the defaults" in json.dumps(others)
    assert sum(len(cell["source"]) for cell in cells) < 100
    for cell in cells:
        compile("".join(cell["source"]), "notebook.ipynb", "exec")


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
    *found, name = run("\n".join([*("".join(cell["source"]) for cell in read_code_cells()), check]))
    assert found == ["True", "6", "True"]
    again = f"from searchlight import resume; result = resume({name!r}, given={{'trials': 7, 'confirm': 0}})"
    assert run(f"{again}; print(len(result.trials), bool(result.best))") == ["7", "True"]
    (task,) = (cli.folder / "runs" / name / "code").glob("task_Sine.py")
    assert load_search(cli.folder / "runs" / name).about["config"]["task"] == f"{task}:Sine"


@pytest.mark.parametrize("task", TASKS)
def test_task_of_an_example_gets_better(task):
    module, _, name = task.partition(".py:")
    need(module)
    # A process of its own has no modules of other tests, and takes the group of a sharded task with it.
    command = [sys.executable, "-c", TRAIN, module, name, json.dumps(TASKS[task])]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(EXAMPLES)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    gains = json.loads(done.stdout.splitlines()[-1])
    assert gains.keys() == {"fp32", "bf16"}
    assert min(gains.values()) > 0.1, gains


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.stem)
def test_command_of_an_example_is_searched(file, make_cli):
    need(file.stem)
    cli = make_cli(file.stem)
    cli.has_preflight = True
    (cli.folder / "examples").symlink_to(EXAMPLES)
    cli.env |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "WANDB_MODE": "offline"}
    options = ["--trials", "2", "--concurrency", "1", "--scheduler", "none", "--set", "epochs=3", "--name", "one"]
    words = read_command(file)
    done = cli.run(*options, *words)
    assert done.returncode == 0, done.stderr
    trials = load_search(cli.folder / "runs" / "one").trials
    assert [get_outcome(trial) for trial in trials] == ["completed", "completed"], done.stderr
    if words[0].endswith(":train_fn") or "--" in words:  # what a task learns, another test looks at
        name, _, mode = words[words.index("--objective") + 1].partition(":")
        values = [[report["metrics"][name] for report in get_reports(trial).values()] for trial in trials]
        assert any((max if mode == "max" else min)(each) != each[0] for each in values)


@pytest.mark.slow
@pytest.mark.parametrize("task", CHECKED)
def test_example_passes_the_check_for_gpus(task, make_cli):
    need(task.partition(".py:")[0])
    done = make_cli().run("check", str(EXAMPLES / task), "--device", "cuda", *CHECKED[task], script="search/cli.py")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["script", "accelerate_script", "lora"])
def test_program_runs_on_a_simulated_gpu(name, tmp_path):
    need(name)
    env = os.environ | {"WANDB_MODE": "offline", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUN_ON_SIMULATED_GPU, str(EXAMPLES / f"{name}.py"), "--epochs", "1"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


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
