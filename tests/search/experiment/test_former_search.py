"""A search of the version before all packages had the common name `searchlight` can be resumed and reported."""

import shutil
from pathlib import Path

import pytest

from searchlight import load_search
from searchlight.search.experiment.opening import open_search
from searchlight.search.study.trial import get_outcome

FORMER = Path(__file__).with_name("former_search")


@pytest.fixture
def folder(tmp_path):
    """The folder of a search with the former options `mode`, `cold` and `log_model`. Its task imports trainables."""
    folder = tmp_path / "runs" / "former"
    folder.mkdir(parents=True)
    for name in ("study.journal", "search.yaml"):
        text = (FORMER / name).read_text(encoding="utf-8")
        (folder / name).write_text(text.replace("FOLDER", str(tmp_path)), encoding="utf-8")
    shutil.copy(FORMER / "my_task.py.txt", tmp_path / "my_task.py")
    return folder


def test_former_search_resumes_with_its_space_and_trials(folder):
    planned, opened = open_search(folder, {"trials": 6})
    opened.store.close()
    assert opened.notes[-1] == "search former continues: 3 trials have ended, 0 have not"
    assert {str(parameter) for parameter in planned.space.parameters} == {"fp32,bf16,fp16", "1e-05..0.1:log"}
    assert [str(objective) for objective in planned.objectives] == ["val/loss:min"]
    assert planned.source.reference == "my_task:MyTask"
    assert (planned.trials, planned.confirming_runs) == (6, 0)


@pytest.mark.parametrize("name", [None, "former", "runs/former"])
def test_former_search_is_read(name, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    searched = load_search(name or folder)
    assert [get_outcome(trial) for trial in searched.trials] == ["pruned", "completed", "pruned"]
