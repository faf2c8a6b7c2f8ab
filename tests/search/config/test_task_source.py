import sys

import pytest

from searchlight.search.config.task_source import load_task_source
from tests.search.refusals import problems_of

TASK = """
from searchlight.trainables.task import Task, TaskConfig

from {imported}

class MyTask(Task[TaskConfig]):
    objective, mode = "val/loss", "min"
    net = Net

    def build(self): ...
    def train_batches(self, epoch): ...
    def loss(self, batch): ...
    def evaluate(self): ...
"""


@pytest.fixture
def write(tmp_path):
    """Writes files of a user to a folder. What a test imports is forgotten after it."""
    before = {**sys.modules}

    def write_files(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/", 1)
            path = path.with_name("__init__.py") if path.name == "init" else path.with_suffix(".py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return f"{tmp_path}/my_task.py:MyTask"

    yield write_files
    for name in [name for name in sys.modules if name in ("my_task", "models") or name.startswith("models.")]:
        del sys.modules[name]
    sys.modules.update({name: module for name, module in before.items() if name.partition(".")[0] == "models"})


@pytest.mark.parametrize("file", ["models", "models__nets"])
def test_own_models_beside_a_task_are_imported_and_travel(write, tmp_path, file):
    load_task_source("arc")  # imports Searchlight's package of that name
    package = {"models__init": ""} if file == "models__nets" else {}
    task = TASK.format(imported=f"{file.replace('__', '.')} import Net")
    text = write(my_task=task, **{file: "class Net: ..."}, **package)
    source = load_task_source(text)
    assert source.task_class.net.__module__.startswith("models")
    assert {path.stem for path in source.modules} == {"my_task", "models"}
    assert load_task_source("arc").task_class.__name__ == "ArcTask"
    import searchlight.models.arc

    assert not searchlight.models.arc.__file__.startswith(str(tmp_path))


def test_own_models_in_a_folder_without_init_are_refused(write):
    text = write(models__nets="class Net: ...", my_task=TASK.format(imported="models.nets import Net"))
    (problem,) = problems_of(load_task_source, text)
    assert problem.endswith("The folder models next to it must have a file __init__.py: Searchlight has a package of "
                            "that name.")  # fmt: skip


def test_own_models_beside_a_task_that_needs_ours_are_refused(write):
    text = write(models="", my_task=TASK.format(imported="searchlight.models.arc.puzzles import Puzzle as Net"))
    (problem,) = problems_of(load_task_source, text)
    assert problem.endswith("The models next to it hides the package models of Searchlight. Rename it to use both.")


def test_models_ahead_of_ours_on_the_path_are_refused(write, tmp_path, monkeypatch):
    write(models="")
    for name in [name for name in sys.modules if name.partition(".")[0] == "models"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    assert problems_of(load_task_source, "arc") == [
        f"task arc must import the package models of Searchlight, but gets {tmp_path}/models.py. Rename that."
    ]


@pytest.mark.parametrize("name", ["search", "trainables", "queue"])
def test_file_that_hides_a_module_of_the_workers_is_refused(write, name):
    text = write(my_task=TASK.format(imported=f"{name} import Net"), **{name: "class Net: ..."})
    assert problems_of(load_task_source, text) == [
        f"no file next to my_task.py must have the name of a module that {'Ray' if name == 'queue' else 'Searchlight'} "
        f"needs, but {name}.py has. Rename it, or move the task to a folder without it."
    ]
