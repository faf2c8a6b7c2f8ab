"""Load from a checkpoint what was saved, or refuse it."""

import errno
import hashlib
import itertools
import multiprocessing
import os
import pickle
import re
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from searchlight.trainables import checkpoint
from searchlight.trainables.checkpoint import CheckpointError, Writer
from searchlight.trainables.checkpoint.file import ABOUT
from searchlight.trainables.filesystem import remote_path
from searchlight.trainables.filesystem.paths import RemotePath, list_files, parse_path
from searchlight.trainables.filesystem.storage_errors import UnwritableError
from tests.trainables.toy_models import identical
from tests.trainables.training.trials import flip_bit

STATE = {"epoch": 3, "weights": {"w": torch.arange(6.0).reshape(2, 3), "none": None}, "names": ["a", "b"], "lr": 1e-3}
FILES = ["state.pt", "state.pt.sha256"]


@pytest.fixture
def path(anywhere):
    """A checkpoint on a disk, and one in a bucket."""
    path = anywhere / "new" / "state.pt"
    checkpoint.save(STATE, path)
    return path


def list_names(path):
    return sorted(file.name for file in path.parent.iterdir())


def test_checkpoint_is_saved_replaced_and_deleted(path):
    assert identical(checkpoint.load(path), STATE)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.with_name("state.pt.sha256").read_text() == f"{digest}  state.pt\n", "sha256sum checks it"
    checkpoint.save({**STATE, "epoch": 4}, path)
    assert checkpoint.load(path)["epoch"] == 4
    assert list_names(path) == FILES
    for _ in range(2):
        checkpoint.delete(path)
        assert not path.parent.is_dir() or list_names(path) == []


@pytest.mark.parametrize("damage", ["flipped", "truncated", "without digest", "no text", "no file", "no digest file"])
def test_damaged_checkpoint_raises_checkpoint_error(path, damage):  # H84
    digest = path.with_name("state.pt.sha256")
    message = r"state\.pt must have the SHA-256 .* it is corrupt"
    if damage == "flipped":
        flip_bit(path, -1)
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:-200])
    elif damage == "without digest":
        digest.write_text("")
    else:
        if damage == "no text":
            digest.write_bytes(b"\xff")
        else:
            (path if damage == "no file" else digest).unlink()
        message = rf"{re.escape(str(path))} must be readable with its .sha256 next to it"
    with pytest.raises(CheckpointError, match=message):
        checkpoint.load(path)


def test_save_that_fails_leaves_the_earlier_checkpoint(path):
    with pytest.raises((TypeError, AttributeError), match="pickle"):
        checkpoint.save({"unpicklable": (number for number in range(3))}, path)
    assert identical(checkpoint.load(path), STATE)
    assert list_names(path) == FILES


def save_and_crash(path: Path, moment: int) -> None:
    """End this process without another word when it is about to rename a file for the time `moment`."""
    renames = itertools.count()

    def watch(event: str, arguments: object) -> None:
        if event == "os.rename" and next(renames) == moment:
            os._exit(9)

    sys.addaudithook(watch)
    checkpoint.save({"epoch": 4}, path)
    os._exit(0)


@pytest.mark.parametrize("moment", [0, 1, 2, 3])
def test_crash_at_any_write_leaves_the_old_or_the_new_state(path, monkeypatch, moment):  # H84
    if isinstance(path, Path):
        child = multiprocessing.get_context("fork").Process(target=save_and_crash, args=(path, moment))
        child.start()
        child.join(60)
        assert child.exitcode == (9 if moment < 3 else 0)  # files are renamed three times
    else:
        writes, write = itertools.count(), RemotePath.write_bytes

        def crash(self, content):
            if next(writes) == moment:
                raise KeyboardInterrupt
            return write(self, content)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) if moment < 3 else nullcontext():
            patch.setattr(RemotePath, "write_bytes", crash)
            checkpoint.save({"epoch": 4}, path)
    assert checkpoint.load(path)["epoch"] == (3 if moment < 2 else 4)
    checkpoint.save({"epoch": 5}, path)
    assert checkpoint.load(path) == {"epoch": 5}
    assert path.with_name("state.pt.sha256").read_text().count("\n") == 1


def test_unreachable_bucket_is_not_a_missing_checkpoint(s3, monkeypatch):
    monkeypatch.setattr(remote_path, "ATTEMPTS", 1)
    path = parse_path(f"{s3}/state.pt?endpoint_override=http://127.0.0.1:1")
    with pytest.raises(OSError, match=re.escape(str(path))) as error:
        checkpoint.load(path)
    assert not isinstance(error.value, FileNotFoundError)
    with pytest.raises(OSError, match=re.escape(str(path.with_name("state.pt.sha256")))):
        checkpoint.save(STATE, path)


def test_digest_that_the_disk_does_not_give_is_a_fault_of_the_storage(tmp_path, monkeypatch):
    path, read_text = tmp_path / "state.pt", Path.read_text
    checkpoint.save(STATE, path)

    def refuse(file):
        if file.suffix == ".sha256":
            raise OSError(errno.EIO, "as the disk says", str(file))
        return read_text(file)

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(UnwritableError, match=rf"^\[Errno {errno.EIO}\] as the disk says: '{path}'$"):
        checkpoint.save({**STATE, "epoch": 4}, path)


class Trap:
    """Creates the file `path` when it is loaded from a pickle."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("kind", ["saved", "pickle", "pickle of an old protocol", "list", "empty", "zip"])
def test_crafted_checkpoint_with_its_digest_runs_no_code_and_is_corrupt(tmp_path, kind):
    path, sprung = tmp_path / "state.pt", tmp_path / "sprung"
    checkpoint.save([1] if kind == "list" else {"trap": Trap(sprung)}, path)
    contents = {"pickle": pickle.dumps(Trap(sprung)), "pickle of an old protocol": pickle.dumps(Trap(sprung), 2)}
    contents |= {"empty": b"", "zip": path.read_bytes()[:500] + path.read_bytes()[600:]}
    path.write_bytes(content := contents.get(kind, path.read_bytes()))
    path.with_name("state.pt.sha256").write_text(f"{hashlib.sha256(content).hexdigest()}  state.pt\n")
    with pytest.raises(CheckpointError, match=r"^checkpoint .*state\.pt must be a dict of tensors and plain Python"):
        checkpoint.load(path)
    assert not sprung.exists()


def test_writer_saves_the_last_state_as_it_was_when_called(path):
    weights, writer = torch.randn(300, 300), Writer()
    checkpoint.save({"weights": weights}, path.with_name("at-once.pt"))
    for state in ({"epoch": 1}, {"epoch": 2}, {"weights": weights}):
        writer.save(state, path)
    weights.add_(1.0)  # as the next update does
    writer.wait()
    assert path.read_bytes() == path.with_name("at-once.pt").read_bytes()
    assert identical(checkpoint.load(path)["weights"] + 1.0, weights)
    assert len(list_names(path)) == 4


@pytest.mark.parametrize("call", ["wait", "save", "delete"])
def test_writer_raises_an_error_at_its_next_call_and_at_all_later_ones(tmp_path, call):
    (tmp_path / "file").write_text("")
    writer, path = Writer(), tmp_path / "state.pt"
    writer.save(STATE, tmp_path / "file" / "state.pt")
    with pytest.raises(OSError, match="file"):
        {"wait": writer.wait, "save": lambda: writer.save(STATE, path), "delete": lambda: writer.delete(path)}[call]()
    with pytest.raises(OSError, match="file"):  # else an epoch could be told whose checkpoint is missing
        writer.wait()
    assert not path.exists()


@pytest.mark.parametrize("links", [True, False], ids=["links", "no-links"])
def test_second_name_keeps_a_checkpoint_that_is_deleted(path, monkeypatch, links):
    def refuse(*_):
        raise OSError("Operation not supported")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    second = path.parent / "b" / "second.pt"
    checkpoint.link(path, second)
    checkpoint.save({"epoch": 4}, path)
    assert identical(checkpoint.load(second), STATE)
    checkpoint.delete(path)
    assert identical(checkpoint.load(second), STATE)
    assert list_names(second) == ["second.pt", "second.pt.sha256"]


def test_second_name_keeps_a_directory_that_is_deleted(anywhere):
    first, second, names = anywhere / "first", anywhere / "new" / "second", [ABOUT, "a", "sub/b"]
    for name in names:
        (first / name).parent.mkdir(parents=True, exist_ok=True)
        (first / name).write_text(name)
    for _ in range(2):  # a driver that dies after the copy leaves one, which the next driver replaces
        checkpoint.link(first, second)
    checkpoint.delete(first)
    assert not first.exists()
    assert [(second / name).read_text() for name in list_files(second)] == names


def test_directory_that_cannot_be_copied_leaves_no_part(tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    (first / ABOUT).write_text("about")
    left = tmp_path / f"second.{os.getpid()}.tmp"
    left.mkdir()  # of a killed process with this number
    checkpoint.link(first, second)
    monkeypatch.setattr(shutil, "copystat", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match=r"^\[Errno 28\] No space left on device$"):
        checkpoint.link(first, second)
    assert not left.exists()
    assert (second / ABOUT).read_text() == "about"


def test_second_name_of_a_missing_checkpoint_raises_an_error(anywhere):
    with pytest.raises(FileNotFoundError, match="gone"):
        checkpoint.link(anywhere / "gone.pt", anywhere / "second.pt")
    assert list(anywhere.iterdir()) == []
