"""A task as a class or a function: what a search is planned with, in scripts and packages of a user."""

import subprocess
import sys
import threading

import pytest

from searchlight.search.config import SearchConfig
from searchlight.search.experiment.task_files import resolve_task
from searchlight.trainables.arc import ArcTask
from searchlight.trainables.task import Task, TaskConfig
from tests.conftest import ROOT
from tests.search.refusals import problems_of

TASK = """
from helpers import loss
from searchlight.trainables.task import Task, TaskConfig

class Own(Task[TaskConfig]):
    objective, mode = "val/loss", "min"

    def build(self): ...
    def train_batches(self, epoch): ...
    def loss(self, batch): return loss
    def evaluate(self): ...

def train(config): return loss
"""
# What a driver plans, and a later process loads.
PLAN = """
import sys
from pathlib import Path
from searchlight.search.experiment import SearchConfig, plan

for task, options in ((Own, {{}}), (train, {{"objective": ("loss:min",), "search": {{"lr": "0..1"}}}})):
    planned = plan(SearchConfig(task=task, name="own", scheduler="none", **options))
    print(planned.source.reference, *sorted(planned.source.modules), planned.config.experiment)
    print(planned.config.task.removeprefix(str(Path.cwd())))
assert "ray" not in sys.modules, "a wrong option is reported before its import"
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "helpers.py").write_text("loss = 3")
    (tmp_path / "unrelated.py").write_text("key = 'of the user'")  # nothing imports it
    return tmp_path


def run(folder, *arguments, **options):
    environ = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environ, capture_output=True, text=True, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("how", "sent"),
    [
        ("script", "helpers.py loaded.py script.py task_{}.py"),
        ("notebook", "helpers.py loaded.py package script.py task_{}.py unrelated.py"),
        ("module", "helpers.py loaded.py package task_{}.py"),
    ],
)
def test_task_of_the_main_module_is_kept_pickled_with_what_it_imports(folder, how, sent):
    """A notebook has no file, as what is read from standard input: all modules beside it are kept."""
    text = f"{TASK}\nexec('import loaded')\n{PLAN.format()}"
    (folder / "loaded.py").touch()
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").touch()
    (folder / "package" / "main.py").write_text(text)
    (folder / "script.py").write_text(text)
    arguments = {"script": ["script.py"], "notebook": ["-"], "module": ["-m", "package.main"]}[how]
    assert run(folder, *arguments, input=text if how == "notebook" else "") == [
        f"task_Own:Own {sent.format('Own')} Own",
        "/runs/own/code/task_Own.py:Own",
        f"task_train:train {sent.format('train')} train",
        "/runs/own/code/task_train.py:train",
    ]


@pytest.mark.parametrize("package", ["", "package"])
def test_task_of_a_file_keeps_its_file(folder, package):
    (folder / package).mkdir(exist_ok=True)
    (folder / package / "own.py").write_text(TASK)
    (folder / package / "__init__.py").touch()
    module = f"{package}.own" if package else "own"
    printed = run(folder, "-c", f"from {module} import Own, train\n{PLAN.format()}")
    expected = {
        "": ["own:Own helpers.py own.py Own", "/own.py:Own", "own:train helpers.py own.py train", "/own.py:train"],
        "package": [
            "task_Own:Own helpers.py package task_Own.py Own",
            "/runs/own/code/task_Own.py:Own",
            "task_train:train helpers.py package task_train.py train",
            "/runs/own/code/task_train.py:train",
        ],
    }[package]
    assert printed == expected


def test_installed_task_is_imported_and_brings_no_files():
    config, source = resolve_task(SearchConfig(task=ArcTask, name="own"))
    (file,) = source.modules.values()
    assert file.read_text() == "from searchlight.trainables.arc.task import ArcTask\n"
    assert source.task_class is ArcTask
    assert config.task.endswith("own/code/task_ArcTask.py:ArcTask")


class Incomplete(Task[TaskConfig]):
    """It has no method of a task."""


def own_task(kept):
    """Return a task class that is in no module, so that it is pickled with `kept`."""

    class Own(Task[TaskConfig]):
        objective, mode = "val/loss", "min"
        data = kept

        def build(self): ...
        def train_batches(self, epoch): ...
        def loss(self, batch): ...
        def evaluate(self): ...

    return Own


def test_task_that_cannot_be_kept_is_refused():
    def resolve(task):
        return resolve_task(SearchConfig(task=task, name="own"))

    (unpicklable,) = problems_of(resolve, own_task(threading.Lock()))
    assert unpicklable.startswith("task must be picklable, but Own raised TypeError: cannot pickle")
    assert unpicklable.endswith("Create objects that cannot be pickled in build, or put the task into a file.")
    assert problems_of(resolve, own_task(bytes(65 * 2**20))) == [
        "task must have at most 64 MiB when it is pickled, but Own has 65 with the objects that it refers to. "
        "Load them in build."
    ]
    (incomplete,) = problems_of(resolve, Incomplete)
    assert incomplete.startswith("Incomplete must define build")
    (neither,) = problems_of(resolve, dict)
    assert neither == "dict must be a class that derives from Task, or a function of a config, but is neither."


def test_object_without_a_name_is_no_task():
    for task in (3, lambda config: None):
        with pytest.raises(ValueError, match="must be a text, or a class or a function that has a name"):
            SearchConfig(task=task)
