"""A checkpoint is what was saved, or it is refused."""

import hashlib
import itertools
import multiprocessing
import os
import pickle
import re
import sys
from pathlib import Path

import pytest
import torch

from tests.trainables.toys import identical
from trainables import checkpoint
from trainables.checkpoint import CheckpointError, Writer

STATE = {"epoch": 3, "weights": {"w": torch.arange(6.0).reshape(2, 3), "none": None}, "names": ["a", "b"], "lr": 1e-3}


def test_what_is_loaded_is_what_was_saved(tmp_path):
    path = tmp_path / "new" / "folder" / "state.pt"
    checkpoint.save(STATE, path)
    assert identical(checkpoint.load(path), STATE)


def test_the_digest_beside_a_checkpoint_is_one_that_sha256sum_checks(tmp_path):
    path = tmp_path / "state.pt"
    checkpoint.save(STATE, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert (tmp_path / "state.pt.sha256").read_text() == f"{digest}  state.pt\n"


def test_saving_leaves_nothing_else_behind_and_replaces_what_was_there(tmp_path):
    path = tmp_path / "state.pt"
    checkpoint.save(STATE, path)
    checkpoint.save({**STATE, "epoch": 4}, path)
    assert checkpoint.load(path)["epoch"] == 4
    assert sorted(file.name for file in tmp_path.iterdir()) == ["state.pt", "state.pt.sha256"]


@pytest.mark.parametrize("position", [0, 100, -1])
def test_a_flipped_bit_is_noticed(tmp_path, position):  # H84
    path = tmp_path / "state.pt"
    checkpoint.save(STATE, path)
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"state\.pt must have the SHA-256 .* it is corrupt"):
        checkpoint.load(path)


def test_a_truncated_file_is_noticed(tmp_path):  # H84
    path = tmp_path / "state.pt"
    checkpoint.save(STATE, path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(CheckpointError, match="it is corrupt"):
        checkpoint.load(path)


@pytest.mark.parametrize("missing", ["state.pt", "state.pt.sha256"])
def test_a_missing_file_is_named(tmp_path, missing):  # H84
    path = tmp_path / "state.pt"
    checkpoint.save(STATE, path)
    (tmp_path / missing).unlink()
    with pytest.raises(CheckpointError, match=rf"{re.escape(str(path))} must be readable with its .sha256 beside it"):
        checkpoint.load(path)


def test_an_empty_digest_is_refused(tmp_path):  # H84
    path = tmp_path / "state.pt"
    checkpoint.save(STATE, path)
    (tmp_path / "state.pt.sha256").write_text("")
    with pytest.raises(CheckpointError, match="it is corrupt"):
        checkpoint.load(path)


def test_a_save_that_fails_leaves_the_earlier_checkpoint(tmp_path):  # H84
    path = tmp_path / "state.pt"
    checkpoint.save(STATE, path)
    with pytest.raises((TypeError, AttributeError), match="pickle"):
        checkpoint.save({"unpicklable": (number for number in range(3))}, path)
    assert identical(checkpoint.load(path), STATE)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("moment", [0, 1, 2, 3])
def test_a_crash_at_any_moment_leaves_the_old_state_or_the_new_one(tmp_path, moment):  # H84
    path = tmp_path / "state.pt"
    checkpoint.save(STATE, path)
    child = multiprocessing.get_context("fork").Process(target=_save_and_crash, args=({"epoch": 4}, path, moment))
    child.start()
    child.join(60)
    assert child.exitcode == (9 if moment < 3 else 0)  # files are renamed three times
    assert checkpoint.load(path)["epoch"] == (3 if moment < 2 else 4)
    checkpoint.save({"epoch": 5}, path)
    assert checkpoint.load(path) == {"epoch": 5}
    assert (tmp_path / "state.pt.sha256").read_text().count("\n") == 1


def _save_and_crash(state: dict[str, int], path: Path, moment: int) -> None:
    """End this process without another word when it is about to rename a file for the time `moment`."""
    renames = itertools.count()

    def watch(event: str, arguments: object) -> None:
        if event == "os.rename" and next(renames) == moment:
            os._exit(9)

    sys.addaudithook(watch)
    checkpoint.save(state, path)
    os._exit(0)


def test_a_deleted_checkpoint_is_gone_and_may_be_deleted_again(tmp_path):
    path = tmp_path / "state.pt"
    checkpoint.save(STATE, path)
    checkpoint.delete(path)
    checkpoint.delete(path)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_runs_no_code_of_whoever_wrote_it(tmp_path):
    class Trap:
        def __reduce__(self):
            return exec, (f"open({str(tmp_path / 'sprung')!r}, 'w')",)

    path = tmp_path / "state.pt"
    checkpoint.save({"trap": Trap()}, path)
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        checkpoint.load(path)
    assert not (tmp_path / "sprung").exists()


# Written while training goes on


def test_what_a_writer_writes_is_the_state_of_the_moment_byte_for_byte(tmp_path):  # H85
    weights = [torch.randn(1000, 1000) for _ in range(3)]
    checkpoint.save({"weights": weights, "epoch": 3}, tmp_path / "at-once.pt")
    writer = Writer()
    writer.save({"weights": weights, "epoch": 3}, tmp_path / "meanwhile.pt")
    for weight in weights:  # as the next update does
        weight.add_(1.0)
    writer.wait()
    assert (tmp_path / "meanwhile.pt").read_bytes() == (tmp_path / "at-once.pt").read_bytes()
    assert checkpoint.load(tmp_path / "meanwhile.pt")["epoch"] == 3


def test_a_writer_writes_in_order_and_keeps_the_last(tmp_path):  # H85
    writer = Writer()
    for epoch in range(5):
        writer.save({"epoch": epoch}, tmp_path / "state.pt")
    writer.wait()
    assert checkpoint.load(tmp_path / "state.pt") == {"epoch": 4}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["state.pt", "state.pt.sha256"]


@pytest.mark.parametrize("call", ["wait", "save"])
def test_an_error_while_writing_is_raised_by_the_next_call_and_once(tmp_path, call):  # H85
    (tmp_path / "file").write_text("")
    writer = Writer()
    writer.save(STATE, tmp_path / "file" / "state.pt")
    with pytest.raises(OSError, match="file"):
        writer.wait() if call == "wait" else writer.save(STATE, tmp_path / "state.pt")
    writer.save(STATE, tmp_path / "state.pt")
    writer.wait()
    assert identical(checkpoint.load(tmp_path / "state.pt"), STATE)


def test_a_second_name_keeps_a_checkpoint_that_is_deleted_under_its_first(tmp_path):
    first, second = tmp_path / "a" / "first.pt", tmp_path / "b" / "second.pt"
    checkpoint.save({"epoch": 3}, first)
    checkpoint.link(first, second)
    checkpoint.save({"epoch": 4}, first)
    assert checkpoint.load(second) == {"epoch": 3}
    checkpoint.delete(first)
    assert checkpoint.load(second) == {"epoch": 3}
    assert sorted(path.name for path in second.parent.iterdir()) == ["second.pt", "second.pt.sha256"]


def test_where_files_cannot_have_two_names_a_checkpoint_is_copied(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError("Operation not supported")

    monkeypatch.setattr(os, "link", refused)
    test_a_second_name_keeps_a_checkpoint_that_is_deleted_under_its_first(tmp_path)


def test_a_checkpoint_that_is_gone_has_no_second_name(tmp_path):
    with pytest.raises(FileNotFoundError, match="gone"):
        checkpoint.link(tmp_path / "gone.pt", tmp_path / "second.pt")
    assert list(tmp_path.iterdir()) == []
