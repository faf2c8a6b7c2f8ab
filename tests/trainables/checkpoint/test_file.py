"""A checkpoint is what was saved, or it is refused."""

import hashlib
import itertools
import multiprocessing
import os
import pickle
import re
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from tests.trainables.toy_models import identical
from trainables import checkpoint
from trainables.checkpoint import CheckpointError, Writer
from trainables.checkpoint.file import ABOUT
from trainables.filesystem import remote_path
from trainables.filesystem.paths import RemotePath, list_files, parse_path

STATE = {"epoch": 3, "weights": {"w": torch.arange(6.0).reshape(2, 3), "none": None}, "names": ["a", "b"], "lr": 1e-3}


def test_what_is_loaded_is_what_was_saved(anywhere):
    path = anywhere / "new" / "folder" / "state.pt"
    checkpoint.save(STATE, path)
    assert identical(checkpoint.load(path), STATE)


def test_the_digest_beside_a_checkpoint_is_one_that_sha256sum_checks(anywhere):
    path = anywhere / "state.pt"
    checkpoint.save(STATE, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert (anywhere / "state.pt.sha256").read_text() == f"{digest}  state.pt\n"


def test_saving_leaves_nothing_else_behind_and_replaces_what_was_there(anywhere):
    path = anywhere / "state.pt"
    checkpoint.save(STATE, path)
    checkpoint.save({**STATE, "epoch": 4}, path)
    assert checkpoint.load(path)["epoch"] == 4
    assert sorted(file.name for file in anywhere.iterdir()) == ["state.pt", "state.pt.sha256"]


@pytest.mark.parametrize("position", [0, 100, -1])
def test_a_flipped_bit_is_noticed(anywhere, position):  # H84
    path = anywhere / "state.pt"
    checkpoint.save(STATE, path)
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"state\.pt must have the SHA-256 .* it is corrupt"):
        checkpoint.load(path)


def test_a_truncated_file_is_noticed(anywhere):  # H84
    path = anywhere / "state.pt"
    checkpoint.save(STATE, path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(CheckpointError, match="it is corrupt"):
        checkpoint.load(path)


@pytest.mark.parametrize("missing", ["state.pt", "state.pt.sha256"])
def test_a_missing_file_is_named(anywhere, missing):  # H84
    path = anywhere / "state.pt"
    checkpoint.save(STATE, path)
    (anywhere / missing).unlink()
    with pytest.raises(CheckpointError, match=rf"{re.escape(str(path))} must be readable with its .sha256 beside it"):
        checkpoint.load(path)


def test_an_empty_digest_is_refused(anywhere):  # H84
    path = anywhere / "state.pt"
    checkpoint.save(STATE, path)
    (anywhere / "state.pt.sha256").write_text("")
    with pytest.raises(CheckpointError, match="it is corrupt"):
        checkpoint.load(path)


def test_a_save_that_fails_leaves_the_earlier_checkpoint(anywhere):  # H84
    path = anywhere / "state.pt"
    checkpoint.save(STATE, path)
    with pytest.raises((TypeError, AttributeError), match="pickle"):
        checkpoint.save({"unpicklable": (number for number in range(3))}, path)
    assert identical(checkpoint.load(path), STATE)
    assert len(list(anywhere.iterdir())) == 2


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


@pytest.mark.parametrize("moment", [0, 1, 2, 3])
def test_a_crash_at_any_write_to_a_bucket_leaves_the_old_state_or_the_new_one(s3, monkeypatch, moment):
    class Crash(BaseException):
        pass

    folder, writes, write = parse_path(s3), itertools.count(), RemotePath.write_bytes

    def crash(self, content):
        if next(writes) == moment:
            raise Crash
        return write(self, content)

    checkpoint.save(STATE, folder / "state.pt")
    with monkeypatch.context() as patch, pytest.raises(Crash) if moment < 3 else nullcontext():
        patch.setattr(RemotePath, "write_bytes", crash)
        checkpoint.save({"epoch": 4}, folder / "state.pt")
    assert checkpoint.load(folder / "state.pt")["epoch"] == (3 if moment < 2 else 4)
    checkpoint.save({"epoch": 5}, folder / "state.pt")
    assert checkpoint.load(folder / "state.pt") == {"epoch": 5}
    assert (folder / "state.pt.sha256").read_text().count("\n") == 1


def _save_and_crash(state: dict[str, int], path: Path, moment: int) -> None:
    """End this process without another word when it is about to rename a file for the time `moment`."""
    renames = itertools.count()

    def watch(event: str, arguments: object) -> None:
        if event == "os.rename" and next(renames) == moment:
            os._exit(9)

    sys.addaudithook(watch)
    checkpoint.save(state, path)
    os._exit(0)


def test_a_deleted_checkpoint_is_gone_and_may_be_deleted_again(anywhere):
    path = anywhere / "state.pt"
    checkpoint.save(STATE, path)
    checkpoint.delete(path)
    checkpoint.delete(path)
    assert list(anywhere.iterdir()) == []


def test_a_bucket_that_is_not_reached_is_no_checkpoint_that_is_missing(s3, monkeypatch):
    monkeypatch.setattr(remote_path, "ATTEMPTS", 1)
    path = parse_path(f"{s3}/state.pt?endpoint_override=http://127.0.0.1:1")
    with pytest.raises(OSError, match=re.escape(str(path))) as error:
        checkpoint.load(path)
    assert not isinstance(error.value, FileNotFoundError)
    with pytest.raises(OSError, match=re.escape(str(path.with_name("state.pt.sha256")))):
        checkpoint.save(STATE, path)


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


def test_what_a_writer_writes_is_the_state_of_the_moment_byte_for_byte(anywhere):  # H85
    weights = [torch.randn(1000, 1000) for _ in range(3)]
    checkpoint.save({"weights": weights, "epoch": 3}, anywhere / "at-once.pt")
    writer = Writer()
    writer.save({"weights": weights, "epoch": 3}, anywhere / "meanwhile.pt")
    for weight in weights:  # as the next update does
        weight.add_(1.0)
    writer.wait()
    assert (anywhere / "meanwhile.pt").read_bytes() == (anywhere / "at-once.pt").read_bytes()
    assert checkpoint.load(anywhere / "meanwhile.pt")["epoch"] == 3


def test_a_writer_writes_in_order_and_keeps_the_last(anywhere):  # H85
    writer = Writer()
    for epoch in range(5):
        writer.save({"epoch": epoch}, anywhere / "state.pt")
    writer.wait()
    assert checkpoint.load(anywhere / "state.pt") == {"epoch": 4}
    assert sorted(file.name for file in anywhere.iterdir()) == ["state.pt", "state.pt.sha256"]


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


def test_a_second_name_keeps_a_checkpoint_that_is_deleted_under_its_first(anywhere):
    first, second = anywhere / "a" / "first.pt", anywhere / "b" / "second.pt"
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


def test_a_directory_has_a_second_name_too(anywhere):
    for name in (ABOUT, "a", "sub/b"):
        (anywhere / "first" / name).parent.mkdir(parents=True, exist_ok=True)
        (anywhere / "first" / name).write_text(name)
    checkpoint.link(anywhere / "first", anywhere / "new" / "second")
    checkpoint.delete(anywhere / "first")
    assert not (anywhere / "first").exists()
    second = anywhere / "new" / "second"
    assert {name: (second / name).read_text() for name in list_files(second)} == {
        name: name for name in (ABOUT, "a", "sub/b")
    }


def test_a_checkpoint_that_is_gone_has_no_second_name(anywhere):
    with pytest.raises(FileNotFoundError, match="gone"):
        checkpoint.link(anywhere / "gone.pt", anywhere / "second.pt")
    assert list(anywhere.iterdir()) == []
