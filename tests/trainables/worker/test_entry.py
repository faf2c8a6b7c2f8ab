"""Begin the work of a process, whose garbage is not collected while libraries are imported."""

import gc
import sys

import pytest

from searchlight.trainables.command.settings import CommandSettings
from searchlight.trainables.worker import entry, worker
from searchlight.trainables.worker.command_runner import CommandRunner
from searchlight.trainables.worker.messages import WorkerSettings
from searchlight.trainables.worker.train_function import FunctionRunner
from searchlight.trainables.worker.trial_runner import TrialRunner

COMMAND = CommandSettings(("train",), "", "", ("loss",))


@pytest.fixture(autouse=True)
def collecting():
    """Leave the garbage collector as it was."""
    gc.disable()
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (WorkerSettings("task:Task"), TrialRunner),
        (WorkerSettings("task:train", "loss"), FunctionRunner),
        (WorkerSettings("", "loss", command=COMMAND), CommandRunner),
    ],
)
def test_runner_suits_the_kind_of_task_and_garbage_is_collected(monkeypatch, settings, expected):
    found = []
    monkeypatch.setattr(worker, "work", lambda config, runner: found.append((runner, gc.isenabled())))
    entry.work({"worker": settings})
    assert found == [(expected, True)]


def test_garbage_is_collected_after_an_import_that_fails(monkeypatch):
    monkeypatch.setitem(sys.modules, "searchlight.trainables.worker.trial_runner", None)
    with pytest.raises(ImportError):
        entry.work({"worker": WorkerSettings("task:Task")})
    assert gc.isenabled()
