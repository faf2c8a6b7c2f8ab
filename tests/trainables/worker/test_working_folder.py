"""Give each trial a current folder of its own."""

from pathlib import Path

import pytest

from searchlight.trainables.worker.working_folder import WorkingFolder


@pytest.fixture
def base(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_trial_has_a_folder_of_its_own_until_another_begins(base):
    folder = WorkingFolder(base)
    folder.enter(3)
    Path("output").write_text("of 3")
    folder.enter(3)  # its next segment
    assert Path("output").read_text() == "of 3"
    folder.enter(7)
    assert (Path.cwd(), [*base.iterdir()]) == (base / "trial-7", [base / "trial-7"])
    assert not Path("output").exists()
    folder.enter(3)
    assert not Path("output").exists()
    folder.remove()
    assert (Path.cwd(), [*base.iterdir()]) == (base, [])


def test_ranks_of_a_node_share_the_folder_of_a_trial(base):
    first, second = WorkingFolder(base), WorkingFolder(base)
    first.enter(0)
    Path("output").write_text("of rank 0")
    second.enter(0)
    assert Path("output").read_text() == "of rank 0"
    for rank in (first, second):
        rank.enter(1)
        Path("output").touch()
    assert [*base.iterdir()] == [base / "trial-1"]


def test_without_a_base_trials_run_in_the_current_folder(base):
    folder = WorkingFolder(None)
    folder.enter(0)
    folder.remove()
    assert (Path.cwd(), [*base.iterdir()]) == (base, [])
