import sys
from functools import partial

import pytest

from searchlight.search.config import load_config
from searchlight.search.experiment import plan
from searchlight.search.experiment.task_files import prepare_task_files
from tests.search.refusals import problems_of

PREPARES = """
import torch
from searchlight.trainables.task import Task, TaskConfig, searchable


class WordsConfig(TaskConfig):
    lr: float = searchable(1e-2, low=1e-4, high=1e-1, log=True)
    word: str = "one"


class Words(Task[WordsConfig]):
    objective = "val/loss"

    @classmethod
    def prepare(cls, config, folder):
        (folder / "words.txt").write_text(config.word)
        if config.word == "broken":
            raise ValueError("there are no words")

    def build(self): ...
    def train_batches(self, epoch): ...
    def loss(self, batch): ...
    def evaluate(self): ...


class Plain(Words):
    prepare = Task.__dict__["prepare"]


class Static(Words):
    @staticmethod
    def prepare(config, folder):
        (folder / "words.txt").write_text(config.word)
"""


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """Return a function that plans one search with other settings each. It returns what prepares the files of each."""
    monkeypatch.delitem(sys.modules, "words", raising=False)  # of the test before
    (tmp_path / "words.py").write_text(PREPARES)

    def make(*words, name="Words"):
        given = {"task": f"{tmp_path / 'words.py'}:{name}", "name": "demo", "storage": str(tmp_path / "runs")}
        plans = [plan(load_config({**given, "trials": 1, "set": {"word": word}})) for word in words]
        plans[0].config.local_path.mkdir(parents=True)
        return [partial(prepare_task_files, each.config, each.source.task_class, each.space) for each in plans]

    return make


@pytest.mark.parametrize("name", ["Words", "Static"])
def test_prepared_files_follow_the_config_and_are_kept(planned, name):
    search, taken_up = planned("two", "three", name=name)
    assert (search() / "words.txt").read_text() == "two"
    assert (taken_up() / "words.txt").read_text() == "two"


def test_half_of_the_files_never_pass_for_all(planned):
    broken, mended = planned("broken", "two")
    with pytest.raises(ValueError, match="no words"):
        broken()
    assert not list(broken.args[0].local_path.iterdir())
    assert (mended() / "words.txt").read_text() == "two"


def test_task_that_prepares_nothing_leaves_no_folder(planned):
    (search,) = planned("one", name="Plain")
    assert not search().exists()


TWO = """
from searchlight.trainables.task import TaskConfig
from words import Words


class Two(Words):
    def build(self):
        self.modules = {"encoder": None}
        self.modules["decoder"] = None


class Either(Words):
    def build(self):
        self.modules = {"first": None}
        if self.config.word == "two":
            self.modules = {"second": None}


class Predicting(Two):
    def predict(self, inputs): ...
"""


def test_model_of_two_modules_without_predict_is_refused(tmp_path, planned, monkeypatch):
    monkeypatch.delitem(sys.modules, "two_modules", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "two_modules.py").write_text(TWO)

    def plan_for(name):
        task, new = f"{tmp_path / 'two_modules.py'}:{name}", str(tmp_path / "new")
        return plan(load_config({"task": task, "storage": new, "register": "my-model"}))

    assert problems_of(plan_for, "Two") == [
        "--register must come with a task of one module, or one that defines "
        "predict(self, inputs), but Two has encoder and decoder. Define their common prediction: docs/results.md."
    ]
    assert plan_for("Either").source.name == "Either", "which modules it has is not known yet"
    assert plan_for("Predicting").source.name == "Predicting"
    assert not (tmp_path / "new").exists()
