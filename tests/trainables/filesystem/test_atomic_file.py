import os
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from searchlight.trainables.filesystem.atomic_file import atomic_path, remove_leftovers, write_atomic


def test_file_is_written_whole_or_stays_as_it_was(tmp_path):
    path = tmp_path / "search.yaml"
    write_atomic(path, "before")

    def break_off():
        with atomic_path(path) as file:
            file.write_text("a half")
            assert path.read_text() == "before"
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        break_off()
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("search.yaml", "before")]


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(timeout=60)
    left, alive, fresh = (
        tmp_path / f"trials.parquet.{name}.tmp" for name in (gone.pid, os.getppid(), gone.pid + 2**24)
    )
    for file in (left, alive, fresh):
        file.write_bytes(b"PAR1")
    for file in (left, alive):
        os.utime(file, (time.time() - 100,) * 2)
    write_atomic(tmp_path / "trials.parquet", "whole")
    assert {path.name for path in tmp_path.iterdir()} == {"trials.parquet", alive.name, fresh.name}


@pytest.mark.parametrize(("number", "tried"), [(2**31 - 1, 1), (20261123004500, 0)], ids=["another user's", "a time"])
def test_file_that_is_no_own_leftover_stays(tmp_path, monkeypatch, number, tried):
    file = tmp_path / f"mlflow.db.{number}.tmp"
    file.touch()
    os.utime(file, (0, 0))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", unlink := Mock(side_effect=PermissionError))
        remove_leftovers(tmp_path / "mlflow.db")
    assert unlink.call_count == tried
