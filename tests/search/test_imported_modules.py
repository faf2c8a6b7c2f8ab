import sys

import pytest

from searchlight.search.task_source import load_task_source

TASK = """
from searchlight.trainables.task import Task, TaskConfig

class Own(Task[TaskConfig]):
    objective = "val/loss"
    def build(self):
        {build}
    def train_batches(self, epoch): ...
    def loss(self, batch): ...
    def evaluate(self): ...
"""


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Returns the names of what a task imports whose `build` has these lines."""
    for name in ("direct", "deeper", "other", "unknown"):
        (tmp_path / f"{name}.py").write_text("import deeper\n" if name == "direct" else "")
    (tmp_path / "nets" / "inner").mkdir(parents=True)
    (tmp_path / "nets" / "__init__.py").write_text("from . import inner\n")
    (tmp_path / "nets" / "inner" / "__init__.py").write_text("from ..layer import width\n")
    (tmp_path / "nets" / "layer.py").write_text("def width():\n    import other\n")
    (tmp_path / "broken.py").write_text("def (:\n")

    def load(build):
        monkeypatch.delitem(sys.modules, "own", raising=False)
        (tmp_path / "own.py").write_text(TASK.format(build=build))
        source = load_task_source(f"{tmp_path / 'own.py'}:Own")
        return sorted(source.modules)

    return load


@pytest.mark.parametrize(
    ("build", "names"),
    [
        ("...", ["own.py"]),
        ("import direct", ["deeper.py", "direct.py", "own.py"]),
        ("from nets.inner import width", ["nets", "other.py", "own.py"]),
        ("import broken", ["broken.py", "own.py"]),
        ("self.target = 'unknown.Net'", ["own.py", "unknown.py"]),
        ("self.target = f'nets.{1}'; 'an unknown. Net'", ["nets", "other.py", "own.py"]),
        ("from importlib.metadata import version", ["own.py"]),
    ],
)
def test_imported_files_are_those_that_the_task_reaches(imported, build, names):
    assert imported(build) == names


@pytest.mark.parametrize("build", ["import importlib", "from importlib import import_module", "__import__(str(1))"])
def test_all_files_count_if_imports_follow_from_a_run(imported, build):
    assert len(imported(build)) == 7
